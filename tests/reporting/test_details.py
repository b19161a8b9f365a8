"""What is drawn of a model, thinned and rounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from some_report import NANO, write_everything
from some_runs import DENSE, ON_A_BOARD, watts

from edgevit.reporting.axes import LatencyPlace, places
from edgevit.reporting.details import (
    BINS,
    MATRIX,
    blocks,
    classes,
    confusion,
    curves,
    details,
    latency,
    power_trace,
    thinned,
)
from edgevit.reporting.gather import Evidence, gather


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return gather([write_everything(tmp_path_factory.mktemp("everything"))])


def test_everything_of_a_measured_model_is_drawn(found: Evidence) -> None:
    drawn = details(found.models[1], found, places(found.runs))
    assert [(seen["place"], seen["samples"]) for seen in drawn["latency"]] == [
        ("Nano, 25W, TensorRT 10.3.0, batch 1", 1200), ("NX, 15W, TensorRT 10.3.0, batch 1", 1200),
    ]  # fmt: skip
    assert [(round(seen["mean_w"], 1), seen["idle_w"]) for seen in drawn["power"]] == [(6.1, 4), (5.1, 4)]
    assert [seen["label"] for seen in drawn["layers"]] == ["t1"] and drawn["layers"][0]["fused"] == 1
    assert drawn["layers"][0]["place"] == "TensorRT 10.3.0"
    assert {(curve["stage"], curve["name"]) for curve in drawn["history"]} == {
        ("distil", "loss_task"), ("distil", "accuracy_trained"), ("distil", "lr")
    }  # fmt: skip


def test_blocks_stand_beside_the_bases(found: Evidence) -> None:
    first, second = blocks(found.models[1])
    assert (first["now"]["qk"], first["base"]["qk"]) == (12, 16) and second["now"]["heads"] == 1
    model = found.models[1]
    assert model.derivation is not None and model.document is not None
    facts = replace(model.derivation.facts, kept_blocks=(1,))
    short = replace(model.document, blocks=model.document.blocks[:1])
    cut = replace(model, document=short, derivation=replace(model.derivation, facts=facts))
    assert [one["now"] is None for one in blocks(cut)] == [True, False]


def test_the_worst_class_comes_first_and_pairs_that_are_confused_are_told(found: Evidence) -> None:
    assert classes(found.models[1]) == [
        {"name": "cat", "top1": 0.92, "base": 0.95},
        {"name": "dog", "top1": 0.98, "base": 0.97},
    ]
    told = confusion(found.models[1])
    assert told is not None and told["pairs"][0] == {"is": "cat", "called": "dog", "images": 8}
    assert told["classes"] == [{"name": "cat", "images": 100}, {"name": "dog", "images": 100}]
    assert told["cells"] == [(0, 0, 92), (0, 1, 8), (1, 0, 2), (1, 1, 98)]
    model = found.models[1]
    assert model.derivation is not None and model.derivation.accuracy.derived is not None
    seen = model.derivation.accuracy.derived
    right = replace(model.derivation.accuracy, derived=replace(seen, confused={"dog": {"cat": 100}}))
    told = confusion(replace(model, derivation=replace(model.derivation, accuracy=right)))
    assert told is not None and told["cells"] == [(0, 0, 100), (1, 0, 100)], "what is nowhere is left out"
    many = replace(seen, images_per_class={str(i): 100 for i in range(MATRIX + 1)})
    told = confusion(replace(model, derivation=replace(model.derivation, accuracy=replace(right, derived=many))))
    assert told is not None and told["pairs"] and not told["cells"] and not told["classes"]
    old = replace(seen, confused=None, images_per_class=None)
    accuracy = replace(model.derivation.accuracy, derived=old)
    assert confusion(replace(model, derivation=replace(model.derivation, accuracy=accuracy))) is None


def test_a_histogram_counts_every_inference_but_the_slowest_few() -> None:
    place = LatencyPlace("here", NANO, 1, 1, "one after another", ())
    slow = replace(DENSE, latencies_ns=(*DENSE.latencies_ns, 10**9))
    seen = latency(place, [slow])
    assert len(seen["counts"]) == BINS and sum(seen["counts"]) + seen["slower"] == seen["samples"] == 201
    assert (seen["slower"], seen["slowest_ms"], seen["percentiles_ms"]["p50"]) == (1, 1000.0, 10.1)
    same = latency(place, [replace(DENSE, latencies_ns=(5_000_000,) * 3)])
    assert sum(same["counts"]) == 3


def test_power_begins_with_the_timed_window() -> None:
    power = replace(watts(1, 2, 3), window_started_ns=200_000_000)
    assert power_trace(power, 10) == [(-0.2, 1.0), (0.0, 2.0), (0.2, 3.0)]
    assert ON_A_BOARD.power is not None and len(power_trace(ON_A_BOARD.power, 40)) == 40


def test_curves_are_thinned_and_lines_without_a_number_left_out() -> None:
    lines = [{"stage": "a", "step": i, "loss": 1.0, "accuracy_x": float("nan"), "kept_step": 3} for i in range(1000)]
    (curve,) = curves([*lines, {"step": 3}, {"stage": "a", "step": "x"}], 50)
    assert (curve["name"], len(curve["points"]), curve["points"][-1][0]) == ("loss", 50, 999)
    assert curves(lines[:1], 50) == [] and thinned([1, 2], 5) == [1, 2] and thinned(range(9), 3) == [0, 4, 8]


def test_paths_of_a_folder_that_holds_nothing_more_are_empty(tmp_path: Path, found: Evidence) -> None:
    drawn = details(found.models[0], replace(found, profiles=[]), [])
    assert [name for name, value in drawn.items() if value] == ["blocks"]
