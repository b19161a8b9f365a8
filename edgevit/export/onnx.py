"""Export a model folder: write `DIR/export/`, check all that can be checked here, and only then let it be seen."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.errors import DataError, OutputError
from edgevit.export.fusion import compiler_installed, count_fused, remark
from edgevit.export.gates import check_accuracy, check_graph, check_parity
from edgevit.export.graph import INPUT, OUTPUT, write_onnx
from edgevit.export.images import Judging, Subject, data_record, open_images, subject_of
from edgevit.export.padding import pad_heads as padded_copy
from edgevit.export.precision import check_range, halved
from edgevit.export.request import ExportRequest, Tolerances
from edgevit.export.session import OnnxModel, find_runtime
from edgevit.folder.export import (
    AccuracyCheck,
    Batch,
    ExportedFile,
    ExportedModel,
    ExportRecord,
    Fusion,
    OutputClass,
    Padding,
    Parity,
    TensorInfo,
)
from edgevit.folder.model import BlockDims
from edgevit.folder.model_folder import ExportFolder, ModelFolder
from edgevit.folder.names import onnx_name
from edgevit.folder.writing import file_sha256, writing
from edgevit.models.checkpoint import Model, load
from edgevit.models.device import find_device
from edgevit.models.families import load_family
from edgevit.progress import Progress, Silent
from edgevit.request import as_request
from edgevit.version import written_by

PARITY_IMAGES = 4
DTYPES = {"fp32": "float32", "fp16": "float16"}


class _Stages:
    """Progress and seconds of each stage."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        with self.progress.stage(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@contextmanager
def _replaced_folder(export: ExportFolder) -> Iterator[ExportFolder]:
    """Give a temporary folder that takes the place of `export` when the block ends well, and vanishes when it does not.

    Engines in the folder stay.

    Raises:
        OutputError: what is there was not written by `export`, or it cannot be written.
    """
    folder = export.path
    if folder.exists() and not export.record_file.is_file():
        raise OutputError(
            f"{folder} exists and holds no {export.record_file.name}, so it is not an earlier export; move it away"
        )
    temporary, earlier = (folder.with_name(f".{folder.name}.{os.getpid()}.{suffix}") for suffix in ("tmp", "old"))
    with writing(folder):
        temporary.mkdir()
        try:
            yield ExportFolder(temporary)
            if folder.exists():
                folder.rename(earlier)
            temporary.rename(folder)
            if (engines := ExportFolder(earlier).engines_folder).exists():
                # They say themselves what they were built from, and took minutes on boards that may be away now.
                engines.rename(export.engines_folder)
        finally:
            if earlier.exists() and not folder.exists():
                earlier.rename(folder)
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(earlier, ignore_errors=True)


@dataclass(frozen=True)
class Source:
    """The model folder that is exported."""

    model: Model
    subject: Subject
    weights_sha256: str  # of model.safetensors

    @property
    def network(self) -> nn.Module:
        return self.model.network

    @property
    def family_name(self) -> str:
        return self.model.spec.family

    @property
    def input_size(self) -> tuple[int, int, int]:
        channels, height, width = self.subject.preprocessing["input_size"]
        return channels, height, width

    def dims(self, network: nn.Module) -> tuple[BlockDims, ...]:
        return tuple(block.dims for block in load_family(self.family_name).read(network))

    def shape_options(self, batch: Batch, opset: int) -> dict[str, Any]:
        return {"input_size": self.input_size, "batch": batch, "opset": opset}

    def metadata(self) -> dict[str, str]:
        """What an application needs to use a file, and `evaluate` to judge it. JSON values, strings as they are."""
        subject, spec = self.subject, self.model.spec
        rule = {} if subject.rejection is None else {"rejection": json.dumps(asdict(subject.rejection))}
        return {
            **rule,
            "class_names": json.dumps(subject.class_names),
            "class_columns": json.dumps(subject.class_columns),
            "preprocessing": json.dumps(subject.preprocessing),
            "split": json.dumps({"seed": subject.seed, "validation_fraction": subject.validation_fraction}),
            "base": spec.timm_name,
            "base_weights_sha256": spec.base.weights_sha256,
            "weights_sha256": self.weights_sha256,
            "edgevit_version": written_by(),
        }


def open_source(folder: Path) -> Source:
    model = load(folder)
    model.network.requires_grad_(False)
    weights_sha256 = ModelFolder(folder).document().weights_sha256
    return Source(model, subject_of(model.spec, data_record(folder)), weights_sha256)


def judging_images(subject: Subject, data: str | Path | None, warnings: list[str], **options: Any) -> Judging | None:
    """The images to judge on; where the model's own cannot be had, say so and go on without."""
    try:
        return open_images(subject, data, **options)
    except DataError as error:
        if data is not None:
            raise
        warnings.append(f"accuracy not checked: {error}")
        return None


def sample_images(judging: Judging | None, input_size: tuple[int, int, int]) -> tuple[Tensor, str]:
    """A few images for parity and ranges: real ones where there are any."""
    if judging is None:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(PARITY_IMAGES, *input_size, generator=generator), "random"
    images, _ = next(iter(judging.split.subset(PARITY_IMAGES).batches(PARITY_IMAGES)))
    return images, judging.data


def _versions() -> dict[str, str]:
    names = ["torch", "timm", "onnx", "onnxscript", "onnxruntime"]
    return {"edgevit": written_by(), **{name: str(import_module(name).__version__) for name in names}}


@dataclass(frozen=True)
class _Written:
    """The files of one export, still in their temporary folder."""

    folder: ExportFolder
    nodes: Mapping[str, dict[str, int]]  # by precision: operators and how often each occurs

    def session(self, precision: str, device: str = "cpu") -> OnnxModel:
        return OnnxModel(self.folder.onnx(precision), device=device)

    def files(self) -> dict[str, ExportedFile]:
        nodes = {onnx_name(precision): counts for precision, counts in self.nodes.items()}
        return {
            path.name: ExportedFile(file_sha256(path), path.stat().st_size, nodes.get(path.name))
            for path in sorted(self.folder.path.iterdir())
        }


def _write_files(
    network: nn.Module,
    folder: ExportFolder,
    precisions: tuple[str, ...],
    stages: _Stages,
    metadata: Mapping[str, str],
    **options: Any,
) -> _Written:
    nodes = {}
    for precision in precisions:
        path = folder.onnx(precision)
        with stages(f"write {precision}"):
            form = halved(network) if precision == "fp16" else network
            write_onnx(form, path, metadata={**metadata, "precision": precision}, **options)
            del form
        with stages("check graphs"):
            nodes[precision] = check_graph(path, options["opset"])
    return _Written(folder, nodes)


def _parity(
    network: nn.Module, written: _Written, images: Tensor, source: str, tolerances: Tolerances
) -> dict[str, Parity]:
    with torch.inference_mode():
        reference = network(images)
    return {
        precision: check_parity(
            precision, reference, written.session(precision).predict, images, source, tolerances.error(precision)
        )
        for precision in written.nodes
    }


def _accuracy(
    network: nn.Module, written: _Written, judging: Judging, tolerances: Tolerances, device: str, **options: Any
) -> AccuracyCheck:
    place = find_device(device)
    network = network.to(place)
    sessions = {precision: written.session(precision, device).predict for precision in written.nodes}
    return check_accuracy(lambda images: network(images.to(place)), sessions, judging, tolerances, **options)


def _fusion(written: _Written, blocks: tuple[BlockDims, ...], warnings: list[str]) -> Fusion | None:
    if "fp16" not in written.nodes:
        return None  # attention in fp32 is never fused
    if not compiler_installed():
        warnings.append("fused attention not counted: TensorRT-RTX is not installed; try `pip install edgevit[rtx]`")
        return None
    path = written.folder.onnx("fp16")
    fusion = count_fused(path, blocks=sum(b.has_attention for b in blocks), expected=sum(b.fusable for b in blocks))
    if text := remark(fusion):
        warnings.append(text)
    return fusion


def _padding(source: Source, padded: nn.Module) -> Padding:
    before, after = source.model.spec.blocks, source.dims(padded)
    return Padding(
        blocks=sum(old != new for old, new in zip(before, after, strict=True)),
        macs_before=source.model.spec.macs,
        macs=load_family(source.family_name).geometry(padded).macs(after),
        widths=tuple(block.qk for block in after),
    )


def _description(source: Source, batch: Batch, precisions: tuple[str, ...]) -> dict[str, Any]:
    """The part of the record that no check contributes to."""
    subject = source.subject
    dtypes = {onnx_name(precision): DTYPES[precision] for precision in precisions}
    first = "batch" if batch == "dynamic" else batch
    named = zip(subject.class_names, subject.class_columns, strict=True)
    return {
        "inputs": (TensorInfo(INPUT, (first, *source.input_size), dtypes),),
        "outputs": (TensorInfo(OUTPUT, (first, subject.outputs), dtypes),),
        "classes": tuple(OutputClass(name, column) for name, column in named),
        "rejection": subject.rejection,
        "preprocessing": subject.preprocessing,
        "model": ExportedModel(source.model.spec.timm_name, source.weights_sha256),
    }


def export(
    model: str | Path | ExportRequest | None = None, *, progress: Progress | None = None, **options: Any
) -> ExportRecord:
    """Write `model.fp32.onnx`, `model.fp16.onnx` and `export.json` into `export/` of a model folder.

    An earlier export is replaced, and only when every check of the new one has passed. Logits are compared with those
    of the model as it was derived, so that padding is checked, too. Accuracy is measured on `data`, or on the images
    that the model was derived from; where these are gone it is left out with a warning.

    Args:
        model: a model folder, or a whole request.
        options: the fields of `ExportRequest`.

    Raises:
        OptionError: also of an option that there is not.
        ExportError: a check failed; the message says which.
        CheckpointError, DataError, OutputError: the model, the images or the disk is at fault.
    """
    return run(as_request(ExportRequest, "model", model, options), progress)


def run(request: ExportRequest, progress: Progress | None = None) -> ExportRecord:
    """Do what is asked; `export` says what is raised."""
    request.check()
    find_device(request.device)
    find_runtime()  # at once: it is needed at the very end
    tolerances, precisions = request.tolerances, request.precisions
    stages, warnings = _Stages(progress or Silent()), list[str]()
    folder = ModelFolder(request.model)
    with stages("load"):
        source = open_source(folder.path)
    judging = None
    if request.accuracy:
        with stages("find images"):
            how = {"part": request.part, "skip_bad_images": request.skip_bad_images, "progress": stages.progress}
            judging = judging_images(source.subject, request.data, warnings, **how)
    images, images_from = sample_images(judging, source.input_size)
    exported = padded_copy(source.network, source.family_name) if request.pad_heads else source.network
    blocks = source.dims(exported)
    checks: dict[str, Any] = {"padded": _padding(source, exported) if request.pad_heads else None, "accuracy": None}
    with stages("check ranges"):
        checks["range"] = check_range(exported, images) if request.fp16 else None
    with _replaced_folder(folder.export) as temporary:
        graph_options = source.shape_options(request.batch, request.opset)
        written = _write_files(exported, temporary, precisions, stages, source.metadata(), **graph_options)
        del exported
        with stages("check parity"):
            checks["parity"] = _parity(source.network, written, images, images_from, tolerances)
        with stages("count fused attention"):
            checks["fusion"] = _fusion(written, blocks, warnings)
        if judging is not None:
            with stages("check accuracy"):
                loading = {"batch_size": request.batch_size, "workers": request.workers, "progress": stages.progress}
                limited = judging.limited(request.max_images)
                checks["accuracy"] = _accuracy(source.network, written, limited, tolerances, request.device, **loading)
        record = ExportRecord(
            folder=folder.export.path,
            files=written.files(),
            batch=request.batch,
            opset=request.opset,
            **_description(source, request.batch, precisions),
            **checks,
            warnings=tuple(warnings),
            versions=_versions(),
            seconds={name: round(seconds, 3) for name, seconds in stages.seconds.items()},
        )
        temporary.write_record(record)
    return record
