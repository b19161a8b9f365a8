"""Which file of a model is measured: an exported ONNX file, or the engine that was built for this very board."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgevit.board.store import find_engine, model_folder, recorded_engine
from edgevit.errors import CheckpointError
from edgevit.folder.documents import Reader
from edgevit.folder.model import SPEC, Sha256, read_spec

WEIGHTS_ALONE = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz")
EXPORT = "export.json"  # lists the exported files and their hashes


@dataclass(frozen=True)
class _File:
    sha256: Sha256


@dataclass(frozen=True)
class _Export:
    """What is read of export.json here."""

    files: dict[str, _File]


@dataclass(frozen=True)
class Work:
    """What one image costs, for the roofline."""

    macs: int
    params: int
    values: int  # pixels in and logits out


@dataclass(frozen=True)
class Measurable:
    """A file that a runner takes."""

    path: Path
    sha256: str
    precision: str | None
    label: str  # the folder's name, or the file's
    work: Work | None = None  # None: a bare file does not say


def find_file(model: Path, precision: str | None, provider: str | None) -> Measurable:
    """Take the file that was given, or the exported one of a model folder.

    Raises:
        CheckpointError: the model is missing, not exported, or not the file that was exported.
    """
    if model.is_dir():
        if precision is None:
            precision = "fp32" if provider in (None, "cpu") else "fp16"
        path = _find_exported(model, precision)
        digest = _verified_sha256(path, must_be_listed=True)
        return Measurable(path.absolute(), digest, precision, model.absolute().name, _work(model))
    if not model.is_file():
        raise CheckpointError(f"no model at {model}: expected a model folder, an ONNX file or an engine")
    if model.suffix in WEIGHTS_ALONE:
        raise CheckpointError(
            f"{model} is not an ONNX file: it holds weights alone; try `edgevit base NAME --checkpoint {model} "
            "--out DIR` and `edgevit export DIR`, and measure that"
        )
    return Measurable(model.absolute(), _verified_sha256(model, must_be_listed=False), precision, model.stem)


def find_engine_file(
    folder: Path, facts: Mapping[str, Any], batches: Sequence[int], precision: str | None
) -> Measurable:
    """Take the engine of a model folder that was built for the board with these facts.

    Raises:
        EngineError: there is none, or only one for another board or other batches.
    """
    engine = find_engine(folder, facts, batches, precision)
    return Measurable(engine.path.absolute(), engine.sha256, engine.precision, folder.absolute().name, _work(folder))


def of_this_board(found: Measurable, facts: Mapping[str, Any]) -> Measurable:
    """Check an engine that was given by its path against the record beside it, and add what that says.

    A file without a record is taken as it is.

    Raises:
        EngineError: it was built for another board than that with these facts, or altered since.
    """
    if found.path.suffix != ".engine" or not found.path.with_suffix(".json").is_file():
        return found
    record = recorded_engine(found.path, facts)
    return replace(found, precision=record.precision, work=_work(model_folder(record.path)))


def _work(folder: Path) -> Work | None:
    """Read model.json, where there is one."""
    if not (folder / SPEC).is_file():
        return None
    spec, _ = read_spec(folder)
    return Work(spec.macs, spec.params, math.prod(spec.preprocessing["input_size"]) + spec.outputs)


def _find_exported(folder: Path, precision: str | None) -> Path:
    """Return the exported file of that precision in a model folder."""
    path = folder / "export" / f"model.{precision}.onnx"
    if path.is_file():
        return path
    others = sorted(other.name for other in path.parent.glob("model.*.onnx"))
    if others:
        raise CheckpointError(f"{path} is missing, and {', '.join(others)} is there: try another --precision")
    raise CheckpointError(f"{folder} has no {path.relative_to(folder)}: run `edgevit export {folder}` first")


def _verified_sha256(path: Path, *, must_be_listed: bool) -> str:
    """Hash the file; where export.json lists it, it must be the file that was exported."""
    digest = _sha256(path)
    expected = _exported_sha256(path)
    if expected is None and must_be_listed:
        raise CheckpointError(
            f"{path} is not listed in {path.with_name(EXPORT)}: the export is incomplete, export again"
        )
    if expected is not None and expected != digest:
        raise CheckpointError(
            f"{path} is not the file that was exported: its sha256 is {digest[:12]}..., and {EXPORT} says "
            f"{expected[:12]}...; export again"
        )
    return digest


def _exported_sha256(path: Path) -> str | None:
    listed = path.with_name(EXPORT)
    if not listed.is_file():
        return None
    entry = Reader(CheckpointError, mend="export again").json(listed, _Export).files.get(path.name)
    return None if entry is None else entry.sha256


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()
