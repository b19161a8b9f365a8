"""Small pictures of misclassified images, read from the data of the models on request."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL.Image import Image, Resampling

from edgevit.errors import EdgeVitError
from edgevit.exporting.images import data_record, open_judging, subject_of
from edgevit.network.folder import load
from edgevit.network.output import columns_of
from edgevit.progress import Progress
from edgevit.reporting.gather import Evidence

if TYPE_CHECKING:
    from torch import Tensor

PIXELS = 96  # length of the longer side
_QUALITY = 75  # quality of the JPEG, of 100
_BATCH = 32


@dataclass(frozen=True)
class Mistake:
    """A misclassified validation image (test images must not be looked at), and the predicted class."""

    label: str
    predicted: str
    probability: float  # probability of the predicted class, among the target classes
    picture: str  # the image as a data URI


def small(image: Image) -> str:
    """Encode an image as a JPEG of at most PIXELS in a data URI; the image is shrunk in place."""
    image.thumbnail((PIXELS, PIXELS), Resampling.LANCZOS)
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def mistakes(folder: Path, count: int, progress: Progress) -> list[Mistake]:
    """At most `count` wrongly classified validation images of the model's data, in descending order of probability.

    Raises:
        DataError: the images are missing, or the folder does not state them.
        CheckpointError: the model cannot be read.
    """
    import torch

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
        Mistake(names[split.labels[i]], names[int(predicted[i])], float(probability[i]), small(split.picture(i)))
        for i in sorted(wrong, key=lambda i: -float(probability[i]))[:count]
    ]


def pictures(evidence: Evidence, count: int, progress: Progress) -> dict[str, list[Mistake]]:
    """At most `count` misclassified images of every derived model, by name; unreadable data is listed as skipped."""
    shown = {}
    for model in evidence.models:
        if model.derivation is None or model.document is None:
            continue
        try:
            shown[model.name] = mistakes(model.folder.path, count, progress)
        except EdgeVitError as error:
            evidence.skip(f"images of {model.name}", str(error))
    return shown
