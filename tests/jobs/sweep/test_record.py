"""sweep.json: which model it makes one choose, and that only a whole one is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from edgevit.errors import SweepError
from edgevit.jobs.sweep.record import SWEEP_KIND, FinetunedBase, Latency, Sweep, SweepPoint, read_sweep, write_sweep
from edgevit.records.answers import RightImages
from edgevit.records.derivation import BoxesRecord, DetectionRecord, PrecisionRecord, StartRecord


def point(rate: float | None, right: int, macs: int) -> SweepPoint:
    latency = Latency("p50", 1.0, 0.5, 0.4, 0.6)
    return SweepPoint("base" if rate is None else f"r{rate:g}", rate, right, 300, macs, macs // 20, latency)


def sweep_of(*points: SweepPoint) -> Sweep:
    return Sweep({"base": "b"}, "validation", "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}, points)


BASE = point(None, 270, 100)


def test_the_smallest_model_that_loses_no_more_than_chance_is_chosen() -> None:
    # Of 300 images, 257 right reach up to 89.2 % and 262 up to 90.6 %: the base has 90.0 %.
    assert sweep_of(BASE, point(0.5, 271, 50), point(0.8, 262, 20), point(0.9, 257, 10)).chosen().rate == 0.8
    assert sweep_of(BASE, point(0.5, 200, 50)).chosen() is None
    assert sweep_of(BASE, point(0.5, 250, 50), point(0.9, 280, 10)).chosen().rate == 0.9
    assert sweep_of().chosen() is None


def found(ap: float) -> DetectionRecord:
    return DetectionRecord(20, 50, PrecisionRecord(ap, ap, {}))


def detector(rate: float | None, macs: int, error: float, ap: float | None = None) -> SweepPoint:
    base, derived = (None, None) if ap is None else (found(0.4), found(ap))
    name = "base" if rate is None else f"r{rate:g}"
    return SweepPoint(name, rate, None, 20, macs, 1, boxes=BoxesRecord(20, error, base, derived))


def test_the_smallest_detector_that_finds_nine_tenths_of_what_its_base_finds_is_chosen() -> None:
    sweep = sweep_of(
        detector(None, 100, 0, 0.4), detector(0.5, 50, 0.3, 0.42), detector(0.7, 30, 0.2, 0.37),
        detector(0.9, 10, 0.05, 0.35),
    )  # fmt: skip
    assert sweep.finds_boxes and sweep.chosen().rate == 0.7
    assert [round(point.likeness, 3) for point in sweep.derived] == [1.0, 0.925, 0.875]


def test_detectors_without_annotations_are_chosen_by_their_pyramid() -> None:
    sweep = sweep_of(detector(None, 100, 0), detector(0.5, 50, 0.08), detector(0.9, 10, 1.2))
    assert not sweep.finds_boxes and sweep.chosen().rate == 0.5 and sweep.derived[1].likeness == 0


@pytest.mark.parametrize("images", [50, 80, 120, 200, 250, 600, 800])
def test_models_that_are_right_on_all_images_are_as_good_as_such_a_base(images: int) -> None:
    points = [SweepPoint(f"r{rate}", rate, images, images, macs, 1) for rate, macs in ((None, 9), (0.5, 5), (0.9, 1))]
    assert sweep_of(*points).chosen().rate == 0.9


def test_models_that_were_judged_on_the_same_images_are_compared_by_pairs() -> None:
    """257 of 300 against 270 may be chance by intervals, as 89.2 % is below 90 %; by pairs it depends on which."""

    def judged(one: SweepPoint, lost: int) -> SweepPoint:
        which = RightImages.of(lost <= i < one.right + lost for i in range(300))
        return replace(one, judged={"validation": which, "test": which})

    base = judged(BASE, 0)
    few, many = (judged(point(0.9, 258, 10), lost) for lost in (0, 40))
    assert sweep_of(base, few).chosen() is None, "12 lost, 0 gained"
    loss = sweep_of(base, many).loss(many)
    assert (loss.lost, loss.gained, loss.may_be_chance) == (40, 28, True)
    assert sweep_of(BASE, few).loss(few).lost is None, "an older record of the base"


def test_a_smaller_model_that_loses_a_class_is_not_chosen_and_is_named() -> None:
    """Of 300 images both are right on 270; the smaller one misses nine of the 30 of a rare class."""
    classes = {"crack": 30, "whole": 270}

    def judged(one: SweepPoint, cracks: int, others: int) -> SweepPoint:
        right = [i < cracks for i in range(30)] + [i < others for i in range(270)]
        return replace(one, judged={part: RightImages.of(right, classes) for part in ("validation", "test")})

    base, small = judged(BASE, 30, 240), judged(point(0.9, 270, 10), 21, 249)
    sweep = sweep_of(base, judged(point(0.5, 270, 50), 29, 241), small)
    assert sweep.chosen().rate == 0.5 and sweep.worse_in_a_class() == small
    assert sweep.loss(small).worst_alone.text() == "of the 30 of 'crack' it loses 9 and gains 0"
    assert sweep_of(base, small).chosen() is None and sweep_of(base, small).worse_in_a_class() == small
    assert sweep_of(base, judged(small, 29, 241)).worse_in_a_class() is None


def test_a_ready_made_model_outdoes_one_that_is_not_faster_or_better() -> None:
    model, rival = point(0.9, 258, 10), replace(point(None, 257, 10), folder="cnn")
    sweep = replace(sweep_of(BASE, model), ready_made=(rival,))
    assert sweep.outdoes(rival, model) and sweep.base == BASE and sweep.derived == [model]
    assert not sweep.outdoes(replace(rival, right=200), model)
    assert not sweep.outdoes(replace(rival, latency=Latency("p50", 1.2, 0.6, 0.5, 0.7)), model)
    assert not sweep.outdoes(replace(rival, latency=None), model)


@pytest.mark.parametrize(
    ("cut", "right", "chosen"),
    [("finetuned", 285, 0.5), ("finetuned", 240, 0.8), ("base", 285, 0.8)],  # of 300; the base has 270
)
def test_models_of_a_trained_base_are_to_be_as_good_as_that_where_it_is_the_better(
    cut: Literal["base", "finetuned"], right: int, chosen: float
) -> None:
    finetuned = FinetunedBase(right, 300, StartRecord(cut, 30, 0.3, 0.2))
    sweep = replace(sweep_of(BASE, point(0.5, 284, 50), point(0.8, 270, 20), point(0.9, 250, 10)), finetuned=finetuned)
    assert sweep.chosen().rate == chosen
    assert sweep.reference == (finetuned if chosen == 0.5 else BASE)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    sweep = sweep_of(BASE, point(0.5, 271, 50))
    write_sweep(tmp_path, sweep)
    assert read_sweep(tmp_path) == sweep
    trained = replace(sweep, finetuned=FinetunedBase(285, 300, StartRecord("finetuned", 30, 0.3, 0.2)))
    write_sweep(tmp_path, trained)
    assert read_sweep(tmp_path) == trained


@pytest.mark.parametrize(
    "damage",
    [{"points": [{"folder": 1}]}, {"schema": 3}, {"part": None}, {"points": "none"}],
)
def test_a_damaged_record_is_one_line(tmp_path: Path, damage: dict[str, Any]) -> None:
    held = json.loads(SWEEP_KIND.text(sweep_of(BASE)))
    (tmp_path / "sweep.json").write_text(json.dumps({**held, **damage}))
    with pytest.raises(SweepError, match=r"sweep\.json") as caught:
        read_sweep(tmp_path)
    assert "\n" not in str(caught.value)
