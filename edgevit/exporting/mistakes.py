"""Images that a model classifies wrongly, to look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL.Image import Image
from torch import Tensor

from edgevit.exporting.images import data_record, open_judging, subject_of
from edgevit.network.folder import load
from edgevit.network.output import columns_of
from edgevit.progress import Progress

_BATCH = 32


@dataclass(frozen=True)
class Mistake:
    """A wrongly classified image."""

    image: Image  # RGB image as it is in the data
    label: str
    predicted: str
    probability: float  # probability of the predicted class, among the target classes


def mistakes(folder: Path, count: int, progress: Progress) -> list[Mistake]:
    """At most `count` wrongly classified validation images of the model's data, in descending order of probability.

    Raises:
        DataError: the images are missing, or the folder does not state them.
        CheckpointError: the model cannot be read.
    """
    model = load(folder)
    judging = open_judging(subject_of(model.spec, data_record(folder)), None, part="validation", progress=progress)
    split, names = judging.split, judging.class_names
    columns = list(columns_of(judging.output))
    batches: list[Tensor] = []
    with progress.stage(f"images of {folder.name}", len(split), "image") as stage, torch.inference_mode():
        for images, _ in split.batches(_BATCH):
            batches.append(model(images)[:, columns].softmax(1))
            stage.update(sum(map(len, batches)))
    probability, predicted = torch.cat(batches).max(1)
    wrong = (predicted != torch.as_tensor(split.labels)).nonzero().flatten().tolist()
    return [
        Mistake(split.picture(i), names[split.labels[i]], names[int(predicted[i])], float(probability[i]))
        for i in sorted(wrong, key=lambda i: -float(probability[i]))[:count]
    ]
