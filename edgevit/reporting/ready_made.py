"""Ready-made ONNX files beside the models of a report, judged on the same images.

The judgement is written to the folder of the imported file. A later report reads it, without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgevit.errors import OptionError
from edgevit.progress import Progress
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import file_sha256
from edgevit.reporting.axes import task_of
from edgevit.reporting.gather import Evidence


def judge_files(files: Sequence[Path], evidence: Evidence, progress: Progress) -> list[Path]:
    """Import and judge each file, unless that is done; return their folders.

    The folder is one of the evidence that the same file was imported to, or the one where `edgevit export` writes it.

    Raises:
        OptionError: the models were judged on no images of classes, or on several sets of them.
        EdgeVitError: as `edgevit.exporting.ready_made.judge_ready_made` raises.
    """
    judged = {
        task_of(m).images_key: (m.derivation.data, m.document.preprocessing)
        for m in evidence.models
        if m.derivation is not None and m.derivation.data is not None and m.document is not None and m.class_names
    }
    if len(judged) > 1:
        raise OptionError(
            f"the models were judged on {len(judged)} sets of images, and --beside needs one; give folders of one task"
        )
    if not judged:
        raise OptionError("no model here says on which images it was judged, as --beside needs; derive one with --data")
    ((data, preprocessing),) = judged.values()
    imported = {model.imported.file_sha256: model.folder for model in evidence.models if model.imported}
    folders = []
    for file in files:
        sha256 = file_sha256(file)
        folder = imported.get(sha256, ModelFolder(file.with_suffix("")))
        folders.append(folder.path)
        document = folder.imported() if folder.is_imported else None
        if document is not None and document.file_sha256 == sha256 and document.is_judged_on(data):
            continue
        from edgevit.exporting.ready_made import judge_ready_made

        judge_ready_made(file, folder, data, preprocessing, progress)
    return folders
