from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from model_folders import derivation_of, some_spec

from edgevit.cli.tables import classes_line, comparison_lines, met_lines, met_table, outcome
from edgevit.data.shares import share_text
from edgevit.records.answers import PartAnswers, RightImages
from edgevit.records.derivation import (
    Accuracies,
    AccuracyRecord,
    DerivationRecord,
    FigureRecord,
    MetRecord,
    Outcome,
    RoundRecord,
    TableRecord,
    ValidationRecord,
)


def accuracies(before: dict[str, float | None], after: dict[str, float | None]) -> Accuracies:
    return Accuracies(None, AccuracyRecord(1.0, 10, before), None, AccuracyRecord(1.0, 10, after))


def test_the_classes_that_lost_most_come_first() -> None:
    before = {name: 1.0 for name in "abcdefgh"}
    after: dict[str, float | None] = {**before, "c": 0.5, "a": 0.75, "h": 0.9, "d": None}
    told = classes_line(accuracies({**before}, after))
    assert "c -50.0 to 50.0 %, a -25.0 to 75.0 %, h -10.0 to 90.0 %; of 7 classes" in told


def test_no_more_than_five_classes_are_named() -> None:
    told = classes_line(accuracies({n: 1.0 for n in "abcdefg"}, {n: 0.5 for n in "abcdefg"}))
    assert told.count("-50.0") == 5 and "and 2 more; of 7 classes" in told


def test_no_loss_is_said() -> None:
    told = classes_line(accuracies({n: 0.5 for n in "abcdef"}, {**{n: 0.5 for n in "abcdef"}, "b": 0.75}))
    assert told == "none of the 6 classes is classified worse than by the base restricted to them"


def test_each_of_few_classes_is_told() -> None:
    told = classes_line(accuracies({"defective": 0.5, "functional": 1.0}, {"defective": 0.25, "functional": 1.0}))
    assert told.endswith("restricted base: defective 25.0 % (50.0 %), functional 100.0 % (100.0 %)")


def test_a_top1_that_one_answer_may_reach_is_told_with_the_accuracy() -> None:
    measured = AccuracyRecord(0.7, 100, {"a": 0.0, "b": 1.0}, images_per_class={"a": 30, "b": 70})
    record = replace(derivation_of(None), accuracy=Accuracies(measured, measured, None, measured))
    assert any("70 of 100 images are of the class b" in str(shown) for shown in outcome(some_spec(), record))


@pytest.mark.parametrize(
    ("lost", "verdict"), [(0, ""), (5, "; what it loses may be chance"), (6, "; what it loses is more than chance")]
)
def test_a_model_is_compared_with_the_restricted_base_by_pairs(lost: int, verdict: str) -> None:
    base, model = (RightImages.of(i >= n for i in range(200)) for n in (0, lost))
    record = replace(
        derivation_of(None),
        accuracy=accuracies({"a": 1.0}, {"a": 1.0}),
        answers={"validation": PartAnswers(base, base), "test": PartAnswers(base, model)},
    )
    (line,) = comparison_lines(record)
    assert line.startswith(
        f"against the restricted base, on 200 test images it loses {lost} right answers of the base "
    )
    assert line.endswith(f"cannot be excluded{verdict}")


def test_a_base_that_was_probably_trained_on_the_validation_images_is_named() -> None:
    test = AccuracyRecord(0.788, 1000, {"a": 0.788})
    record = replace(
        derivation_of(None),
        accuracy=Accuracies(None, test, None, test),
        validation=ValidationRecord(300, base_restricted=260, derived=255),
    )
    assert list(comparison_lines(record)) == [
        "the base was probably trained on the validation images (86.7% there, 78.8% on test): compare models on the "
        "test images, as `edgevit report` does"
    ]
    assert not list(comparison_lines(replace(record, validation=ValidationRecord(300, 240, 235))))


def test_a_share_has_its_interval() -> None:
    assert share_text(0.9, 10) == "90.00 % (59.6 to 98.2)"


def met(*, value: float, outcome: Outcome, rounds: int = 2, ended: str | None = None) -> DerivationRecord:
    figure, table = FigureRecord(value, value - 0.02, value + 0.02, 8), TableRecord("a board", "0" * 64)
    one = RoundRecord(4.925, 4.92, FigureRecord(5.1, None, None, 2))
    made = MetRecord(
        "ms",
        5.0,
        "ms 5",
        outcome,
        figure,
        "p50",
        10.0,
        (one,) * rounds,
        {"ffn": 1.1},
        table,
        {},
        ended,
        {"rounds": 9.0},
    )
    seen = AccuracyRecord(0.9, 100, {"a": 0.9})
    return derivation_of(None, met=made, accuracy=Accuracies(None, seen, None, seen))


def test_each_round_is_a_line_with_prediction_and_measurement() -> None:
    first, last = met_lines(met(value=4.9, outcome="met", rounds=1))
    assert first == "round 1: 4.92 ms predicted, 5.1 ms measured"
    assert last == "the model takes 4.9 ms (4.88 to 4.92) (p50), 2.0% within the budget of 5 ms, on a board"
    assert met_lines(derivation_of(None)) == []


def test_what_the_clock_said_stands_beside_what_the_ratio_comes_to() -> None:
    record = met(value=4.9, outcome="met").met
    assert record is not None
    quiet = replace(record, clock=5.9, base_clock=12.0)
    clock = (
        "by the clock in the last measurement: the model 5.9 ms, the base 12 ms, against 10 ms when its table was "
        "measured"
    )
    assert met_lines(derivation_of(None, met=quiet))[-1] == clock
    *_, takes, line, hint = met_lines(derivation_of(None, met=replace(quiet, figure="processor")))
    assert line == clock and "(by processor time, not by the clock)" in takes
    assert hint == "other programs were busy: on a quiet machine a larger model may take 5 ms"


def test_why_a_search_ended_is_said_unless_it_met_the_budget() -> None:
    over = met_lines(met(value=5.5, outcome="over", ended="no plan costs less"))[-1]
    assert "10.0% above the budget" in over and over.endswith("; no plan costs less")
    assert "no plan" not in met_lines(met(value=4.9, outcome="met", ended="no plan costs less"))[-1]


def test_several_budgets_end_in_one_table_of_accuracy_against_latency() -> None:
    table = met_table({Path("t/ms5"): met(value=4.9, outcome="met"), Path("t/ms3"): met(value=2.5, outcome="under")})
    columns = {str(column.header): list(column.cells) for column in table.columns}
    assert columns["model"] == ["ms5", "ms3"] and columns["of the base's"] == ["0.49", "0.25"]
    assert columns["ms (95 % interval)"][0] == "4.9 ms (4.88 to 4.92)"
    assert columns["top-1 (95 % interval)"][0].startswith("90.00 %")
