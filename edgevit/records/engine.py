"""What is known of an engine: a JSON file beside it, `export/engines/<fingerprint>/<key>.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from edgevit.errors import EngineError
from edgevit.records.belonging import file_fault
from edgevit.records.class_names import ClassName
from edgevit.records.documents import Reader
from edgevit.records.export import Fusion
from edgevit.records.kinds import PLACE, Place, RecordKind
from edgevit.records.model import Index, Sha256
from edgevit.records.writing import write_whole, writing

READER = Reader(EngineError, mend="build the engine again with edgevit export ... --trt --rebuild")

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class EngineBoard:
    """The board an engine was built on, in short. None: it does not say."""

    model: str | None = None
    part: str | None = None
    super: bool | None = None
    jetpack: str | None = None
    l4t: str | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    device: str | None = None
    sms: int | None = None
    capability: str | None = None
    power_mode: str | None = None


@dataclass(frozen=True)
class OnnxSource:
    """The file in export/ that an engine was built from."""

    name: str
    sha256: Sha256


@dataclass(frozen=True)
class EngineClassAccuracy:
    """Shares of one class's images that are classified rightly."""

    images: Index
    host: Share  # in fp32 here
    board: Share  # by the engine


@dataclass(frozen=True)
class EngineAccuracy:
    """An engine on images of the target classes, beside ONNX Runtime in fp32 on the host."""

    data: str
    part: str
    images: Index
    images_sha256: Sha256
    host: Share
    board: Share
    agreement: Share  # of images for which both choose the same class
    worst_class: ClassName  # the one that loses most
    per_class: dict[ClassName, EngineClassAccuracy]

    def __post_init__(self) -> None:
        if self.worst_class not in self.per_class:
            raise ValueError(f"it names {self.worst_class!r} as the worst of other classes")


@dataclass(frozen=True)
class EngineTried:
    """What was built before, and why it was not good enough."""

    rung: str
    seconds: float
    failure: str | None


@dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # -1: of any size


@dataclass(frozen=True)
class TimingCacheUse:
    """TensorRT's memory of how fast kernels are on the board."""

    path: str
    bytes_before: int  # 0: there was none, or one of another TensorRT
    bytes_after: int


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """An engine: where it was built, from what, and how it was found to be right. None: not measured."""

    path: Place = field(metadata=PLACE)
    file: str
    sha256: Sha256
    bytes: int
    created: str  # UTC, ISO 8601
    key: Sha256  # of all that the build was asked; the file is named by its first digits
    fingerprint: str  # of the board
    board: EngineBoard
    weights_sha256: Sha256  # of the model folder
    onnx: OnnxSource
    precision: str  # "fp16", "fp32", or "mixed": fp16 with some modules in fp32
    rung: str  # the same in words
    fp32_modules: tuple[str, ...]
    batches: tuple[int, int, int]  # least, the one that kernels were chosen for, most
    strongly_typed: bool
    build_seconds: float
    workspace_bytes: int | None
    optimization_level: int | None  # None: TensorRT's own
    timing_cache: TimingCacheUse | None
    device_memory_bytes: int | None  # activations of one execution context
    fused: int | None  # attention blocks that run as one kernel, by the engine's own layer list
    blocks: int  # that have an attention
    fused_expected: int | None  # None: not known for this compiler
    fused_proxy: Fusion | None  # the same as TensorRT-RTX saw it, from export.json
    accuracy: EngineAccuracy | None
    tried: tuple[EngineTried, ...]
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    warnings: tuple[str, ...]
    edgevit: str  # version that had it built

    @property
    def layers_path(self) -> Path:
        return self.path.with_suffix(LAYERS)


LAYERS = ".layers.json"
ENGINE_KIND = RecordKind("engine", EngineRecord, READER)


def key_of(asked: Mapping[str, Any]) -> str:
    """Hash all that decides what is built."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def read_engine(engine: Path) -> EngineRecord:
    """Read what lies beside an engine.

    Raises:
        EngineError: it is not what `edgevit export --trt` writes.
    """
    return ENGINE_KIND.read(engine.with_suffix(".json"), path=engine)


def stored_engine(engine: Path, key: str) -> EngineRecord | None:
    """What is known of the engine that lies there, if it was built as is asked now and is still what it was.

    Raises:
        EngineError: its record cannot be read.
    """
    if not (engine.is_file() and engine.with_suffix(".json").is_file()):
        return None
    record = read_engine(engine)
    return record if record.key == key and file_fault(engine, record.sha256, engine) is None else None


def store_engine(fetched: Path, record: EngineRecord, layers: list[Any]) -> None:
    """Move an engine in and write what is known of it beside it; last the record, without which it does not exist.

    Raises:
        OutputError: the disk is full, or may not be written to.
    """
    described = record.path.with_suffix(".json")
    with writing(record.path):
        described.unlink(missing_ok=True)
        fetched.replace(record.path)
        write_whole(record.layers_path, json.dumps(layers, indent=1))
        write_whole(described, ENGINE_KIND.text(record))
