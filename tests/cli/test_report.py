"""`edgevit report`: what is printed beside the file."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from some_report import DATA, GOOD, derived, write_everything, write_folder


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return write_everything(tmp_path / "in")


def test_a_page_is_written_and_the_answer_printed(everything: Path, tmp_path: Path, edgevit_main: Any) -> None:
    page = tmp_path / "page.html"
    done = edgevit_main("report", everything, everything / "runs.jsonl", "-o", page)
    assert done.code == 0 and page.stat().st_size < 3_000_000
    first, *answers, last = done.out.splitlines()
    assert first.startswith("2 places of measurement are kept apart, as latencies do not compare: they differ in board")
    told = ["Nano, 25W: Take t1", "NX, 15W: Take t1", "not found · NX, 15W: Measured, but not found"]
    assert answers == told and last == f"wrote {page}, {page.stat().st_size / 1e6:.2g} MB"
    assert len(done.told) == 4 and done.told[-1] == "warning: left out: 1 more, which the report names"


def test_each_of_several_tasks_has_its_answer_and_one_task_is_one_line(tmp_path: Path, edgevit_main: Any) -> None:
    page, folder = tmp_path / "page.html", tmp_path / "in"
    write_folder(folder / "base")
    for seed in range(7):
        write_folder(folder / f"m{seed}", derivation=derived(GOOD, data=replace(DATA, seed=seed)))
        done = edgevit_main("report", folder, "-o", page)
        if seed == 0:
            assert done.out.startswith("Take m0: wrote ") and done.out.count("\n") == 1
        if seed == 5:
            assert done.out.splitlines()[-2] == "1 more answer is in the report"
    first, *answers, more, last = done.out.splitlines()
    assert first.startswith("7 tasks are kept apart") and last.startswith("wrote ")
    assert answers == [f"seed {seed}: Take m{seed}" for seed in range(5)]
    assert more == "2 more answers are in the report"


def test_tables_go_to_standard_output_and_nothing_beside_them(everything: Path, edgevit_main: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(edgevit_main("report", everything, "--format", "csv").out)))
    assert len(rows) == 11
    as_text = edgevit_main("report", everything, "--format", "md").out
    assert as_text.startswith("<!-- edgevit report -->\n## Take t1")
    assert edgevit_main("report", everything, "--format", "md", "-o", "-").out == as_text
    assert edgevit_main("report", everything, "-o", "-").out.lower().startswith("<!doctype html>")
    assert not Path("-").exists() and not Path("report.html").exists()
    told = json.loads(edgevit_main("report", everything, "--format", "md", "--json", "--gate", "p99<1ms").out)
    assert told["file"] is None and told["panels"][0]["take"] is None


def test_nothing_to_report_is_one_line(tmp_path: Path, edgevit_main: Any) -> None:
    assert "nothing to report in" in edgevit_main("report", tmp_path, "-o", tmp_path / "x.html").error


def test_a_ready_made_file_is_given_by_beside(everything: Path, edgevit_main: Any, tmp_path: Path) -> None:
    done = edgevit_main("report", everything, "--beside", tmp_path / "none.onnx")
    assert (done.code, done.told) == (1, [f"error: there is no {tmp_path / 'none.onnx'}; check the path of --beside"])
    (tmp_path / "weights.pt").touch()
    done = edgevit_main("report", everything, "--beside", tmp_path / "weights.pt")
    assert done.code == 1 and done.told[-1].endswith(
        "weights.pt is not an ONNX file; export the model to ONNX, and give that"
    )
