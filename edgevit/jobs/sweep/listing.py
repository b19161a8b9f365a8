"""List the model folders below a folder by their records, without weights and torch.

Latencies are those of sweeps and of measured budgets; runs of `edgevit bench` are in the report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edgevit.errors import EdgeVitError
from edgevit.jobs.sweep.record import RECORD, Sweep, read_sweep
from edgevit.records.derivation import DerivationRecord
from edgevit.records.model_folder import ExportFolder, ModelFolder
from edgevit.records.names import EXPORT

_Kind = Literal["base", "model", "super-network", "ONNX file", "export", "sweep", "unfinished", "damaged"]
_PARTIAL = ".partial"


@dataclass(frozen=True)
class ListedFolder:
    """One folder. None: not applicable, or not recorded."""

    folder: str  # path relative to the folder that is listed
    kind: _Kind
    method: str | None = None  # all methods that cut the base, in order
    rate: float | None = None  # share of the base's MACs that is removed
    macs: int | None = None
    macs_share: float | None = None  # MACs as a share of the base's
    top1: float | None = None
    images: int | None = None  # number of images on which top1 was measured
    part: str | None = None  # part of the data that these images are from
    latency_ms: float | None = None
    files: int = 0  # number of ONNX files in the folder's export
    engines: int = 0
    note: str | None = None  # why the folder cannot be read, or what to do


def list_folders(root: Path) -> list[ListedFolder]:
    """All folders of models, sweeps and exports below `root`, sorted by path."""
    listed = []
    for folder, sweep in _below(root):
        name = str(folder.relative_to(root)) if folder != root else root.name or "."
        try:
            item = _sweep(folder) if sweep is None and (folder / RECORD).is_file() else _folder(folder)
        except EdgeVitError as error:
            item = ListedFolder("", "damaged", note=str(error))
        listed.append(replace(item if sweep is None else _of_sweep(item, folder, sweep), folder=name))
    return listed


def _below(root: Path) -> Iterator[tuple[Path, Sweep | None]]:
    """Folders to list, each with the sweep that it belongs to."""
    sweeps: dict[Path, Sweep] = {}
    for place, inner, _ in os.walk(root):
        inner.sort()
        folder, files = Path(place), ModelFolder(Path(place))
        if folder.name.endswith(_PARTIAL) or (folder.name == EXPORT and ExportFolder(folder).record_file.is_file()):
            inner.clear()
            yield folder, None
        elif files.is_model or files.is_imported:
            inner.clear()
            yield folder, sweeps.get(folder.parent)
        elif (folder / RECORD).is_file():
            yield folder, None
            try:
                sweeps[folder] = read_sweep(folder)
            except EdgeVitError:
                continue  # `_sweep` says so
        inner[:] = [name for name in inner if not name.startswith(".")]


def _sweep(folder: Path) -> ListedFolder:
    sweep = read_sweep(folder)
    chosen = sweep.chosen()
    picked = f", chosen: {chosen.folder}" if chosen else ""
    return ListedFolder("", "sweep", note=f"{len(sweep.derived)} model{'s' * (len(sweep.derived) != 1)}{picked}")


def _folder(folder: Path) -> ListedFolder:
    if folder.name.endswith(_PARTIAL):
        return ListedFolder("", "unfinished", note="continue with --resume, or remove it")
    if folder.name == EXPORT and not ModelFolder(folder).is_model:
        return ListedFolder("", "export", files=len(ExportFolder(folder).onnx_files()), note="its model is not here")
    files = ModelFolder(folder)
    onnx, engines = len(files.export.onnx_files()), len(files.export.engine_files())
    if files.is_imported:
        files.imported()
        return ListedFolder("", "ONNX file", files=onnx, engines=engines)
    document, record = files.document(), files.derivation()
    item = ListedFolder(
        "", "model" if record else "base", rate=document.rate, macs=document.macs,
        macs_share=document.macs / document.base.macs, files=onnx, engines=engines,
    )  # fmt: skip
    if files.is_supernet:
        net = files.supernet()
        return replace(
            item, kind="super-network", top1=net.curve[0].top1, images=net.data.images.validation, part="validation"
        )
    return item if record is None else _judged(replace(item, method=record.method), record)


def _judged(item: ListedFolder, record: DerivationRecord) -> ListedFolder:
    """Add the accuracy on the test part, or else on the validation part, and the latency of its budget."""
    if (accuracy := record.accuracy.derived) is not None:
        item = replace(item, top1=accuracy.top1, images=accuracy.images, part="test")
    elif (validation := record.validation) is not None:
        item = replace(item, top1=validation.derived / validation.images, images=validation.images, part="validation")
    met = record.met
    return replace(item, latency_ms=float(met.verified.value)) if met is not None and met.quantity == "ms" else item


def _of_sweep(item: ListedFolder, folder: Path, sweep: Sweep) -> ListedFolder:
    """Add the measurements of the sweep, if the folder still holds the same model."""
    point = next((point for point in (*sweep.points, *sweep.ready_made) if point.folder == folder.name), None)
    if point is None or item.kind == "damaged" or not point.is_of(ModelFolder(folder)):
        return item
    latency_ms = point.latency.ms if point.latency is not None else item.latency_ms
    if item.top1 is not None or point.right is None:
        return replace(item, latency_ms=latency_ms)
    return replace(item, top1=point.top1, images=point.images, part=sweep.part, latency_ms=latency_ms)
