"""A whole plan in worker processes, whatever breaks on the way."""

from __future__ import annotations

import hashlib
import json
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from forks import Program, server
from small_base import ARGS, NAME, PLAN, PREPROCESSING, QUICK, write_checkpoint

from edgevit.errors import JobsError
from edgevit.jobs.fleet import run
from edgevit.jobs.fleet.plan import read_plan
from edgevit.jobs.fleet.run import fleet
from edgevit.jobs.fleet.states import RECORD
from edgevit.jobs.runners import Job


def stamps(folder: Path) -> dict[str, int]:
    """When each file in a folder was written."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}


@pytest.mark.slow
def test_all_jobs_are_done_once_and_one_that_fails_does_not_stop_the_rest(
    fleet_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgevit.jobs.workers._SPAWN", server())
    tasks = [{"name": "bad", "classes": ["no such class"]}, {"name": "odd", "classes": ["3", "7"]}]
    file = fleet_plan(tasks=tasks)
    states = {state.job: state for state in fleet(file)}
    model = "odd-tiny-half-nuwa"
    done = {name for name, state in states.items() if state.holds}
    assert done == {model, f"{model}.export", f"{model}.bench@here"}
    bad = states["bad-tiny-half-nuwa"]
    assert bad.state == "failed" and "no such class" in str(bad.reason)
    assert states["bad-tiny-half-nuwa.bench@here"].reason == "for bad-tiny-half-nuwa, which failed"
    before = stamps(read_plan(file).out)
    assert {state.job for state in fleet(fleet_plan(tasks=tasks[1:]))} == done
    assert stamps(read_plan(file).out) == before


def test_all_impossible_budgets_are_named_before_anything_starts(fleet_plan: Any, tmp_path: Path) -> None:
    budgets = [{"name": "some", "rate": 0.5}, {"name": "few", "macs": "10k"}, {"name": "many", "macs": "5G"}]
    with pytest.raises(JobsError) as refused:
        fleet(fleet_plan(budgets=budgets))
    told = str(refused.value)
    assert told.startswith("2 of 3 budgets cannot be met: "), told
    assert "macs 10k leaves" in told and "--macs 5G is not below" in told, told
    assert not (tmp_path / "fleet").exists()


def test_a_job_whose_process_died_is_shown_as_failed(fleet_plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(jobs: Sequence[Job[Any, Any]], *_: object, **options: object) -> Iterator[tuple[Job[Any, Any], Any]]:
        first = next(job for job in jobs if not job.needs)
        yield first, None
        yield first, JobsError("its process was ended from outside (signal 9)")

    monkeypatch.setattr(run, "run_in_processes", die)
    states = fleet(fleet_plan())
    assert [state.state for state in states] == ["failed", "waiting", "waiting"]
    assert states[0].reason == "its process was ended from outside (signal 9)"


def weights(folder: Path) -> dict[str, str]:
    files = sorted(folder.glob("*/model.safetensors"))
    return {file.parent.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_what_the_same_command_ends_bit_identically_to_a_serial_run(
    fleet_plan: Any, tmp_path: Path
) -> None:
    """12 derivations, 2 bases x 3 tasks x 2 budgets; only what was running is done twice."""
    second = tmp_path / "second"
    second.mkdir()
    known = {"base": NAME, "preprocessing": PREPROCESSING}
    bases = [
        {"name": "tiny", **known, "checkpoint": str(write_checkpoint(tmp_path)), "model_args": ARGS},
        {
            "name": "deep",
            **known,
            "checkpoint": str(write_checkpoint(second, depth=3)),
            "model_args": {**ARGS, "depth": 3},
        },
    ]
    changes = {
        "bases": bases,
        "tasks": [{"name": f"t{number}", "classes": [str(number), str(number + 3)]} for number in range(3)],
        "budgets": [{"name": "half", "rate": 0.5}, {"name": "less", "rate": 0.3}],
        "methods": [{**PLAN["methods"][0], "training": {**QUICK, "steps": 3}}],  # type: ignore[index]
    }
    serial = fleet_plan(**changes, out=str(tmp_path / "serial"))
    assert all(state.holds for state in fleet(serial))

    file, out = fleet_plan(**changes, workers=2), tmp_path / "fleet"
    program = Program("-m", "edgevit.cli", "fleet", file, new_session=True)
    while len(list(out.glob(f"jobs/*/{RECORD}"))) < 10:
        assert program.poll() is None, program.stderr
        time.sleep(0.05)
    program.send_signal(signal.SIGKILL)
    program.wait()
    time.sleep(1)  # its workers end by themselves
    before = {name: stamp for name, stamp in stamps(out / "jobs").items() if name.endswith(RECORD)}
    ended = Program("-m", "edgevit.cli", "fleet", file, "--json")
    while (code := ended.poll()) is None:  # minutes, where the machine is busy
        time.sleep(0.1)
    assert code == 0, ended.stderr
    states = json.loads(ended.stdout)["jobs"]
    assert len(states) == 36 and {state["state"] for state in states} == {"done"}
    after = stamps(out / "jobs")
    assert {name: after[name] for name in before} == before, "nothing that was done is done again"
    assert len(weights(out)) == 12 and weights(out) == weights(tmp_path / "serial")
