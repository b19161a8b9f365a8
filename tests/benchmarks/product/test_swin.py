"""The rows of a small Swin become a screen, and its cases have equal images and MACs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import markdown
from benchmarks.product import swin


def test_a_record_becomes_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "RECORDS", tmp_path)
    assert swin.section() == ""
    row = {
        "data": "swin", "base_sha256": "a", "base_top1": 0.69, "task": 6, "seed": 42, "steps": 0, "rate": 0.6,
        "variant": "forge", "accuracy": {"base_restricted": 0.9, "derived": 0.85}, "versions": {"edgevit": "0 (abc)"},
    }  # fmt: skip
    worse = {**row, "variant": "random", "accuracy": {"base_restricted": 0.9, "derived": 0.2}}
    (tmp_path / "swin.json").write_text(json.dumps({"schema": 2, "rows": {"1": row, "2": worse}}))
    shown = " ".join(swin.section().split())
    assert "| forge, nothing trained | | | 85.0 | | | | 1 | | random, nothing trained | | | 20.0 | | | | 1 |" in shown
    assert "69.0 % top-1" in shown and "6 classes 90.0 %" in shown and "abc (2)" in shown


def test_methods_that_train_see_as_many_images_at_each_rate() -> None:
    cases = [case for part, case in swin.cases() if part == "distilled"]
    assert {case.steps for case in cases} == {swin.STEPS} and {case.rate for case in cases} == {*swin.RATES}
    assert {case.variant for case in cases} == {*swin.METHODS}
    assert {case.variant for part, case in swin.cases() if part == "cut"} == {*swin.CLOSED}
