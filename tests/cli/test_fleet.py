"""`edgevit fleet` as a person types it, and the page of its plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
import yaml
from small_base import ARGS, NAME, PLAN, PREPROCESSING, write_checkpoint

from edgevit.errors import OutputError
from edgevit.jobs import workers
from edgevit.jobs.fleet.plan import read_plan
from edgevit.jobs.fleet.states import JOB_KIND, RECORD, JobRecord
from edgevit.records.lock import alone_in


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    base = {"base": NAME, "checkpoint": str(write_checkpoint(tmp_path)), "model_args": ARGS}
    content = {
        **{key: PLAN[key] for key in ("data", "accept_weak_base", "training", "methods")},
        "out": str(tmp_path / "fleet"),
        "bases": [{"name": "tiny", **base, "preprocessing": PREPROCESSING}],
        "tasks": [{"name": "odd", "classes": ["3", "7"]}, {"name": "bad", "classes": ["none"]}],
        "budgets": [{"name": "half", "rate": 0.5}],
        "boards": [{"name": "here"}],
        "gates": ["p99<1ns"],
        "prices": {"cpu": 3600},
        "export": {"accuracy": False},
        "bench": {"samples": 3, "duration_s": 0.01, "warmup": 1, "warmup_seconds": 0.01},
        "threads": 1,
        "workers": 1,
    }
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_the_states_are_listed_and_nothing_is_done(plan_file: Path, edgevit_main: Any, tmp_path: Path) -> None:
    listed = edgevit_main("fleet", plan_file, "--status", "--json")
    assert listed.code == 1 and {job["state"] for job in json.loads(listed.out)["jobs"]} == {"waiting"}
    shown = edgevit_main("fleet", plan_file, "--status").out
    assert "2 jobs wait for a worker" in shown
    assert "2 jobs wait for odd-tiny-half-nuwa, which waits" in shown
    assert not (tmp_path / "fleet").exists()


@pytest.mark.slow
def test_on_a_terminal_the_states_are_shown_anew_until_nothing_is_left_that_can_be_done(plan_file: Path) -> None:
    content = yaml.safe_load(plan_file.read_text())
    plan_file.write_text(yaml.safe_dump({**content, "tasks": content["tasks"][:1]}))
    derive, *_ = read_plan(plan_file).jobs
    derive.folder.mkdir(parents=True)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "edgevit", "fleet", str(plan_file), "--status"]
    with alone_in(derive.folder, OutputError("busy")):
        watching = subprocess.Popen(command, stdout=theirs, env={**os.environ, "COLUMNS": "120"})
        os.close(theirs)
        text = b""
        while text.count(b"odd-tiny-half-nuwa is running") < 2:
            text += os.read(ours, 4096)
        assert b"2 jobs wait for odd-tiny-half-nuwa, which runs" in text and watching.poll() is None
        record = JobRecord(derive.name, derive.sha256, "failed", "no such class", versions={"edgevit": "1"})
        (derive.folder / RECORD).write_text(JOB_KIND.text(record))
    last = b""
    try:
        while piece := os.read(ours, 4096):
            last += piece
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    assert watching.wait(30) == 1
    assert b"odd-tiny-half-nuwa failed: no such class" in last and b"which failed" in last


@pytest.mark.slow
def test_one_part_is_done_a_gate_that_fails_is_exit_code_3_and_the_page_is_of_the_plan(
    plan_file: Path, edgevit_main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_SPAWN", forks.server())
    done = edgevit_main("fleet", plan_file, "--only", "1/2")
    assert done.code == 3, done.err
    assert "odd-tiny-half-nuwa.bench@here failed: p99<1ns: fail" in done.out
    assert done.out.splitlines()[-1] == f"One page of it all: edgevit report {plan_file}"
    whole = edgevit_main("fleet", plan_file)
    assert whole.code == 1 and "bad-tiny-half-nuwa failed: " in whole.out
    assert "2 jobs wait for bad-tiny-half-nuwa, which failed" in whole.out
    page = edgevit_main("report", plan_file, "-o", tmp_path / "page.json")
    assert page.code == 0 and "job bad-tiny-half-nuwa" in page.err + page.out
    written = json.loads((tmp_path / "page.json").read_text())
    (cost,) = written["costs"]
    assert cost == json.loads(edgevit_main("fleet", plan_file, "--status", "--json").out)["cost"]
    derive, export, _ = cost["stages"]
    assert (derive["jobs"], export["jobs"]) == (2, 1) and cost["dollars"] > 0 and cost["boards"] == []
    assert derive["cpu_hours"] > 0 and derive["gpu_hours"] == 0

    content = yaml.safe_load(plan_file.read_text())
    plan_file.write_text(yaml.safe_dump({**content, "tasks": content["tasks"][:1]}))
    page = edgevit_main("report", plan_file, "-o", tmp_path / "page.html")
    assert page.code == 0 and "bad-tiny-half-nuwa" not in page.err + page.out, "a job that the plan has no more"
    html = (tmp_path / "page.html").read_text()
    assert "dollars at the plan&#39;s prices in dollars: 3600 of a processor hour" in html


def test_the_example_is_printed(edgevit_main: Any) -> None:
    printed = edgevit_main("fleet", "--example")
    assert printed.code == 0 and yaml.safe_load(printed.out)["out"] == "fleet"
