"""Images with objects, in the format of COCO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from detectors import square, write_annotations

from benchmarks import scenes
from edgevit.data.sources import class_names, open_images, open_pictures, open_source
from edgevit.data.sources.coco import CocoImages, CocoObject
from edgevit.errors import DataError, EdgeVitError


def test_one_file_lists_images_objects_and_regions_of_many(tmp_path: Path) -> None:
    flat, broken = square(0, 1, 1, 2, 10), square(0, 1, 0, 0, 10)
    flat["bbox"][3], broken["bbox"][2] = 0, float("nan")
    objects = [square(1, 2, 5, 5, 20), square(1, 1, 3, 4, 9, iscrowd=1, segmentation=None), flat, broken]
    source = open_pictures(write_annotations(tmp_path / "data", objects, images=3))
    assert isinstance(source, CocoImages) and [*source.parts] == ["train"] and source.dropped == 2
    assert source.categories == {1: "red", 2: "green", 3: "blue"}
    first, second, third = source.references("train", "data")
    assert source.objects(first) == source.objects(third) == ()
    whole, many = source.objects(second)
    assert whole.box == (5, 5, 20, 20) and whole.mask and not whole.crowd and many.crowd
    assert many == CocoObject(1, (3, 4, 9, 9), None, True) and source.read(second).size == (80, 60)
    assert source.chosen("blue,1") == {3: "blue", 1: "red"} and len(source.chosen(None)) == 3


def test_parts_are_those_of_the_files(tmp_path: Path) -> None:
    scenes.render(tmp_path / "coco", train=3, val=2, size=32)
    for file, name in (("train", "train2017"), ("val", "val2017")):
        (tmp_path / f"coco/annotations/instances_{file}.json").rename(
            tmp_path / f"coco/annotations/instances_{name}.json"
        )
        (tmp_path / f"coco/images/{file}").rename(tmp_path / f"coco/{name}")
    source = open_pictures(tmp_path / "coco")
    counts = {part: len(source.references(part, "coco")) for part in source.parts}
    assert counts == {"train": 3, "test": 2}
    assert "val2017" in str(source.references("test", "coco")[0]) and len(open_images(tmp_path).class_names) == 1


def rewritten(root: Path, **changes: Any) -> Path:
    file = root / "instances.json"
    content = json.loads(file.read_text())
    for key, change in changes.items():
        content[key] = change(content[key])
    file.write_text(json.dumps(content))
    return root


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": lambda v: [*v, {"id": 9, "file_name": "gone.png"}]}, r"3 images, and 1 .* missing, such as .*gone"),
        ({"categories": lambda v: v[:1]}, r"has an annotation of category 2 in 000\.png, and lists 1;"),
        ({"annotations": lambda v: [{**v[0], "image_id": 7}]}, "an annotation of image 7, which it does not list"),
        ({"annotations": lambda v: [{**v[0], "bbox": [1, 2]}]}, "is not in COCO's format"),
        ({"images": lambda v: [{"id": 1}]}, "has an entry without 'file_name'"),
        ({"images": lambda v: []}, "lists no images"),
        ({"images": lambda v: [*v, v[0]]}, "lists an image or a category twice"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(tmp_path: Path, changes: Any, message: str) -> None:
    root = rewritten(write_annotations(tmp_path / "data", [square(0, 2, 5, 5, 20)], images=2), **changes)
    with pytest.raises(DataError, match=message) as caught:
        open_pictures(root)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_names_of_files_that_say_no_parts_and_unknown_classes_are_refused(tmp_path: Path) -> None:
    scenes.render(tmp_path, train=1, val=1, size=32)
    source = CocoImages(tmp_path)
    with pytest.raises(EdgeVitError, match="no class 'hexagon'"):
        source.chosen(["disc", "hexagon"])
    (tmp_path / "annotations/instances_val.json").rename(tmp_path / "annotations/instances_more.json")
    with pytest.raises(DataError, match=r"instances_more\.json is of no part; name the files instances_train\.json"):
        open_pictures(tmp_path)


def test_images_with_boxes_are_not_sorted_by_class(tmp_path: Path) -> None:
    root = write_annotations(tmp_path / "data", [], images=1)
    for function in (class_names, open_source):
        with pytest.raises(DataError, match="has boxes of objects, and no class of an image: give --output boxes"):
            function(root)
