"""A detector's engine on this machine as the board: levels by the stand-in for TensorRT, boxes in torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from detectors import annotate_by, write_detectors

import edgevit
from benchmarks import scenes
from edgevit.board.client import Agent
from edgevit.cli.export import engine_table
from edgevit.engines import build as build_module
from edgevit.engines.detections import _losses
from edgevit.exporting.request import GateTolerances
from edgevit.network.folder import load
from edgevit.records.derivation import DetectionRecord, PrecisionRecord
from edgevit.records.engine import EngineRecord

pytestmark = pytest.mark.usefixtures("own_cache", "examined_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector with random weights, and in `coco` images that are annotated with what it finds in them."""
    home = tmp_path_factory.mktemp("detector")
    edgevit.base(f"{write_detectors(home)}:build", output="boxes", out=home / "model")
    scenes.render(home / "coco", train=110, val=12, size=48)
    annotate_by(load(home / "model").module.detector, home / "coco")
    return home / "model"


def build(folder: Path, play: Callable[..., None], data: Path, fault: str = "", **options: Any) -> EngineRecord:
    play(fault=fault)
    edgevit.load(folder, run_code=True)  # as the cache of this home does not know it
    engine = edgevit.export(folder, data=data, accuracy=False, trt=True, **options).engine
    assert engine is not None
    return engine


@pytest.mark.slow
def test_levels_of_the_board_are_judged_by_what_the_detector_finds_in_them(
    folder: Path, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, opened, sizes, exchange = folder.parent / "coco", set[Agent](), list[int](), Agent.exchange

    def count(agent: Agent, request: Mapping[str, int], *contents: memoryview) -> None:
        opened.add(agent)
        sizes.append(request["count"])
        exchange(agent, request, *contents)

    monkeypatch.setattr(Agent, "exchange", count)
    monkeypatch.setattr(build_module, "MOST_OUTPUTS", 3 * 16 * (64 + 16 + 4))
    built = build(folder, play, data, batches=(1, 1, 4))
    assert len(opened) == 2 and sizes == [3, 3, 3, 2, 4, 4, 3], "whole batches, in one process for each size of them"
    assert built.precision == "fp16" and built.accuracy is not None
    assert [tensor.name for tensor in built.outputs] == ["level_0", "level_1", "level_2"]
    seen = built.accuracy
    here, there = seen.host_detections, seen.board_detections
    assert here is not None and there is not None and here.images == seen.images == 11 and seen.part == "validation"
    assert here.boxes.ap > 0.9 and abs(here.boxes.ap - there.boxes.ap) < 0.05 and seen.agreement > 0.999
    assert (seen.host, seen.board, seen.per_class, seen.worst_class) == (None, None, {}, None)
    table = engine_table(built)
    assert [column.header for column in table.columns][1] == "AP of boxes here" and "AP of boxes on 11" in table.caption
    judged = edgevit.evaluate(built.path, data)
    of_torch = edgevit.evaluate(folder, data)
    assert judged.form == "engine" and judged.detections is not None and of_torch.detections is not None
    assert judged.detections.boxes.ap == pytest.approx(of_torch.detections.boxes.ap, abs=0.05)


@pytest.mark.slow
def test_an_engine_whose_levels_are_wrong_is_rejected_by_its_boxes(
    folder: Path, play: Callable[..., None], tmp_path: Path
) -> None:
    built = build(folder, play, folder.parent / "coco", "fp16", batches=(1, 1, 1))  # its outputs are negated
    assert built.precision == "fp32"
    assert "fp16" in built.attempts[0].precision_level and "points of AP of boxes on 11 images" in str(
        built.attempts[0].failure
    )
    assert edgevit.report([folder], output=tmp_path / "page.html")
    assert built.accuracy is not None and built.accuracy.host_detections is not None
    assert f"AP {built.accuracy.host_detections.boxes.ap:.1%}" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_an_engine_in_int8_is_judged_by_its_boxes_and_taken_where_it_is_faster(
    folder: Path, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_TENSORRT_NS_PER_BYTE", "50")  # weights of INT8 are half as large
    built = build(folder, play, folder.parent / "coco", batches=(1, 1, 1), precision="int8")
    (failed,) = [attempt for attempt in built.attempts if attempt.precision_level == "int8"] or [None]
    if failed is None:
        assert built.precision == "int8" and built.accuracy is not None and built.accuracy.board_detections is not None
    else:
        assert "points of AP of boxes" in str(failed.failure) or "not shown to be faster" in str(failed.failure)


def test_images_without_annotations_are_judged_by_the_levels(folder: Path, play: Callable[..., None]) -> None:
    built = build(folder, play, folder.parent / "coco" / "images" / "val", batches=(1, 1, 1))
    assert built.accuracy is None
    assert any("NOT CHECKED: only 1 images" in warning for warning in built.warnings)


def record(ap: float, **per_class: float) -> DetectionRecord:
    return DetectionRecord(300, 1000, PrecisionRecord(ap, ap, dict(per_class)))


OBJECTS = Counter({"disc": 500, "star": 10})
HERE = record(0.5, disc=0.5, star=0.5)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (record(0.491, disc=0.49, star=0.35), None),  # 2 of 10 stars may differ
        (record(0.48, disc=0.5, star=0.5), r"loses 2.0 points of AP of boxes on 300 images (50.0% in fp32 here, 48.0%"),
        (record(0.5, disc=0.44, star=0.6), "loses 6.0 points of AP of boxes of 'disc' (50.0% in fp32 here, 44.0%"),
        (record(0.495, disc=0.5, star=0.2), "loses 30.0 points of AP of boxes of 'star'"),
        (replace(HERE, masks=HERE.boxes), None),
    ],
)
def test_losses_beyond_the_tolerances_are_named(there: DetectionRecord, message: str | None) -> None:
    failure = next(_losses(HERE, there, OBJECTS, GateTolerances()), None)
    assert failure is None if message is None else failure is not None and failure.startswith(message)
    masks = [replace(one, masks=one.boxes, boxes=HERE.boxes) for one in (HERE, there)]
    of_masks = next(_losses(*masks, OBJECTS, GateTolerances()), None)
    assert (of_masks is None) == (failure is None)
