"""Additional files of an export for boards that need them: an older operator set, or some modules in fp32.

They are written to any folder, with the checks of an export, and `keep` adds them to the export.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from edgevit.exporting.gates import check_parity
from edgevit.exporting.images import Judging
from edgevit.exporting.onnx import sample_images, write_file, write_int8_in_half
from edgevit.exporting.request import Tolerances
from edgevit.exporting.session import OnnxModel
from edgevit.exporting.source import Form, Source
from edgevit.records.export import ExportedFile, ExportRecord, Parity, TensorInfo
from edgevit.records.model_folder import ExportFolder
from edgevit.records.names import onnx_name
from edgevit.records.precisions import INT8, PRECISIONS
from edgevit.records.writing import copy_whole, file_sha256, writing


@dataclass(frozen=True)
class Variant:
    """An additional form of the model."""

    label: str  # what distinguishes the file's name, e.g. "fp32.opset17", "fp16.norms32" or "int8.fp16"
    precision: str  # precision of images, logits and all modules but `fp32_modules`
    opset: int
    fp32_modules: tuple[str, ...] = ()  # names of the modules of an fp16 file that are in fp32

    @property
    def file_name(self) -> str:
        return onnx_name(self.label)


@dataclass(frozen=True)
class WrittenVariant:
    """The file of a variant, which has passed its checks."""

    variant: Variant
    path: Path
    nodes: dict[str, int]
    parity: Parity

    @property
    def files(self) -> list[Path]:
        """The file, and its external file of weights, if any."""
        weights = self.path.with_name(self.path.name + ".data")
        return [self.path, weights] if weights.is_file() else [self.path]


class Exported:
    """An export, its source, and methods to add variants."""

    def __init__(self, report: ExportRecord, source: Source, judging: Judging | None, tolerances: Tolerances) -> None:
        """Compare variants on the images of `judging`, or on random ones."""
        self.report, self.source, self.tolerances = report, source, tolerances
        # With padded heads, files are of the padded model, and are compared with the original.
        self.written_of = source if report.padded is None else source.padded()[0]
        self.images, self.images_from = sample_images(judging, source)

    def write(self, variant: Variant, folder: Path) -> WrittenVariant:
        """Write a variant to a folder and check it.

        Raises:
            ExportError: a check failed.
            OutputError: it cannot be written.
        """
        path = folder / variant.file_name
        form = Form(variant.precision, self.report.batch, variant.opset, variant.fp32_modules)
        quantised = self.report.folder / onnx_name(INT8.name)
        with writing(path):
            if variant.precision == INT8.name and self.report.reference != INT8.name:
                nodes = write_int8_in_half(self.written_of, quantised, path, form)
            else:
                nodes = write_file(self.written_of, path, form)
        with torch.inference_mode():
            reference = self.source.predictor("cpu")(self.images)
        tolerance = self.tolerances.error(variant.precision)
        output, predict = self.source.subject.output, OnnxModel(path).predict
        parity = check_parity(output, variant.precision, reference, predict, self.images, self.images_from, tolerance)
        return WrittenVariant(variant, path, nodes, parity)

    def keep(self, written: WrittenVariant) -> None:
        """Add the file of a variant to the export and to export.json."""
        folder, name = self.report.folder, written.variant.file_name
        report = ExportFolder(folder).record()  # read again, as builds for other boards may have added files
        files = dict(report.files)
        with writing(folder):
            for path in reversed(written.files):
                copy_whole(path, folder / path.name)
                nodes = written.nodes if path == written.path else None
                files[path.name] = ExportedFile(file_sha256(path), path.stat().st_size, nodes)
        dtype = PRECISIONS[written.variant.precision].dtype

        def with_dtype(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
            return tuple(replace(tensor, dtypes={**tensor.dtypes, name: dtype}) for tensor in tensors)

        self.report = replace(
            report,
            files=files,
            inputs=with_dtype(report.inputs),
            outputs=with_dtype(report.outputs),
            parity={**report.parity, written.variant.label: written.parity},
        )
        ExportFolder(folder).write_record(self.report)
