"""Tables and sentences from rows."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import markdown


def row(variant: str, seed: int, top1: float, **more: Any) -> markdown.Row:
    return {"variant": variant, "task": 6, "seed": seed, "accuracy": {"derived": top1}, **more}


def test_leads_are_over_pairs_of_both_and_the_nearest_rival_is_named() -> None:
    rows = [row("forge", 42, 0.9), row("forge", 43, 0.8), row("near", 42, 0.88), row("far", 42, 0.5)]
    rows += [row("far", 43, 0.6), row("far", 44, 0.99), row("alone", 44, 0.99)]
    differences = markdown.leads(rows)
    assert differences == {"near": [pytest.approx(0.02)], "far": [pytest.approx(0.4), pytest.approx(0.2)]}
    assert markdown.nearest(differences) == "+2.0, near; n = 1; of 2" and markdown.nearest({}) == ""
    assert markdown.lead_text(differences["far"]) == "+30.0 (+20.0 to +40.0); n = 2"


def test_rows_of_an_older_base_are_not_mixed_in() -> None:
    old, new, other = ({"data": data, "base_sha256": sha} for data, sha in (("a", "old"), ("a", "new"), ("b", "old")))
    assert markdown.of_newest_base([old, new, other]) == [new, other]


def test_numbers_have_a_range_where_there_are_several() -> None:
    assert markdown.percent([0.5]) == "50.0" and markdown.percent([]) == ""
    assert markdown.points([0.01, 0.03]) == "+2.0 (+1.0 to +3.0)" and markdown.plain([2.4]) == "2"


def test_commits_are_counted() -> None:
    rows = [{"versions": {"edgevit": f"0.1.0 ({commit})"}} for commit in ("aaa+", "bbb", "bbb")]
    assert markdown.commits_text([*rows, {"edgevit": None}]) == "Commits (rows): bbb (2), aaa+ (1), not recorded (1)."


def test_a_screen_has_the_question_the_table_the_command_and_what_is_missing() -> None:
    text = markdown.screen("Why?", "Because.", [markdown.table(["a"], [["1"]])], "make it", "the rest.")
    order = ["## Why?", "Because.", "| a |", "| 1 |", "Command: `make it`", "Not shown: the rest."]
    assert sorted(order, key=text.index) == order
