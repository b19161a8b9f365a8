"""The record of an engine, a JSON file in the same folder: `export/engines/<fingerprint>/<key>.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgevit.errors import EngineError
from edgevit.records.belonging import file_fault
from edgevit.records.class_names import ClassName
from edgevit.records.derivation import DetectionRecord, Share
from edgevit.records.documents import Reader
from edgevit.records.kinds import PLACE, Place, RecordKind
from edgevit.records.model import Index, Sha256
from edgevit.records.writing import write_whole, writing

READER = Reader(EngineError, hint="build the engine again with edgevit export ... --trt --rebuild")


@dataclass(frozen=True)
class EngineBoard:
    """The board that an engine was built on. None: not reported."""

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
    """The ONNX file in export/ that an engine was built from."""

    name: str
    sha256: Sha256


@dataclass(frozen=True)
class EngineClassAccuracy:
    """Shares of the images of one class that are classified correctly."""

    images: Index
    host: Share  # share that is right in fp32 on the host
    board: Share  # share that is right by the engine on the board


@dataclass(frozen=True)
class EngineAccuracy:
    """Agreement of an engine with ONNX Runtime in fp32 on the host, and, if it gives logits, the accuracy of both."""

    data: str
    part: str
    images: Index
    images_sha256: Sha256
    host: Share | None  # share of images classified correctly in fp32 on the host; None: the outputs are not logits
    board: Share | None  # share of images classified correctly by the engine; None: the outputs are not logits
    agreement: Share  # mean score of the engine with the fp32 answers as targets
    worst_class: ClassName | None  # name of the class with the largest loss; None: the outputs have no classes
    per_class: dict[ClassName, EngineClassAccuracy]
    # What a detector finds with its pyramid in fp32 on the host, and on the board; None: no detector, no annotations.
    host_detections: DetectionRecord | None = None
    board_detections: DetectionRecord | None = None

    def __post_init__(self) -> None:
        if self.worst_class is not None and self.worst_class not in self.per_class:
            raise ValueError(f"worst_class is {self.worst_class!r}, which is not in per_class")


@dataclass(frozen=True)
class EngineAttempt:
    """One build, and the reason why its engine was rejected."""

    precision_level: str
    seconds: float
    failure: str | None


@dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # sizes along the axes; -1: dynamic


@dataclass(frozen=True)
class TimingCacheUse:
    """TensorRT's cache of kernel times on the board."""

    path: str
    bytes_before: int  # size before the build; 0: this TensorRT had no cache yet
    bytes_after: int


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """An engine: its board, its source and its checks. None: not measured."""

    path: Place = field(metadata=PLACE)
    file: str
    sha256: Sha256
    bytes: int
    created: str  # time of the build as ISO 8601, UTC
    key: Sha256  # hash of all that determines the build; the file is named by its first digits
    fingerprint: str  # fingerprint of the board
    board: EngineBoard
    weights_sha256: Sha256  # hash of the model folder's weights
    onnx: OnnxSource
    precision: str  # name of the precision's row in the table of precisions, or MIXED
    precision_level: str  # precision of the modules, in words
    fp32_modules: tuple[str, ...]
    batches: tuple[int, int, int]  # smallest batch size, the one for which kernels are chosen, and the largest
    strongly_typed: bool
    build_seconds: float
    workspace_bytes: int | None
    optimization_level: int | None  # TensorRT's builder optimization level; None: its default
    timing_cache: TimingCacheUse | None
    device_memory_bytes: int | None  # memory for activations of one execution context
    fused: int | None  # number of attentions that run as one kernel, by the engine's layer list; None: unknown
    blocks: int  # number of blocks with an attention
    fused_expected: int | None  # number of attentions that this compiler should fuse; None: unknown for it
    accuracy: EngineAccuracy | None
    attempts: tuple[EngineAttempt, ...]
    inputs: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]
    warnings: tuple[str, ...]
    edgevit: str  # version of edgevit that built the engine

    @property
    def layers_path(self) -> Path:
        return self.path.with_suffix(LAYERS)


LAYERS = ".layers.json"
# Schema 1 also had the fusion by TensorRT-RTX, which export.json states.
ENGINE_KIND = RecordKind("engine", EngineRecord, READER, schema=2)


def key_of(options: Mapping[str, Any]) -> str:
    """Hash all that determines a build."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()


def read_engine(engine: Path) -> EngineRecord:
    """Read the record of an engine.

    Raises:
        EngineError: it is missing, damaged or of another schema.
    """
    return ENGINE_KIND.read(engine.with_suffix(".json"), path=engine)


def stored_engine(engine: Path, key: str) -> EngineRecord | None:
    """Read the record of an engine if the engine exists unaltered and was built with this key.

    Raises:
        EngineError: its record cannot be read.
    """
    if not (engine.is_file() and engine.with_suffix(".json").is_file()):
        return None
    record = read_engine(engine)
    return record if record.key == key and file_fault(engine, record.sha256, engine) is None else None


def store_engine(fetched: Path, record: EngineRecord, layers: Sequence[Any]) -> None:
    """Move an engine to its place and write its layers and, last, its record, without which it does not count.

    Raises:
        OutputError: it cannot be written.
    """
    record_file = record.path.with_suffix(".json")
    with writing(record.path):
        record_file.unlink(missing_ok=True)
        fetched.replace(record.path)
        write_whole(record.layers_path, json.dumps(layers, indent=1))
        write_whole(record_file, ENGINE_KIND.text(record))
