"""Reuse an export that is up to date, or export again."""

from __future__ import annotations

from pathlib import Path

from edgevit.errors import ExportError
from edgevit.exporting.imported.importing import batch_and_opset, imported
from edgevit.exporting.onnx import export_files
from edgevit.exporting.request import FilesRequest
from edgevit.progress import Progress, Silent
from edgevit.records.belonging import file_fault
from edgevit.records.export import ExportRecord
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import onnx_name
from edgevit.version import written_by

_NOT_CHECKED = "accuracy not checked"


def _matches(report: ExportRecord, request: FilesRequest) -> bool:
    """Whether an export with these options would give the same files and checks."""
    tolerances, checked = request.tolerances, report.accuracy
    same_accuracy = not request.accuracy or (
        request.data is None and any(w.startswith(_NOT_CHECKED) for w in report.warnings)
    )
    if checked and request.accuracy:
        count = min((n for n in (request.max_images, checked.part_images) if n is not None), default=0)
        same_accuracy = (
            checked.part == request.part
            and (request.data is None or checked.data in (str(request.data), str(Path(request.data).resolve())))
            and checked.images >= count
            and all(checked.files[p].agreement_least >= tolerances.agreement(p) for p in request.precisions)
        )
    quantisation, calibration = report.quantisation, request.calibration
    if quantisation is not None and (quantisation.method, quantisation.most_images) != (
        calibration.method,
        calibration.images,
    ):
        return False
    return (
        (report.batch, report.opset) == batch_and_opset(request)
        and (report.padded is not None) == request.pad_heads
        and (report.whole is not None or not request.whole)
        and report.versions.get("edgevit") == written_by()
        and all(report.parity[p].error <= tolerances.error(p) for p in request.precisions)
        and same_accuracy
    )


def _is_whole(report: ExportRecord, precisions: tuple[str, ...]) -> bool:
    return all(onnx_name(p) in report.files and p in report.parity for p in precisions) and all(
        (report.folder / name).is_file() and file_fault(report.folder / name, file.sha256, report.folder) is None
        for name, file in report.files.items()
    )


def current_export(request: FilesRequest, progress: Progress | None = None) -> ExportRecord:
    """Return the record of an existing export if it equals a new one of the request; otherwise export.

    Raises:
        As `edgevit.export` does.
    """
    request = imported(request, progress)
    folder = ModelFolder(request.model)
    if folder.export.record_file.is_file():
        try:
            report = folder.export_record()
        except ExportError:
            return export_files(request, progress)  # damaged, of another version or of another model
        rule = (folder.imported() if folder.is_imported else folder.document()).rejection
        if report.rejection == rule and _is_whole(report, request.precisions) and _matches(report, request):
            (progress or Silent()).note(f"{folder.export.path} is up to date: reused")
            return report
    return export_files(request, progress)
