"""Both pages are made from the records, and `make benchmark` runs every script that they show."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from places import ROOT

from benchmarks.markdown import RECORDS
from benchmarks.papers import published_curve, tables
from benchmarks.product import results


@pytest.mark.parametrize("page", [results, tables], ids=["product", "papers"])
def test_a_page_is_made_from_the_records(page: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file: Path = page.FILE  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "argv", ["page", "--out", str(tmp_path / file.name)])
    page.main()  # type: ignore[attr-defined]
    text = (tmp_path / file.name).read_text()
    assert text == file.read_text(), "run python -m benchmarks.product.results and benchmarks.papers.tables"
    assert re.findall(r"^- \[.+\]\(#(.+)\)$", text, re.MULTILINE) == [
        results.anchor(title) for title in re.findall(r"^## (.+)$", text, re.MULTILINE)
    ]
    for picture in re.findall(r"!\[.*?\]\((.+?)\)", text):
        assert (file.parent / picture).exists()
    if page is tables:
        assert (tmp_path / published_curve.FILE.name).read_text() == published_curve.FILE.read_text()


def test_a_question_is_one_screen() -> None:
    for screen in results.FILE.read_text().split("\n## ")[1:]:
        assert len(screen.splitlines()) <= 45 and "\nCommand: `python -m benchmarks.product." in screen, screen[:40]
        assert "\nNot shown: " in screen


def test_make_benchmark_measures_every_record() -> None:
    target = (ROOT / "Makefile").read_text().partition("\nbenchmark:")[2].partition("\n\n")[0]
    scripts = re.findall(r"-m (benchmarks\.\w+\.\w+)", target)
    text = "".join((ROOT / f"{script.replace('.', '/')}.py").read_text() for script in scripts)
    # make demo; by hand; on a GPU; with downloads
    elsewhere = {"demo", "same_results", "derivation_cost_cuda", "shapes_cuda"}
    elsewhere |= {"real", "backbone", "ready_made", "saliency"}
    for file in RECORDS.glob("*.json"):
        name = re.sub(r"_(fashion|fine)$", "", file.stem)
        assert name in elsewhere or f'"{name}' in text or f"/{name}.json" in text, name
        assert isinstance(json.loads(file.read_text()), dict)
    assert scripts[-2:] == ["benchmarks.product.results", "benchmarks.papers.tables"]
