"""An export that is up to date: the one that is there where nothing has changed, else a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgevit.errors import ExportError
from edgevit.exporting.importing import imported, settled
from edgevit.exporting.onnx import run
from edgevit.exporting.request import FilesRequest
from edgevit.progress import Progress, Silent
from edgevit.records.belonging import file_fault
from edgevit.records.export import ExportRecord
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import onnx_name
from edgevit.request import as_request
from edgevit.version import written_by

NOT_CHECKED = "accuracy not checked"


def _as_asked(report: ExportRecord, asked: FilesRequest) -> bool:
    """Whether an export with these options would give the same files and no other figures."""
    tolerances, checked = asked.tolerances, report.accuracy
    judged_alike = not asked.accuracy or (
        asked.data is None and any(w.startswith(NOT_CHECKED) for w in report.warnings)
    )
    if checked and asked.accuracy:
        count = min((n for n in (asked.max_images, checked.part_images) if n is not None), default=0)
        judged_alike = (
            checked.part == asked.part
            and (asked.data is None or checked.data in (str(asked.data), str(Path(asked.data).resolve())))
            and checked.images >= count
            and all(checked.files[p].agreement_least >= tolerances.agreement(p) for p in asked.precisions)
        )
    return (
        (report.batch, report.opset) == settled(asked)
        and (report.padded is not None) == asked.pad_heads
        and report.versions.get("edgevit") == written_by()
        and all(report.parity[p].error <= tolerances.error(p) for p in asked.precisions)
        and judged_alike
    )


def _is_whole(report: ExportRecord, precisions: tuple[str, ...]) -> bool:
    return all(onnx_name(p) in report.files and p in report.parity for p in precisions) and all(
        (report.folder / name).is_file() and file_fault(report.folder / name, file.sha256, report.folder) is None
        for name, file in report.files.items()
    )


def current_export(
    model: str | Path | FilesRequest, *, progress: Progress | None = None, **options: Any
) -> ExportRecord:
    """Return the record of the export that is there if it is what `export` would write with these options; else export.

    Raises:
        As `edgevit.export` does.
    """
    asked = imported(as_request(FilesRequest, "model", model, options), progress)
    folder = ModelFolder(asked.model)
    if folder.export.record_file.is_file():
        try:
            report = folder.export_record()
        except ExportError:
            return run(asked, progress)  # of another edgevit or another model, or broken: made anew
        rule = (folder.imported() if folder.is_imported else folder.document()).rejection
        if report.rejection == rule and _is_whole(report, asked.precisions) and _as_asked(report, asked):
            (progress or Silent()).note(f"{folder.export.path} is up to date: reused")
            return report
    return run(asked, progress)
