"""What the demo reads from the models' own files, and that its base never saw the user's images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from demo_commands import parse_commands, some_sweep
from model_folders import derivation_of, some_spec
from some_runs import DENSE, MS

from benchmarks import bases, images
from benchmarks.product import demo
from edgevit.agent.records import Run
from edgevit.jobs.sweep.record import Sweep, SweepPoint, write_sweep
from edgevit.records.derivation import Accuracies, AccuracyRecord, BudgetRecord
from edgevit.records.model_folder import ModelFolder


def write_model(folder: Path, macs: int, asked: str | None, top1: float, accuracy: Accuracies | None = None) -> None:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"0" * macs)
    record = None
    if asked is not None:
        full, restricted, derived = (AccuracyRecord(share, 200) for share in (0.8, 0.9, top1))
        budget = BudgetRecord("macs", macs, 1000, asked)
        accuracy = accuracy or Accuracies(full, restricted, None, derived)
        record = derivation_of(None, budget=budget, accuracy=accuracy)
    ModelFolder(folder).write(some_spec(macs=macs, params=macs // 20), derivation=record)


def in_turns(milliseconds: dict[str, int]) -> list[Run]:
    return [
        replace(DENSE, label=label, model_sha256=label, latencies_ns=(ms * MS + n,) * 50, session="s", round=n, turn=t)
        for n in range(1, 9)
        for t, (label, ms) in enumerate(milliseconds.items(), 1)
    ]


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    sweep = tmp_path / "sweep"
    write_model(sweep / "base", 1000, None, 0)
    write_model(sweep / "r0.5", 500, "rate 0.5", 0.91)
    write_model(sweep / "r0.9", 100, "rate 0.9", 0.7)
    write_model(sweep / "r0.9-distilled", 100, "rate 0.9", 0.85)
    found = [("base", None, 1000), ("r0.5", 0.5, 500), ("r0.9", 0.9, 100)]
    points = tuple(SweepPoint(folder, rate, 9, 10, macs, 1) for folder, rate, macs in found)
    write_sweep(sweep, Sweep({}, "validation", "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}, points))
    (sweep / "runs.jsonl").write_text("the sweep's own")
    runs = in_turns({"base": 10, "r0.9-distilled": 4, "r0.9": 4})
    (tmp_path / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    return demo.table_rows(sweep, sweep / "r0.9-distilled", tmp_path / "runs.jsonl")


def test_the_table_has_both_baselines_every_rate_and_the_distilled_model(rows: list[dict[str, Any]]) -> None:
    assert [(row["title"], row["top1"], row["macs"]) for row in rows] == [
        ("base, full head", 0.8, 1000),
        ("base, restricted to the classes", 0.9, 1000),
        ("rate 0.5, closed form", 0.91, 500),
        ("rate 0.9, closed form", 0.7, 100),
        ("rate 0.9, distilled", 0.85, 100),
    ]
    assert [row["ratio"] is None for row in rows] == [True, True, True, False, False]
    assert rows[-1]["ratio"][0] == pytest.approx(0.4, rel=1e-3)


def test_a_row_shows_its_intervals_and_no_ratio_that_was_not_measured(rows: list[dict[str, Any]]) -> None:
    assert demo.cells(rows[-1]) == [
        "rate 0.9, distilled",
        "85.00 % (79.4 to 89.3)",
        "100",
        "5",
        "0.00",
        "0.40 (0.40 to 0.40)",
    ]
    assert demo.cells(rows[0])[-1] == ""


def test_the_base_has_learnt_from_other_images_than_the_user_has(tmp_path: Path) -> None:
    counts = {"classes": demo.TARGETS[:1], "train_per_class": 3, "val_per_class": 2}
    learnt = images.ensure(tmp_path, seed=1, **counts)  # as `ensure_rendered` does
    given = images.ensure(tmp_path, **counts)
    pixels = [{file.read_bytes() for file in folder.rglob("*.png")} for folder in (learnt, given)]
    assert len(pixels[0]) == len(pixels[1]) == 5 and not pixels[0] & pixels[1]
    card = json.loads((bases.BASES / "rendered" / "base.json").read_text())
    assert card["classes"] == list(images.CLASSES) and card["model_args"] == bases.RENDERED_ARGS
    assert set(demo.TARGETS) < set(images.CLASSES)


def test_a_base_that_was_trained_is_the_third_baseline(tmp_path: Path) -> None:
    write_model(tmp_path / "base", 1000, None, 0)
    accuracy = Accuracies(*(AccuracyRecord(share, 200) for share in (0.8, 0.9, 0.95, 0.7)))
    write_model(tmp_path / "r0.5", 500, "rate 0.5", 0.7, accuracy)
    write_sweep(tmp_path, some_sweep())
    (tmp_path / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in in_turns({"base": 10, "r0.5": 4})))
    titles = [
        (row["title"], row["top1"]) for row in demo.table_rows(tmp_path, tmp_path / "r0.5", tmp_path / "runs.jsonl")
    ]
    assert titles[:3] == [
        ("base, full head", 0.8),
        ("base, restricted to the classes", 0.9),
        ("base, fine-tuned on them", 0.95),
    ]


def test_the_program_knows_every_command_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = parse_commands(monkeypatch, tmp_path / "demo")
    monkeypatch.setattr(images, "ensure", lambda *_, **__: tmp_path / "data")
    demo.main()
    assert typed == ["base", "sweep", "derive", "export", "bench", "show", "report"]
