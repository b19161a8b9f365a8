"""What becomes of the jobs of a plan, whatever happens to their processes and files."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import bad_jobs
import pytest
from board_fixtures import processes
from forks import Program, server
from recorded_progress import RecordedProgress
from small_base import PLAN, write_checkpoint

from edgevit.errors import OutputError
from edgevit.jobs import many
from edgevit.jobs.fleet.plan import FleetJob
from edgevit.jobs.fleet.states import JOB_KIND, RECORD, JobRecord
from edgevit.jobs.jobs_file import read_jobs
from edgevit.jobs.many import derive_many
from edgevit.records.kinds import seal
from edgevit.records.lock import alone_in
from edgevit.records.unfinished import has_state


def test_jobs_are_done_once_and_one_that_fails_does_not_stop_the_rest(
    plan: Any, tmp_path: Path, edgevit_main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgevit.jobs.workers._SPAWN", server())  # no worker need be started from nothing
    checkpoint = str(write_checkpoint(tmp_path))
    tasks = [{"name": "bad", "classes": ["no such class"]}, *PLAN["tasks"]]  # type: ignore[misc]
    file = plan(checkpoint=checkpoint, tasks=tasks)
    ran = edgevit_main("derive-many", file, "--workers", "1", "--json")
    rows = {row["job"]: row for row in json.loads(ran.out)["rows"]}
    assert ran.code == 1 and {name: row["state"] for name, row in rows.items()} == {
        "bad-half-nuwa": "failed",
        "odd-half-nuwa": "done",
        "even-half-nuwa": "done",
    }
    assert "no such class" in rows["bad-half-nuwa"]["error"]
    (weak,) = rows["odd-half-nuwa"]["warnings"]
    assert "base" in weak and f"odd-half-nuwa: {weak}" in " ".join(ran.err.split()), "what a worker warns of is told"
    assert rows["even-half-nuwa"]["top1"] == pytest.approx(_top1(tmp_path / "out" / "even-half-nuwa"))
    assert f"even-half-nuwa: top-1 {100 * rows['even-half-nuwa']['top1']:.2f} % (" in ran.err
    stamp = (tmp_path / "out" / "odd-half-nuwa" / "model.json").stat().st_mtime_ns
    good = plan(checkpoint=checkpoint)
    again = derive_many(good)
    assert all(row.state == "done" for row in again)
    assert (tmp_path / "out" / "odd-half-nuwa" / "model.json").stat().st_mtime_ns == stamp
    changed = derive_many(plan(checkpoint=checkpoint, budgets=[{"name": "half", "rate": 0.45}]))
    told = "exists and is not overwritten; choose another out, or remove it"  # nothing else can be asked for
    assert all(row.state == "failed" and row.error == f"{row.out} {told}" for row in changed)
    assert [row.state for row in derive_many(plan(checkpoint=checkpoint))] == ["done", "done"], "nothing is forgotten"
    _models_outlive_what_is_told_of_them(good, tmp_path / "out" / "jobs" / "odd-half-nuwa" / RECORD, rows)
    assert (tmp_path / "out" / "odd-half-nuwa" / "model.json").stat().st_mtime_ns == stamp


def _models_outlive_what_is_told_of_them(plan_file: Path, file: Path, rows: dict[str, Any]) -> None:
    """Every model that is there is done, however little of a job's record is left, and nothing is worked out again."""
    good = file.read_text()

    def sealed(text: str) -> str:
        return json.dumps(seal(json.loads(text)))

    for content in (
        None,
        sealed(good.replace('"done"', '"failed"')),  # as if the machine went down before the end was told
        good.replace('"done"', '"failed"'),
        good[: len(good) // 2],
        '{"schema": 1, "job": 3}',
    ):
        file.unlink() if content is None else file.write_text(content)
        again = derive_many(plan_file)
        assert {(row.job, row.state, row.top1) for row in again} == {
            (name, "done", row["top1"]) for name, row in rows.items() if row["state"] == "done"
        }, content


def test_the_row_of_a_model_whose_records_cannot_be_read_has_no_figures_and_says_so(plan: Any) -> None:
    job = read_jobs(plan())[0][0]
    folder, noting = Path(job.out), RecordedProgress()
    folder.mkdir(parents=True)
    (folder / "model.json").write_text('{"accuracy": {"der')
    done = JobRecord(job.name, job.sha256(), "done", seconds=2.5, warnings=("weak",), versions={"edgevit": "0.1.0"})
    fleet_job = FleetJob(job.name, "derive", folder.parent / "jobs" / job.name, folder, job.sha256(), job, {})
    fleet_job.folder.mkdir(parents=True)
    (fleet_job.folder / RECORD).write_text(JOB_KIND.text(done))
    row = many._row(fleet_job, None, noting)
    assert (row.state, row.seconds, row.top1, row.warnings) == ("done", 2.5, None, ("weak",))
    assert "model.json is not JSON" in noting.warnings[0]


def _top1(folder: Path) -> float:
    return float(json.loads((folder / "derivation.json").read_text())["accuracy"]["derived"]["top1"])


def test_what_every_job_would_fail_with_is_refused_once_and_nothing_is_started(
    plan: Any, tmp_path: Path, edgevit_main: Any
) -> None:
    missing = tmp_path / "none.safetensors"
    assert edgevit_main("derive-many", plan(checkpoint=str(missing))).error == (
        f"error: no weights at {missing}; check the path"
    )
    assert not list((tmp_path / "out").glob("*half*"))
    assert edgevit_main(
        "derive-many", plan(checkpoint=str(write_checkpoint(tmp_path)), data="nowhere")
    ).error.startswith("error: data nowhere does not exist")


def test_a_training_that_a_later_job_cannot_do_is_refused_before_the_first_begins(
    plan: Any, tmp_path: Path, edgevit_main: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)  # the library is not installed
    file = plan(checkpoint=str(write_checkpoint(tmp_path)), methods=[{"name": "nuwa"}, {"name": "torch_pruning"}])
    assert "torch-pruning" in edgevit_main("derive-many", file).error
    assert not (tmp_path / "out").exists()


def test_a_worker_that_is_ended_from_outside_fails_its_job_alone(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgevit.jobs.workers._SPAWN", server())
    monkeypatch.setattr(many, "carry_out", bad_jobs.die)
    rows = derive_many(plan(checkpoint=str(write_checkpoint(tmp_path))), workers=1)
    assert [row.state for row in rows] == ["failed", "done"]
    assert "ended from outside (signal 9)" in str(rows[0].error)


def test_a_fault_of_edgevit_in_a_worker_fails_its_job_and_is_printed(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(many, "carry_out", bad_jobs.fail)
    (row,) = derive_many(plan(checkpoint=str(write_checkpoint(tmp_path)), tasks=PLAN["tasks"][:1]))  # type: ignore[index]
    assert "exit code 1; what is printed above is a fault of edgevit" in str(row.error)
    assert "ZeroDivisionError: a fault of edgevit" in capfd.readouterr().err


def test_a_second_derive_many_on_one_plan_is_one_line_and_changes_nothing(
    plan: Any, tmp_path: Path, edgevit_main: Any
) -> None:
    (tmp_path / "out").mkdir()
    with alone_in(tmp_path / "out", OutputError("busy")):
        told = edgevit_main("derive-many", plan()).error
    assert told == f"error: another edgevit is working in {tmp_path / 'out'}; wait until it has ended"
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_at_all_are_refused(workers: int, plan: Any, tmp_path: Path, edgevit_main: Any) -> None:
    file = plan(checkpoint=str(write_checkpoint(tmp_path)))
    assert f"workers {workers} is less than 1" in edgevit_main("derive-many", file, "--workers", workers).error
    assert not (tmp_path / "out").exists()


TRAINING = {"steps": 3000, "batch_size": 24, "device": "cpu", "evaluations": 30, "lr": 1e-4, "early_stop": False}


@pytest.mark.slow
def test_workers_end_with_their_parent_and_what_trains_keeps_its_state(plan: Any, tmp_path: Path) -> None:
    """Where the parent ends by SIGTERM; tests/jobs/test_workers.py kills it."""
    file = plan(
        checkpoint=str(write_checkpoint(tmp_path)),
        tasks=[{"name": "odd", "classes": "3,7"}],
        methods=[{"name": "vulcan", "training": TRAINING}],
    )
    history = tmp_path / "out" / "odd-half-vulcan.partial" / "history.jsonl"
    program = Program("-m", "edgevit", "derive-many", file, new_session=True)
    while not (history.is_file() and '"step": 3' in history.read_text()):
        assert program.poll() is None
        time.sleep(0.05)
    workers = _children(program.pid)
    program.send_signal(signal.SIGTERM)
    assert program.wait() == 130 and "Traceback" not in program.stderr
    assert program.stderr.splitlines()[-1].startswith("error: stopped; the same command")
    _wait_until_gone(workers)
    state = json.loads((history.parent / "train" / "progress.json").read_text())
    assert 3 <= state["point"]["step"] < TRAINING["steps"] and has_state(history.parent)
    with alone_in(tmp_path / "out", OutputError("busy")):
        pass


def _children(process: int) -> list[int]:
    return [child for child, (parent, _) in processes().items() if parent == process]


def _wait_until_gone(processes: list[int]) -> None:
    assert processes
    until = time.monotonic() + 60
    while left := [p for p in processes if Path(f"/proc/{p}").exists()]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_ctrl_c_while_a_worker_starts_is_one_line(plan: Any, tmp_path: Path) -> None:
    file = plan(checkpoint=str(write_checkpoint(tmp_path)))
    program = Program("-m", "edgevit", "derive-many", file, new_session=True)
    while not _children(program.pid) and program.poll() is None:
        time.sleep(0.05)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does
    assert program.wait() == 130 and "Traceback" not in program.stderr
    assert program.stderr.splitlines()[-1].startswith("error: stopped; the same command")
