"""Plans: what they may hold, and what becomes of their jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_base import ARGS, PREPROCESSING, QUICK, write_checkpoint

from edgevit.derive import many
from edgevit.derive.many import derive_many, read_plan
from edgevit.errors import PlanError, UnknownNameError

SMALL = {
    "base": "vit_tiny_patch16_224",
    "model_args": ARGS,
    "preprocessing": PREPROCESSING,
    "data": "digits",
    "accept_weak_base": True,  # it is random
    "training": {**QUICK, "steps": 0},
    "tasks": [{"name": "odd", "classes": ["3", "7", "9"]}, {"name": "even", "classes": "2,4"}],
    "budgets": [{"name": "half", "rate": 0.5}],
    "methods": [{"name": "nuwa", "options": {"purification": "none"}}],
}


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    """Write the small plan with some keys changed."""

    def write(**changed: Any) -> Path:
        held = {**SMALL, "out": str(tmp_path / "out"), **changed}
        file = tmp_path / "plan.yaml"
        file.write_text(yaml.safe_dump({k: v for k, v in held.items() if v is not None}))
        return file

    return write


def test_the_first_job_of_every_task_comes_before_all_others(plan: Any) -> None:
    jobs, _ = read_plan(plan(budgets=[{"name": "half", "rate": 0.5}, {"name": "tenth", "params": "300k"}]))
    assert [job.name for job in jobs] == ["odd-half-nuwa", "even-half-nuwa", "odd-tenth-nuwa", "even-tenth-nuwa"]
    assert len({job.sha256() for job in jobs}) == 4
    assert jobs[0].arguments["method"] == "nuwa" and jobs[2].arguments["params"] == "300k"


JOB = {"name": "one", "task": "odd", "budget": "half", "method": "nuwa"}


@pytest.mark.parametrize(
    ("changed", "error", "told"),
    [
        ({"tsks": []}, PlanError, r"plan.yaml: unknown key 'tsks'; known: base, out, tasks"),
        ({"budgets": [{"name": "x", "rat": 0.5}]}, PlanError, r"unknown key 'budgets.0.rat'; known: name, rate, macs"),
        ({"base": None}, PlanError, "base: field required"),
        ({"workers": "two"}, PlanError, "workers: input should be a valid integer"),
        ({"tasks": [{"name": "a"}, {"name": "a"}]}, PlanError, "two tasks are named 'a'"),
        ({"jobs": [JOB, JOB]}, PlanError, "two jobs are named 'one'"),
        (
            {"jobs": [{**JOB, "out": "x/y"}, {**JOB, "name": "two", "out": "x/../x/y"}]},
            PlanError,
            "jobs 'one' and 'two' both write x/../x/y",
        ),
        ({"jobs": [{**JOB, "task": "od"}]}, UnknownNameError, "no task of job 'one' 'od'; did you mean 'odd'"),
        ({"data": None}, PlanError, "task 'odd' has no data"),
        ({"training": {"stps": 3}}, UnknownNameError, "no training setting 'stps'; did you mean 'steps'"),
        ({"methods": []}, PlanError, "no methods; give at least one"),
        ({"methods": [{"name": "nuwaa"}]}, UnknownNameError, "did you mean 'nuwa'"),
        ({"methods": [{"name": "nuwa", "options": {"purificaton": "none"}}]}, UnknownNameError, "'purification'"),
        ({"budgets": [{"name": "x", "rate": 0.5, "macs": "3G"}]}, PlanError, "budget 'x' is rate and macs; give one"),
        ({"budgets": [{"name": "x"}]}, PlanError, "budget 'x' is nothing; give one of rate"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(plan: Any, changed: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told) as seen:
        read_plan(plan(**changed))
    assert "\n" not in str(seen.value)


def test_a_plan_that_is_no_yaml_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("tasks: [")
    with pytest.raises(PlanError, match="is not YAML"):
        read_plan(tmp_path / "plan.yaml")
    with pytest.raises(PlanError, match="No such file"):
        read_plan(tmp_path / "none.yaml")


def test_jobs_are_done_once_and_one_that_fails_does_not_stop_the_rest(
    plan: Any, tmp_path: Path, edgevit_main: Any
) -> None:
    checkpoint = str(write_checkpoint(tmp_path))
    tasks = [{"name": "bad", "classes": ["no such class"]}, *SMALL["tasks"]]  # type: ignore[misc]
    file = plan(checkpoint=checkpoint, tasks=tasks)
    ran = edgevit_main("derive-many", file, "--workers", "1", "--json")
    rows = {row["job"]: row for row in json.loads(ran.out)["rows"]}
    assert ran.code == 1 and {name: row["state"] for name, row in rows.items()} == {
        "bad-half-nuwa": "failed",
        "odd-half-nuwa": "done",
        "even-half-nuwa": "done",
    }
    assert "no such class" in rows["bad-half-nuwa"]["error"]
    assert rows["even-half-nuwa"]["top1"] == pytest.approx(_top1(tmp_path / "out" / "even-half-nuwa"))
    table = (tmp_path / "out" / "results.md").read_text()
    assert table.count("\n") == 5 and "| odd-half-nuwa |" in table
    stamp = (tmp_path / "out" / "odd-half-nuwa" / "model.json").stat().st_mtime_ns
    good = plan(checkpoint=checkpoint)
    again = derive_many(good)
    assert all(row.state == "done" for row in again)
    assert (tmp_path / "out" / "odd-half-nuwa" / "model.json").stat().st_mtime_ns == stamp
    changed = derive_many(plan(checkpoint=checkpoint, budgets=[{"name": "half", "rate": 0.45}]))
    assert all(row.state == "failed" and "is not overwritten" in str(row.error) for row in changed)
    assert [row.state for row in derive_many(plan(checkpoint=checkpoint))] == ["done", "done"], "nothing is forgotten"
    _forget_that_it_ended(tmp_path / "out" / "results.json", "odd-half-nuwa")
    told = {row.job: row for row in derive_many(plan(checkpoint=checkpoint))}["odd-half-nuwa"]
    assert (told.state, told.top1) == ("done", rows["odd-half-nuwa"]["top1"])
    assert (tmp_path / "out" / "odd-half-nuwa" / "model.json").stat().st_mtime_ns == stamp


def _forget_that_it_ended(file: Path, job: str) -> None:
    """As if the machine had gone down between writing the model and telling of it."""
    held = json.loads(file.read_text())
    for row in held["rows"]:
        row["state"] = "started" if row["job"] == job else row["state"]
    file.write_text(json.dumps(held))


def test_a_file_of_other_content_makes_another_job(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("3, 7")
    asked = plan(tasks=[{"name": "odd", "classes": str(tmp_path / "odd.txt")}], checkpoint=str(tmp_path / "none"))
    before = read_plan(asked)[0][0].sha256()
    assert read_plan(asked)[0][0].sha256() == before
    (tmp_path / "odd.txt").write_text("3, 7, 9")
    assert read_plan(asked)[0][0].sha256() != before


def _top1(folder: Path) -> float:
    return float(json.loads((folder / "derivation.json").read_text())["accuracy"]["derived"]["top1"])


def _die(job: many.Job) -> many.Row:
    """Stand in for a job whose process the system ends; at module level, so that a worker can import it."""
    if job.task == "odd":
        os.kill(os.getpid(), signal.SIGKILL)
    return many.Row(job.name, job.task, job.budget, job.method, job.out, job.sha256(), "done", top1=1.0)


def test_a_worker_that_is_ended_from_outside_fails_its_job_alone(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "run_job", _die)
    rows = derive_many(plan(), workers=1)
    assert [row.state for row in rows] == ["failed", "done"]
    assert "ended from outside" in str(rows[0].error)


@pytest.mark.parametrize("after_s", [0.0, 1.0])
def test_ctrl_c_while_a_worker_starts_is_one_line(plan: Any, tmp_path: Path, after_s: float) -> None:
    file, begun = plan(checkpoint=str(write_checkpoint(tmp_path))), tmp_path / "out" / "results.json"
    command = [sys.executable, "-m", "edgevit.cli", "derive-many", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while not begun.exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: stopped; the same command goes on")
