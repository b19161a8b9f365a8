"""The state of a training on disk: written as a whole or not at all, and refused if a file was altered."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from edgevit.errors import UnfinishedError
from edgevit.records.belonging import file_fault
from edgevit.records.kinds import RecordKind
from edgevit.records.unfinished import HINT, STATE
from edgevit.records.writing import file_sha256, sync, writing
from edgevit.train.compute import Compute
from edgevit.train.state import reading_state
from edgevit.train.stopping import Best, Meeting
from edgevit.version import written_by

_PROGRESS = "progress.json"


@dataclass(frozen=True)
class TrainingPoint:
    """The progress of a training, without its tensors."""

    step: int
    meeting: Meeting
    best: Best
    highest_lr: float


@dataclass(frozen=True)
class SavedState:
    """progress.json of an unfinished training: its progress, and the hashes of its files."""

    point: TrainingPoint
    files: dict[str, str]  # sha256 of each file, by its path within the state's folder
    edgevit: str


SAVED_KIND = RecordKind("progress", SavedState, STATE)


def save_point(folder: Path, compute: Compute, point: TrainingPoint, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write the state next to the old one and swap them, so that a crash leaves a complete state.

    Args:
        parts: tensors that accelerate does not save, by the name of their file.
    """
    new, old = (folder.with_name(folder.name + end) for end in (".new", ".old"))
    if compute.is_main:
        shutil.rmtree(new, ignore_errors=True)
    compute.wait()
    with writing(folder):
        compute.accelerator.save_state(str(new))
    compute.wait()
    if compute.is_main:
        with writing(folder):
            for name, tensors in parts.items():
                save_file(dict(tensors), new / f"{name}.safetensors")
            files = {str(file.relative_to(new)): file_sha256(file) for file in new.rglob("*") if file.is_file()}
            (new / _PROGRESS).write_text(SAVED_KIND.text(SavedState(point, files, written_by())))
            sync(new)
            shutil.rmtree(old, ignore_errors=True)
            if folder.is_dir():
                folder.rename(old)  # this one remains if the process is killed between the two renames
            new.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
    compute.wait()


def restore(
    folder: Path, compute: Compute, takers: Mapping[str, Callable[[dict[str, Tensor]], None]]
) -> TrainingPoint | None:
    """Load a saved state, if there is one: accelerate's part, and the parts of `takers` by name.

    Raises:
        UnfinishedError: it is damaged, or was altered.
    """
    old = folder.with_name(folder.name + ".old")
    source = old if old.is_dir() and not folder.is_dir() else folder
    if not source.is_dir():
        return None
    saved = SAVED_KIND.read(source / _PROGRESS)
    for name, expected in saved.files.items():
        if not (source / name).is_file() or file_fault(source / name, expected, source / _PROGRESS):
            raise UnfinishedError(f"{source / name} is gone or was altered after it was written; {HINT}")
    with reading_state(source):
        compute.accelerator.load_state(str(source))
        for name, take in takers.items():
            take(load_file(source / f"{name}.safetensors"))
    return saved.point
