"""Small pictures of misclassified images, read from the data of the models on request."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from PIL.Image import Image, Resampling

from edgevit.errors import EdgeVitError
from edgevit.exporting.mistakes import mistakes
from edgevit.progress import Progress
from edgevit.reporting.gather import Evidence

PIXELS = 96  # length of the longer side
_QUALITY = 75  # quality of the JPEG, of 100


@dataclass(frozen=True)
class Wrong:
    """A misclassified validation image (test images must not be looked at), and the predicted class."""

    label: str
    called: str
    sure: float  # probability of the predicted class, among the target classes
    picture: str  # the image as a data URI


def small(image: Image) -> str:
    """Encode an image as a JPEG of at most PIXELS in a data URI; the image is shrunk in place."""
    image.thumbnail((PIXELS, PIXELS), Resampling.LANCZOS)
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def pictures(evidence: Evidence, count: int, progress: Progress) -> dict[str, list[Wrong]]:
    """At most `count` misclassified images of every derived model, by name; unreadable data is listed as skipped."""
    shown = {}
    for model in evidence.models:
        if model.derivation is None or model.document is None:
            continue
        try:
            mistaken = mistakes(model.folder.path, count, progress)
        except EdgeVitError as error:
            evidence.skip(f"images of {model.name}", str(error))
            continue
        shown[model.name] = [
            Wrong(mistake.label, mistake.predicted, mistake.probability, small(mistake.image)) for mistake in mistaken
        ]
    return shown
