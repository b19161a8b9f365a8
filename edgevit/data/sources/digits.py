"""scikit-learn's digits: 1797 grey images of 8 x 8 pixels in ten classes, without a download."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from PIL import Image

from edgevit.data.sources import Part, Reference
from edgevit.records.reading import AS_STORED, Reading


@lru_cache  # it takes a third of a second
def _read() -> tuple[Any, Any]:
    """Read pixels, scaled from 0 to 16 to bytes [N, 8, 8], and labels [N]."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), labels


class Digits:
    class_names = tuple(str(digit) for digit in range(10))
    parts: tuple[Part, ...] = ("train",)
    files = False

    def __init__(self) -> None:
        self.images, self.labels = _read()

    def references(self, part: Part, class_name: str) -> list[Reference]:
        return [i for i, label in enumerate(self.labels) if label == int(class_name)]

    def read(self, reference: Reference, reading: Reading = AS_STORED) -> Image.Image:
        return Image.fromarray(self.images[int(reference)]).convert("RGB")


def matches(data: str) -> bool:
    return data == "digits"


def class_names(data: str) -> tuple[str, ...]:
    return Digits.class_names


@lru_cache
def open_source(data: str) -> Digits:
    return Digits()
