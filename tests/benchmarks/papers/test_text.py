"""The record of texts: what it would do for a folder of 20 Newsgroups' layout, and its table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from small_bert import WORDS, learnt_release, some_texts

from benchmarks.papers import text


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for part in ("train", "test"):
        for name in WORDS:
            folder = tmp_path / "20news" / f"20news-bydate-{part}" / name
            folder.mkdir(parents=True)
            for i, line in enumerate(some_texts(f"{name}", 6)):
                (folder / str(10_000 + i)).write_text(f"{line} {part}")
    base = learnt_release(tmp_path / "bert")
    arguments = ["text", "--data", str(tmp_path / "20news"), "--base", str(base), "--tasks", "2", "4"]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(text, "RECORDS", tmp_path)
    return arguments


def test_a_dry_run_opens_base_and_texts_and_lists_the_derivations(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    asked += ["--dry-run", "--tokens", "9"]
    text.main()
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "20 texts to train on, 24 to test, 9 tokens each" and len(others) == 2 * 2 * 2
    assert others[0] == "task 2, rate 0.6, method vulcan, seed 42, steps 200, tokens 9"


@pytest.mark.slow
def test_rows_are_measured_once(asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    asked += ["--rates", "0.4", "--methods", "forge", "--steps", "1"]
    asked.remove("4")
    text.main()
    (row,) = text.load_rows(tmp_path / "20news_text.json")
    assert row["accuracy"]["base_finetuned"] is not None and row["test_texts"] == 12
    text.main()
    assert len(text.load_rows(tmp_path / "20news_text.json")) == 1 and "| 2 | 0.4 | forge |" in capsys.readouterr().out


def test_the_table_has_the_published_figure_of_each_row() -> None:
    accuracy: dict[str, Any] = dict.fromkeys(("base_full_head", "base_restricted", "base_finetuned", "derived"), 0.5)
    row = {"task": 4, "rate": 0.8, "method": "vulcan", "seed": 42, "steps": 1, "macs": 10**6, "accuracy": accuracy}
    assert "| 85.68 |" in text.section([row]) and "85.68" not in text.section([{**row, "method": "forge"}])
    assert text.section([]) == ""


@pytest.mark.slow
def test_data_and_base_belong_together(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    del asked[3:5]
    with pytest.raises(SystemExit):
        text.main()
    assert "belong together" in capsys.readouterr().err
