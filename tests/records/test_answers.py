"""Which images are right, as bits."""

from __future__ import annotations

import random

import pytest

from edgevit.records.answers import RightImages


def test_bits_are_those_of_the_images_in_their_order() -> None:
    assert RightImages.of([True] * 8 + [False] * 7 + [True]) == RightImages(16, "/wE=")
    draw = random.Random(0)
    for images in (1, 7, 8, 9, 300):
        flags = [draw.random() < 0.8 for _ in range(images)]
        packed = RightImages.of(flags)
        assert (packed.images, packed.right, packed.flags()) == (images, sum(flags), flags)


def test_the_images_of_a_class_follow_those_of_the_classes_before_it() -> None:
    flags = [True, False, True, True, False, True, True, True, False, False]
    packed = RightImages.of(flags, {"a": 3, "b": 0, "c": 7})
    assert [(name, (packed.mask & mask).bit_count()) for name, mask in packed.class_masks()] == [
        ("a", 2), ("b", 0), ("c", 4),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="classes have 9 images, and there are 10"):
        RightImages.of(flags, {"a": 3, "c": 6})


@pytest.mark.parametrize(("images", "bits"), [(16, "/w=="), (9, "/8E="), (8, "?"), (8, "//8=")])
def test_bits_of_other_images_are_refused(images: int, bits: str) -> None:
    with pytest.raises(ValueError, match="bits are not"):
        RightImages(images, bits)
