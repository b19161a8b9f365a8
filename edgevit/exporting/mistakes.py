"""The images that a model gets wrong, to be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL.Image import Image
from torch import Tensor

from edgevit.exporting.images import data_record, open_judging, subject_of
from edgevit.network.checkpoint import load
from edgevit.progress import Progress

BATCH = 32


@dataclass(frozen=True)
class Mistake:
    """One image, and what the model takes it for."""

    image: Image  # RGB, as it is in the data
    label: str
    called: str
    sure: float  # the probability of that, among the target classes


def mistakes(folder: Path, count: int, progress: Progress, part: str = "validation") -> list[Mistake]:
    """The images of its own data that a derived model gets wrong, the surest first, at most `count`.

    Raises:
        DataError: the images are gone, or the folder does not say which they are.
        CheckpointError: the model cannot be read.
    """
    model = load(folder)
    judging = open_judging(subject_of(model.spec, data_record(folder)), None, part=part, progress=progress)
    split, names = judging.split, judging.class_names
    found: list[Tensor] = []
    with progress.stage(f"images of {folder.name}", len(split), "image") as stage, torch.inference_mode():
        for images, _ in split.batches(BATCH):
            found.append(model(images)[:, list(judging.columns)].softmax(1))
            stage.update(sum(map(len, found)))
    sure, called = torch.cat(found).max(1)
    wrong = (called != torch.as_tensor(split.labels)).nonzero().flatten().tolist()
    return [
        Mistake(split.picture(i), names[split.labels[i]], names[int(called[i])], float(sure[i]))
        for i in sorted(wrong, key=lambda i: -float(sure[i]))[:count]
    ]
