"""Which images of a part are classified correctly: one bit per image, to compare two models image by image."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from edgevit.records.class_names import ClassName
from edgevit.records.model import Index, Size


@dataclass(frozen=True)
class RightImages:
    """Which images of a part a model classifies correctly, in order; the fingerprint of the data identifies them."""

    images: Size
    bits: str  # base64 of the bits in order of the images, padded with zeros to whole bytes
    # Number of images of each class; those of one class follow one another, in this order. None: not recorded.
    classes: dict[ClassName, Index] | None = None

    def __post_init__(self) -> None:
        try:
            content = base64.b64decode(self.bits, validate=True)
        except (ValueError, binascii.Error):
            raise ValueError("bits are not base64") from None
        spare = -self.images % 8
        if len(content) != (self.images + spare) // 8 or int.from_bytes(content, "big") % 2**spare:
            raise ValueError(f"bits are not of {self.images} images")
        if self.classes is not None and sum(self.classes.values()) != self.images:
            raise ValueError(f"classes have {sum(self.classes.values())} images, and there are {self.images}")

    @classmethod
    def of(cls, right: Iterable[bool], classes: Mapping[str, int] | None = None) -> RightImages:
        """Pack a flag for each image, in order of the classes where their numbers of images are given."""
        flags = "".join("1" if flag else "0" for flag in right)
        images, spare = len(flags), -len(flags) % 8
        content = int(flags + "0" * spare, 2).to_bytes((images + spare) // 8, "big")
        return cls(images, base64.b64encode(content).decode(), None if classes is None else dict(classes))

    @cached_property
    def mask(self) -> int:
        """The bits of the images as one number."""
        return int.from_bytes(base64.b64decode(self.bits), "big")

    def class_masks(self) -> Iterator[tuple[str, int]]:
        """Yield the name of each class, and a number whose bits are those of its images."""
        position = self.images + -self.images % 8
        for name, images in (self.classes or {}).items():
            position -= images
            yield name, (2**images - 1) << position

    def flags(self) -> list[bool]:
        """Whether each image is classified correctly."""
        return [bit == "1" for bit in f"{self.mask:0{self.images + -self.images % 8}b}"[: self.images]]

    @property
    def right(self) -> int:
        """The number of images that are classified correctly."""
        return self.mask.bit_count()


@dataclass(frozen=True)
class PartAnswers:
    """Which images of one part the base and the model classify correctly among the target classes."""

    base_restricted: RightImages
    # Which images the model classifies correctly; None: the derivation is unfinished.
    derived: RightImages | None = None
    # Which images the fine-tuned base classifies correctly; None: it was not fine-tuned.
    base_finetuned: RightImages | None = None
