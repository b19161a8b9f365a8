"""Objects of training images follow the changes of the images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from detectors import square, write_annotations
from pycocotools.mask import encode

from edgevit.data.objects import LearntObjects, mask_of
from edgevit.data.request import AUGMENTS, Augment
from edgevit.data.sources.coco import CocoImages, CocoObject
from edgevit.data.transforms import evaluation_transform
from edgevit.errors import DataError

PLAIN = {"input_size": (3, 60, 80), "interpolation": "bilinear", "mean": (0.0,) * 3, "std": (1.0,) * 3}


def source_of(root: Path) -> CocoImages:
    """Black pictures of 80 x 60 px, one of them with white squares where its objects are."""
    objects = [square(0, 1, 10, 20, 16), square(0, 3, 50, 5, 30), square(0, 2, 0, 40, 10, iscrowd=1)]
    source = CocoImages(write_annotations(root / "data", objects, images=2))
    first = source.references("train", "data")[0]
    picture = source.read(first)
    for left, top, side in ((10, 20, 16), (50, 5, 30)):
        picture.paste((255, 255, 255), (left, top, left + side, top + side))
    picture.save(str(first))
    return source


@pytest.mark.parametrize("augment", AUGMENTS)
def test_boxes_and_masks_are_where_the_objects_are(tmp_path: Path, augment: Augment) -> None:
    source = source_of(tmp_path)
    learnt = LearntObjects({1: 1, 2: 2, 3: 3}, masks=True)
    order = [[(0, seed), (1, seed)] for seed in range(8)]
    moved = set()
    for images, (target, empty) in learnt.batches(source, source.references("train", "data"), PLAIN, order, augment, 0):
        assert images.shape == (2, 3, 60, 80) and images.max() == 1 and type(images) is torch.Tensor
        assert empty["boxes"].shape == (0, 4) and empty["labels"].shape == (0,) and empty["masks"].shape == (0, 60, 80)
        assert set(target["labels"].tolist()) <= {1, 3} and len(target["boxes"]) >= 1
        white = images[0, 0] > 0.5
        found = torch.zeros_like(white)
        for left, top, right, bottom in target["boxes"].round().int().tolist():
            found[top:bottom, left:right] = True
        for marked in (found, target["masks"].any(0)):
            assert (marked & white).sum() >= 0.8 * (marked | white).sum()
        moved.add(tuple(target["boxes"].flatten().round().tolist()))
    assert len(moved) == (1 if augment == "none" else 8)


def test_images_of_a_detector_of_several_sizes_are_prepared_as_without_objects(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    references = source.references("train", "data")
    wide = {**PLAIN, "mean": (0.4, 0.5, 0.6), "input_size": (3, 48, 48), "crop_mode": "corner"}
    ((images, (target, _)),) = LearntObjects({1: 1, 3: 3}, masks=False).batches(
        source, references, wide, [[(0, 0), (1, 0)]], "none", 0
    )
    expected = torch.stack([evaluation_transform(wide)(source.read(reference)) for reference in references])
    torch.testing.assert_close(images, expected, rtol=0, atol=0.5001 / 255)
    torch.testing.assert_close(target["boxes"], 0.6 * torch.tensor([[10.0, 20, 26, 36], [50, 5, 80, 35]]))


def test_squashed_images_are_prepared_as_without_objects(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    references = source.references("train", "data")
    for how in ("bilinear", "bicubic"):
        small = {**PLAIN, "interpolation": how, "input_size": (3, 48, 48), "crop_mode": "squash", "crop_pct": 1.0}
        ((images, (target, _)),) = LearntObjects({1: 1, 3: 3}, masks=False).batches(
            source, references, small, [[(0, 0), (1, 0)]], "none", 0
        )
        expected = torch.stack([evaluation_transform(small)(source.read(reference)) for reference in references])
        torch.testing.assert_close(images, expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(target["boxes"], torch.tensor([[6.0, 16, 15.6, 28.8], [30, 4, 48, 28]]))


def test_the_same_seeds_give_the_same_objects(tmp_path: Path) -> None:
    source, learnt = source_of(tmp_path), LearntObjects({1: 5}, masks=False)
    references = source.references("train", "data")
    (one,), (other,) = (learnt.batches(source, references, PLAIN, [[(0, 7)]], "flip", 0) for _ in range(2))
    torch.testing.assert_close(one, other)
    assert one[1][0]["labels"].tolist() == [5] and {*one[1][0]} == {"boxes", "labels"}


def test_keys_change_with_what_is_learnt(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    references = source.references("train", "data")
    hashes = {
        LearntObjects(label_of, masks).sha256(source, references[:count])
        for label_of, masks, count in (({1: 1}, False, 2), ({1: 1}, True, 2), ({1: 2}, False, 2), ({1: 1}, False, 1))
    }
    assert len(hashes) == 4


@pytest.mark.parametrize(
    "mask",
    [
        [[1, 1, 3, 1, 3, 2, 1, 2]],
        {"size": [4, 5], "counts": [5, 1, 3, 1, 10]},
        None,
    ],
    ids=["polygons", "run lengths", "compressed"],
)
def test_masks_of_polygons_and_run_lengths(mask: object) -> None:
    expected = torch.zeros(4, 5, dtype=torch.uint8)
    expected[1, 1:3] = 1
    compressed = encode(np.asfortranarray(expected.numpy()))
    mask = mask or {**compressed, "counts": compressed["counts"].decode()}
    assert torch.equal(mask_of(CocoObject(1, (1, 1, 2, 1), mask), 4, 5), expected)


@pytest.mark.parametrize("mask", [{"size": [4, 5]}, "none"])
def test_a_mask_that_cannot_be_read_is_refused(mask: object) -> None:
    with pytest.raises(DataError, match="an object of category 7 has a mask that is neither polygons nor run lengths"):
        mask_of(CocoObject(7, (1, 1, 2, 1), mask), 4, 5)
