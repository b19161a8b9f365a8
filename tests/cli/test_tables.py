from __future__ import annotations

from edgevit.cli.tables import classes_line
from edgevit.data.accuracy import share_text
from edgevit.folder.derivation import Accuracies, AccuracyRecord


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
    told = classes_line(accuracies({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.75}))
    assert told == "none of the 2 classes is classified worse than by the base restricted to them"


def test_a_share_has_its_interval() -> None:
    assert share_text(0.9, 10) == "90.00 % (59.6 to 98.2)"
