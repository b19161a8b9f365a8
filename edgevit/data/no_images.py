"""A task without images, for methods that need only its classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from edgevit.data.sources import Part, Reference
from edgevit.data.task import Split, Task
from edgevit.records.model import TargetClass
from edgevit.records.reading import AS_STORED, Reading


class _Nothing:
    """A source of no images."""

    class_names: Sequence[str] = ()
    parts: tuple[Part, ...] = ("train", "validation", "test")
    files = False

    def references(self, part: Part, class_name: str) -> list[Reference]:
        return []

    def read(self, reference: Reference, reading: Reading = AS_STORED) -> Image.Image:
        raise AssertionError(f"image {reference} is in no list")


def without_images(classes: Sequence[TargetClass], preprocessing: Mapping[str, Any]) -> Task:
    """Make a task of these classes, whose three parts are empty."""
    empty = Split(_Nothing(), (), (), preprocessing)
    return Task(tuple(classes), empty, empty, empty, {})
