"""Images that models get wrong, made small enough for a page: read from their own data, and only where it is asked."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from PIL.Image import Image, Resampling

from edgevit.errors import EdgeVitError
from edgevit.exporting.mistakes import mistakes
from edgevit.progress import Progress
from edgevit.reporting.gather import Evidence

PIXELS = 96  # of the longer side
QUALITY = 75  # of a JPEG


@dataclass(frozen=True)
class Wrong:
    """One validation image (whoever looks at test images learns from them), and what the model takes it for."""

    label: str
    called: str
    sure: float  # the probability of that, among the target classes
    picture: str  # a data URI


def small(image: Image) -> str:
    """A JPEG of at most PIXELS, as a data URI; the image becomes as small itself."""
    image.thumbnail((PIXELS, PIXELS), Resampling.LANCZOS)
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def pictures(evidence: Evidence, count: int, progress: Progress) -> dict[str, list[Wrong]]:
    """Of every derived model, by its name, at most `count`; of one whose images cannot be had, it is noted why."""
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
            Wrong(mistake.label, mistake.called, mistake.sure, small(mistake.image)) for mistake in mistaken
        ]
    return shown
