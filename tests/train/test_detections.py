"""Average precision by COCO's rules, of detectors whose answers are known."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from detectors import opened, square, write_annotations, write_detectors
from recorded_progress import RecordedProgress
from torch import nn

from edgevit.data.sources.coco import CocoImages
from edgevit.data.task import Split
from edgevit.errors import DataError, ModelError, OptionError, UnsupportedModelError
from edgevit.network.detector import Pyramid
from edgevit.progress import Silent
from edgevit.train.detections import Findings, check_objects, find_objects, label_categories

NAMES = ("red", "green", "blue")


class Answering(nn.Module):
    """A detector that gives these answers, image by image: (label, left, top, side, score)."""

    def __init__(self, answers: list[list[tuple[int, int, int, int, float]]], *, masks: bool = False) -> None:
        super().__init__()
        self.answers, self.masks = iter(answers), masks
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        return [self._of_image(image, next(self.answers)) for image in images]

    def _of_image(self, image: torch.Tensor, answers: list[Any]) -> dict[str, torch.Tensor]:
        detections = {
            "boxes": torch.tensor([[x, y, x + side, y + side] for _, x, y, side, _ in answers]).float().reshape(-1, 4),
            "labels": torch.tensor([label for label, *_ in answers], dtype=torch.int64),
            "scores": torch.tensor([score for *_, score in answers]),
        }
        if self.masks:
            masks = torch.zeros(len(answers), 1, *image.shape[1:])
            for mask, (_, x, y, side, _) in zip(masks, answers, strict=True):
                mask[0, y : y + side, x : x + side] = 0.9
            detections["masks"] = masks
        return detections


def judged(
    root: Path, detector: nn.Module, chosen: dict[int, str] | None = None, progress: Silent | None = None
) -> Findings:
    source = CocoImages(root)
    references = tuple(source.references("train", root.name))
    split = Split(source, references, (-1,) * len(references), {})
    network: Any = SimpleNamespace(module=Pyramid(detector), parameters=detector.parameters)
    return find_objects(network, split, chosen or source.categories, progress=progress)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four images: a red square; a red and a green one; a region of many green ones; none."""
    objects = [square(0, 1, 10, 10, 20), square(1, 1, 5, 5, 20), square(1, 2, 40, 20, 20), square(2, 2, 0, 0, 50)]
    objects[3]["iscrowd"] = 1
    return write_annotations(tmp_path / "data", objects, images=4, names=NAMES)


RIGHT = [[(1, 10, 10, 20, 0.9)], [(1, 5, 5, 20, 0.8), (2, 40, 20, 20, 0.7)], [], []]


def test_right_boxes_and_masks_have_full_precision(root: Path) -> None:
    record = judged(root, Answering(RIGHT, masks=True)).record()
    assert (record.images, record.objects) == (4, 3)
    assert record.boxes == record.masks and record.boxes.per_class == {
        "red": 1,
        "green": pytest.approx(1),
        "blue": None,
    }
    assert record.boxes.ap == record.boxes.ap50 == 1


def test_given_levels_are_read_some_images_at_once_and_the_backbone_runs_once_for_all(tmp_path: Path) -> None:
    file, root = write_detectors(tmp_path), write_annotations(tmp_path / "data", [square(0, 1, 5, 5, 9)], images=5)
    network, other = opened(file, "build"), opened(file, "build")
    source, asked, runs = CocoImages(root), list[int](), list[int]()
    references = tuple(source.references("train", root.name))
    split = Split(source, references, (-1,) * len(references), {})

    def levels(images: torch.Tensor) -> Any:
        asked.append(len(images))
        return other.module(images)

    def scores(findings: Findings) -> list[Any]:
        return [match["dtScores"] for match in findings.evaluated["boxes"].evalImgs if match]

    network.module.detector.backbone.same.register_forward_hook(lambda _, inputs, __: runs.append(len(inputs[0])))
    own = scores(find_objects(network, split, source.categories))
    assert runs == [4, 1] and any(own)
    assert scores(find_objects(network, split, source.categories, levels=levels, at_once=2)) == own
    assert asked == [2, 2, 1] and runs == [4, 1, 1]


def test_boxes_that_are_no_numbers_are_refused(root: Path) -> None:
    answers = [[(1, 10, 10, 20, 0.9)], [(1, 5, 5, 20, float("nan"))], [], []]
    with pytest.raises(ModelError, match=r"gives boxes or scores of .*1.* that are not finite; check its weights"):
        judged(root, Answering(answers))


def test_labels_of_which_none_is_a_category_are_named(root: Path) -> None:
    progress = RecordedProgress()
    answers = [[(77, 10, 10, 20, 0.9)], [(78, 5, 5, 20, 0.5)], [], []]
    assert judged(root, Answering(answers), progress=progress).record().boxes.ap == 0
    assert progress.warnings == [
        "all 2 boxes have labels (77 to 78) that are no category, and count as none: the data has 1 to 3"
    ]
    judged(root, Answering([*RIGHT[:2], [(77, 0, 0, 5, 0.5)], []]), progress=progress)
    assert len(progress.warnings) == 1, "a detector may find more than the data has"


def test_precision_falls_with_what_is_missed_misplaced_and_wrong(root: Path) -> None:
    missed = judged(root, Answering([RIGHT[0], [], [], []])).record().boxes
    assert missed.per_class["red"] == pytest.approx(51 / 101) and missed.per_class["green"] == 0
    # An overlap of 16 * 20 / (2 * 400 - 320) = 2 / 3 is enough up to 0.65.
    shifted = [[(1, 14, 10, 20, 0.9)], [(1, 9, 5, 20, 0.8), (2, 44, 20, 20, 0.7)], [], []]
    record = judged(root, Answering(shifted)).record().boxes
    assert record.ap50 == 1 and record.ap == pytest.approx(0.4)
    wrong = [[(1, 40, 30, 20, 0.95), *RIGHT[0]], RIGHT[1], [], []]
    assert judged(root, Answering(wrong)).record().boxes.per_class["red"] == pytest.approx(2 / 3, abs=0.01)


def test_answers_in_a_region_of_many_do_not_count(root: Path) -> None:
    inside = [RIGHT[0], RIGHT[1], [(2, 10, 10, 10, 0.99), (2, 30, 30, 10, 0.98)], []]
    assert judged(root, Answering(inside)).record().boxes.ap == pytest.approx(1)


def test_images_drawn_again_are_judged_as_often_as_they_are_drawn(root: Path) -> None:
    findings = judged(root, Answering([RIGHT[0], [], [], []]))
    assert findings.record([0, 0, 3]).boxes.per_class == {"red": 1, "green": None, "blue": None}
    assert findings.record([0, 1, 1]).boxes.per_class["red"] == pytest.approx(34 / 101)
    assert findings.record().boxes.per_class["red"] == pytest.approx(51 / 101)


def test_some_classes_are_judged_alone(root: Path) -> None:
    only = judged(root, Answering([RIGHT[0], [], [], []]), {2: "green"}).record()
    assert only.objects == 1 and only.boxes.per_class == {"green": 0}
    with pytest.raises(DataError, match="none of the 4 images to be judged shows an object of blue"):
        judged(root, Answering(RIGHT), {3: "blue"})


def test_labels_are_ids_or_where_ids_have_gaps_their_ranks() -> None:
    detector = nn.Module()
    assert label_categories(detector, [1, 90]) == {1: 1, 90: 90}
    detector.head = nn.Module()
    detector.head.classification_head = nn.Module()
    for classes, categories, expected in ((91, [1, 90], {1: 1, 90: 90}), (3, [7, 90], {1: 7, 2: 90})):
        detector.head.classification_head.num_classes = classes
        assert label_categories(detector, categories) == expected
    with pytest.raises(UnsupportedModelError, match="has 3 classes with the background, and the data 3 categories"):
        label_categories(detector, [1, 2, 3])


def test_without_pycocotools_the_extra_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    with pytest.raises(OptionError, match=r"needs pycocotools: pip install 'edgevit\[detection\]'"):
        check_objects(*(None,) * 3, Silent())  # type: ignore[arg-type]
