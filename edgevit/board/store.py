"""The engines of a model folder: `export/engines/<fingerprint>/<key>.engine`, and beside each what is known of it.

Schema history: 1  first version
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgevit.board.fingerprint import fingerprint
from edgevit.errors import EngineError
from edgevit.folder.documents import Reader
from edgevit.folder.model import read_spec

SCHEMA = 1
READER = Reader(EngineError, mend="build the engine again with edgevit export ... --trt --rebuild")


@dataclass(frozen=True)
class _ClassAccuracy:
    board: float
    host: float


@dataclass(frozen=True)
class _Accuracy:
    """What is shown of `EngineRecord.accuracy`."""

    images: int
    part: str
    host: float
    board: float
    agreement: float
    worst_class: str
    per_class: dict[str, _ClassAccuracy]


@dataclass(frozen=True)
class EngineRecord:
    """An engine: where it was built, from what, and how it was found to be right. None: not measured."""

    path: Path
    sha256: str
    bytes: int
    created: str  # UTC, ISO 8601
    key: str  # hash of all that the build was asked; the file is named by the first 16 digits
    fingerprint: str
    board: dict[str, Any]  # module, JetPack, L4T, TensorRT, CUDA, power mode: in short, and when it was built
    weights_sha256: str  # of the model folder
    onnx: dict[str, str]  # name and sha256 of the file in export/ that it was built from
    precision: str  # "fp16", "fp32", or "mixed": fp16 with some modules in fp32
    rung: str  # the same in words
    fp32_modules: tuple[str, ...]
    batches: tuple[int, int, int]  # least, the one that kernels were chosen for, most
    strongly_typed: bool
    build_seconds: float
    workspace_bytes: int | None
    optimization_level: int | None  # None: TensorRT's own
    timing_cache: dict[str, Any] | None
    device_memory_bytes: int | None  # activations of one execution context
    fused: int | None  # attention blocks that run as one kernel, by the engine's own layer list
    blocks: int
    fused_expected: int | None  # None: not known for this compiler
    fused_proxy: dict[str, Any] | None  # the same as TensorRT-RTX saw it, from export.json
    accuracy: dict[str, Any] | None  # on the board and on the host, overall and per class
    tried: tuple[dict[str, Any], ...]  # what was built before this one, and why it was not good enough
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    edgevit: str | None = None  # that had it built; None: one that did not say yet

    @property
    def layers_path(self) -> Path:
        return self.path.with_suffix(".layers.json")

    def to_dict(self) -> dict[str, Any]:
        record = asdict(self)
        del record["path"]  # where it lies says nothing about it, and folders move
        return {"schema": SCHEMA, "file": self.path.name, **record}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"


def engines_folder(model: Path) -> Path:
    return model / "export" / "engines"


def model_folder(engine: Path) -> Path:
    """The model folder that an engine lies in."""
    return engine.parent.parent.parent.parent


def read_record(path: Path) -> EngineRecord:
    """Read what lies beside an engine.

    Raises:
        EngineError: it is not what `edgevit export --trt` writes.
    """
    content = READER.json(path, dict[str, Any], schemas=(SCHEMA,))
    record = READER.checked({**content, "path": str(path.with_suffix(".engine"))}, EngineRecord, str(path))
    if record.accuracy is not None:
        judged = READER.checked(record.accuracy, _Accuracy, f"{path}, accuracy,")
        if judged.worst_class not in judged.per_class:
            raise EngineError(f"{path} names {judged.worst_class!r} as the worst of other classes; {READER.mend}")
    return record


def stored_engines(model: Path) -> list[EngineRecord]:
    """Every engine of a model folder, on whatever board it was built; the newest first."""
    paths = [path for path in engines_folder(model).glob("*/*.json") if not path.name.endswith(".layers.json")]
    records = [read_record(path) for path in paths if path.with_suffix(".engine").is_file()]
    return sorted(records, key=lambda record: record.created, reverse=True)


def _how_to_build(model: Path) -> str:
    return f"run `edgevit export {model} --trt --board HOST`, or without --board on the board itself"


def _nearest(records: Sequence[EngineRecord], batches: Sequence[int]) -> EngineRecord:
    """The engine whose kernels were chosen nearest to the batches asked for; of equals, the newest."""
    return min(records, key=lambda record: sum(abs(record.batches[1] - batch) for batch in batches))


def _check_unaltered(record: EngineRecord) -> EngineRecord:
    digest = hashlib.sha256()
    with record.path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != record.sha256:
        raise EngineError(
            f"{record.path} was altered: its hash is {digest.hexdigest()[:12]}, its record says {record.sha256[:12]}; "
            f"build it again with edgevit export ... --trt --rebuild"
        )
    return record


def recorded_engine(path: Path, facts: Mapping[str, Any]) -> EngineRecord:
    """Return what is known of this engine, if it is one for the board with these facts.

    Raises:
        EngineError: it was built for another, or altered since.
    """
    record, here = read_record(path.with_suffix(".json")), fingerprint(facts)
    if record.fingerprint != here:
        how = _how_to_build(model_folder(path))
        raise EngineError(f"{path} was built for {record.fingerprint}, and this is {here}; {how}")
    return _check_unaltered(record)


def find_engine(
    model: Path, facts: Mapping[str, Any], batch: int | Sequence[int], precision: str | None = None
) -> EngineRecord:
    """Return the engine of a model folder that runs on the board with these facts, at every batch size asked for.

    Raises:
        EngineError: there is none, or only one for another board, other weights, or other batches; or it was altered.
    """
    batches = [batch] if isinstance(batch, int) else list(batch)
    here, how = fingerprint(facts), _how_to_build(model)
    records = stored_engines(model)
    if not records:
        raise EngineError(f"{model} has no engine; {how}")
    fitting = [record for record in records if record.fingerprint == here]
    if not fitting:
        raise EngineError(f"the engine in {model} was built for {records[0].fingerprint}, and this is {here}; {how}")
    _, weights = read_spec(model)
    current = [record for record in fitting if record.weights_sha256 == weights]
    if not current:
        raise EngineError(f"the engine in {model} was built from other weights than the model has now; {how}")
    of_precision = [record for record in current if precision in (None, record.precision)]
    if not of_precision:
        there = ", ".join(sorted({record.precision for record in current}))
        raise EngineError(f"the engine in {model} for {here} is {there}, and {precision} was asked for; {how}")
    accepting = [r for r in of_precision if all(r.batches[0] <= b <= r.batches[2] for b in batches)]
    if not accepting:
        seen = of_precision[0].batches
        span = f"--batches {min(seen[0], *batches)},{min(batches)},{max(seen[2], *batches)}"
        raise EngineError(
            f"the engine in {model} for {here} takes {seen[0]} to {seen[2]} images, and "
            f"{', '.join(map(str, batches))} were asked for; {how}, and with {span}"
        )
    return _check_unaltered(_nearest(accepting, batches))
