"""Cases of derivations: their keys, and the rows that they give."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from small_base import ARGS, NAME, PREPROCESSING, write_checkpoint

from benchmarks import derivations, markdown
from benchmarks.product import accuracy, rivals

RECORDS = ("published", "rivals_fashion", "accuracy_fine", "ablations", "slices")


def rows_of(record: str) -> dict[str, markdown.Row]:
    return (markdown.load(record) or {"rows": {}})["rows"]


@pytest.mark.parametrize("record", RECORDS)
def test_keys_of_recorded_rows_stay_as_they_are(record: str) -> None:
    for key, row in rows_of(record).items():
        values = {field.name: row[field.name] for field in fields(derivations.Case) if field.name in row}
        assert derivations.Case(**values).key(row["base_sha256"]) == key


def test_what_is_recorded_is_not_done_again() -> None:
    def recorded_share(record: str, cases: Iterable[derivations.Case]) -> float:
        rows = rows_of(record)
        (sha256,) = {row["base_sha256"] for row in rows.values()}
        return len(rows.keys() & {case.key(sha256) for case in cases}) / len(rows)

    every = [case for part in accuracy.cases().values() for case in part]
    assert recorded_share("accuracy_fine", derivations.on_base(every, "fine")) > 0.9
    rivals_cases = derivations.on_base((case for _, case in rivals.cases()), "fashion")
    assert recorded_share("rivals_fashion", rivals_cases) > 0.9


def test_a_trial_shortens_only_what_trains() -> None:
    case = derivations.Case("skd", 6, 0.5, 42, "super-network", "skd", steps=0, supernet_steps=200)
    assert (derivations.shortened(case, 2).steps, derivations.shortened(case, 2).supernet_steps) == (0, 2)


def test_a_user_s_base_and_named_classes_are_another_result_whose_row_says_so(tmp_path: Path) -> None:
    start = {
        "base": NAME, "checkpoint": write_checkpoint(tmp_path), "model_args": ARGS, "preprocessing": PREPROCESSING,
        "accept_weak_base": True,
    }  # fmt: skip
    place = derivations.Place(Path("digits"), start, tuple("0123456789"), "b", None, tmp_path)
    drawn = derivations.Case("ablations", 3, 0.5, 42, "random", "random", {}, "paper", 1, 8, data="mine")
    named = replace(drawn, classes=("3", "7", "9"))
    assert named.key("b") != drawn.key("b") and "classes" not in drawn.settings()
    row = derivations.run(named, place, 1)
    assert isinstance(row, dict) and row["classes"] == ("3", "7", "9") and row["data"] == "mine"
    assert row["worst_class"][0] in ("3", "7", "9") and row["base_top1"] is None and row["images_seen"] == 8
    assert "device" not in row


def test_a_device_that_is_missing_is_named_as_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    start = {"base": NAME, "checkpoint": write_checkpoint(tmp_path), "model_args": ARGS, "accept_weak_base": True}
    place = derivations.Place(Path("digits"), start, tuple("0123456789"), "b", None, tmp_path, "cuda")
    cache = os.environ.get("XDG_CACHE_HOME")
    reason = derivations.run(derivations.Case("main", 3, 0.5, 42, "random", "random", {}, "paper", 0), place, 1)
    assert isinstance(reason, str) and "no cuda device" in reason
    assert os.environ.get("XDG_CACHE_HOME") == cache, "the cache is the derivation's alone"
