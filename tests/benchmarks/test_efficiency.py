"""The papers' tables of latency: which rows there are, what stands beside them, and that they are measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import efficiency
import pytest
from efficiency import METHODS, PUBLISHED, PUBLISHED_RATIOS, RATES, Start, section, wanted
from small_base import ARGS, NAME, PREPROCESSING, write_checkpoint

import edgevit


def test_every_row_of_the_papers_is_wanted_and_has_its_published_figure() -> None:
    rows = list(wanted("methods", RATES, list(METHODS)))
    assert len(rows) == len(METHODS) * len(RATES)
    assert {(row.name, *row.of) for row in rows} - {("forge", rate) for rate in RATES} == set(PUBLISHED)
    assert PUBLISHED["vulcan", 0.8] == pytest.approx(1 / 3.02, rel=0.01), "the speed-up that the paper prints"
    assert {row.of for row in wanted("ratios", (), ())} == set(PUBLISHED_RATIOS)


def test_models_are_measured_beside_their_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_checkpoint(tmp_path)
    start = Start(NAME, ARGS, made, Path("digits"), {}, {"preprocessing": PREPROCESSING})
    monkeypatch.setattr(efficiency, "start_from", lambda *_: start)
    quick = edgevit.Conditions(samples=5, duration_s=0, warmup=1, warmup_seconds=0, threads=1)
    monkeypatch.setattr(edgevit, "Conditions", lambda **_: quick)
    out = tmp_path / "efficiency.json"
    asked = ["methods", "--model", "demo", "--methods", "random", "--rates", "0.6", "--rounds", "2", "--out", out]
    monkeypatch.setattr(sys, "argv", ["efficiency.py", *map(str, asked)])
    for _ in range(2):
        efficiency.main()  # the second session takes the first one's place
    told: dict[str, Any] = json.loads(out.read_text())
    base, row = told["rows"]
    assert (base["method"], row["method"], row["of"]) == ("base", "random", [0.6])
    assert row["macs"] <= 0.4 * base["macs"] and 0 < row["ratio"] != 1 and row["file_bytes"] < base["file_bytes"]
    text = section(told)
    assert "## Latency of what each method leaves" in text and "| random 0.6 |" in text and "0.588" in text
