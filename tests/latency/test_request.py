"""What is asked of `edgevit derive` and `edgevit.meet`, and what is refused of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgevit.errors import OptionError
from edgevit.latency.request import MeetRequest, identity, read_budgets
from edgevit.latency.target import MeasurementTarget
from edgevit.records.unfinished import REQUEST_KIND, RequestRecord, partial_folder
from edgevit.request import request_from
from edgevit.train.settings import Training


def asked(tmp_path: Path, **more: Any) -> MeetRequest:
    given = {"base": "vit_tiny_patch16_224", "pretrained": True, "data": "digits", "out": tmp_path / "t"}
    return MeetRequest(**{**given, **more})


@pytest.mark.parametrize(("text", "numbers"), [("5", (5.0,)), ("4,6.5, 8", (4.0, 6.5, 8.0))])
def test_a_budget_is_one_number_or_several(text: str, numbers: tuple[float, ...]) -> None:
    assert read_budgets("ms")(text, {}) == numbers
    typed = request_from(MeetRequest, {"base": "x", "out": Path("o"), "ms": text, "board": "orin", "steps": 0})
    assert typed.budgets == numbers and typed.quantity == "ms" and typed.run_target == MeasurementTarget(board="orin")


def test_the_precision_of_the_models_that_are_measured_is_that_of_the_target(tmp_path: Path) -> None:
    in_fp32 = asked(tmp_path, ms=5, run_precision="fp32", cost_table="t.yaml")
    assert in_fp32.run_target == MeasurementTarget(precision="fp32") and in_fp32.is_measured
    by_place = asked(tmp_path, ms=5, target=MeasurementTarget(precision="fp16"))
    assert identity(by_place) == identity(asked(tmp_path, ms=5, run_precision="fp16")), "two ways to say the same"


def test_a_text_that_is_no_number_is_refused() -> None:
    with pytest.raises(OptionError, match="--mj four is no number; try 40, or several"):
        read_budgets("mj")("four", {})


def test_a_folder_alone_is_gone_on_with_by_the_request_that_it_states(tmp_path: Path) -> None:
    begun = asked(
        tmp_path, rate=0.6, model_args={"img_size": 32}, options={"calibration_images": 64}, classes=["a", "b"],
        training=Training(steps=4), checkpoint=Path("c.pth"),
    )  # fmt: skip
    alone = MeetRequest(out=begun.out, resume=True)
    assert alone.names_a_folder_alone and not replace(begun, resume=True).names_a_folder_alone
    with pytest.raises(OptionError, match=r"nothing to go on with: there is no \S+/t\.partial/request\.json"):
        alone.begun()
    partial_folder(begun.out).mkdir()
    for stated in (begun, begun.derivation()):  # as derive and meet write it
        file = partial_folder(begun.out) / "request.json"
        file.write_text(REQUEST_KIND.text(RequestRecord("0.1.0", stated.plain())))
        assert alone.begun().plain() == replace(begun, resume=True).plain()


def test_what_a_table_or_a_rate_answers_is_derived(tmp_path: Path) -> None:
    by_rate, by_table = asked(tmp_path, rate=0.5), asked(tmp_path, ms=5.0, cost_table="t.yaml")
    assert not by_rate.is_measured and not by_table.is_measured and asked(tmp_path, mj=40).is_measured
    assert asked(tmp_path, ms=5.0, cost_table="t.yaml", target=MeasurementTarget(board="orin")).is_measured, (
        "it is where to begin"
    )
    assert by_rate.derivation().rate == 0.5 and by_rate.derivation().ms is None
    assert (by_table.derivation().ms, by_table.derivation().cost_table) == (5.0, "t.yaml")
    other = asked(tmp_path, ms=5.0).derivation(out=Path("elsewhere"), ms=4.9, cost_table="corrected.json")
    assert (str(other.out), other.ms, other.cost_table, other.method) == ("elsewhere", 4.9, "corrected.json", "forge")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ms": 5, "rate": 0.5}, "--rate and --ms exclude each other"),
        ({"ms": 5, "mj": 40}, "--mj and --ms exclude each other"),
        ({"ms": 5, "budget_of": "whole"}, "--budget-of whole is for --rate and --macs, and --ms is measured"),
        ({"ms": 5, "rest_rate": 0.5, "output": "map"}, "--rest-rate removes more than --ms measures"),
        ({"ms": -1}, "--ms -1"),
        ({"ms": 5, "method": "skd"}, "--method skd slices a super-network"),
        ({"ms": 5, "target": MeasurementTarget(threads=0)}, "--threads 0 is not in"),
        (
            {"rate": 0.5, "target": MeasurementTarget(board="orin")},
            "--board is for a budget that is measured, and nothing is",
        ),
        ({"ms": (5, 6), "cost_table": "t.yaml"}, "--ms has 2 numbers"),
        ({}, "a budget is one of --rate"),
        (
            {"ms": 5, "run_precision": "fp32", "target": MeasurementTarget(precision="fp16")},
            "fp16 in target and fp32 in run_",
        ),
        ({"rate": 0.5, "run_precision": "fp32"}, "--run-precision is for a budget that is measured"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=told):
        asked(tmp_path, **given).check()


def test_several_processes_cannot_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="measured by one process"):
        asked(tmp_path, ms=5).check()


def test_where_torch_computes_and_how_ssh_gets_there_may_change_between_runs(tmp_path: Path) -> None:
    before = asked(tmp_path, ms=5, training=Training(device="cpu"))
    after = asked(
        tmp_path, ms=5, training=Training(device="cuda"), resume=True, target=MeasurementTarget(ssh_config=Path("c"))
    )
    assert identity(before) == identity(after) != identity(asked(tmp_path, ms=6))
    assert identity(before) != identity(
        asked(tmp_path, ms=5, target=MeasurementTarget(threads=1), training=before.training)
    )
