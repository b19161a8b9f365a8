"""Each job of a plan, done here."""

from __future__ import annotations

import errno
import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import STANDINS
from seals import reseal

from edgevit.board.comparison import load_runs
from edgevit.errors import JobsError, OutputError
from edgevit.jobs.fleet import stages
from edgevit.jobs.fleet.plan import on_host, read_plan
from edgevit.jobs.fleet.stages import carry_out, with_keys
from edgevit.jobs.fleet.states import RECORD, RUNS, JobRecord, states_of
from edgevit.jobs.runners import FullDisk, Retry
from edgevit.records.lock import alone_in
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import open_partial, partial_folder
from edgevit.records.writing import writing


def test_a_model_is_derived_exported_and_measured_once_and_judged_by_the_gates_of_the_plan(fleet_plan: Any) -> None:
    derive, _, bench = jobs = read_plan(fleet_plan()).jobs
    records = [carry_out(job) for job in jobs]
    assert [record.state for record in records if isinstance(record, JobRecord)] == ["done"] * 3
    derivation = ModelFolder(derive.model).derivation()
    assert derivation is not None and derivation.job == derive.sha256
    assert any("base" in text for text in json.loads((derive.folder / RECORD).read_text())["warnings"])
    (run,) = load_runs(bench.folder / RUNS)
    assert run.label == derive.name and run.model_sha256 in {
        file.sha256 for file in ModelFolder(derive.model).export_record().files.values()
    }
    assert all(state.passed for state in states_of(jobs))

    before = {file: file.stat().st_mtime_ns for file in derive.model.parent.rglob("*") if file.is_file()}
    assert [carry_out(job) for job in jobs] == records
    assert {file: file.stat().st_mtime_ns for file in derive.model.parent.rglob("*") if file.is_file()} == before

    strict = read_plan(fleet_plan(gates=["p99<1ns", "p50<100s"])).jobs
    assert isinstance(carry_out(strict[2]), JobRecord)
    assert states_of(strict)[2].gates == {"p99<1ns": "fail", "p50<100s": "pass"} and not states_of(strict)[2].passed
    assert (bench.folder / RUNS).stat().st_mtime_ns == before[bench.folder / RUNS], "nothing is measured for a gate"

    (derive.folder / RECORD).unlink()
    assert isinstance(carry_out(derive), JobRecord), "a model that is there names its job"
    assert (derive.model / "model.json").stat().st_mtime_ns == before[derive.model / "model.json"]


def test_an_error_is_the_result_of_its_job_with_the_keys_of_the_plan(fleet_plan: Any) -> None:
    derive, *_ = jobs = read_plan(fleet_plan(tasks=[{"name": "bad", "classes": ["no such class"]}])).jobs
    failed = carry_out(derive)
    assert isinstance(failed, JobsError) and "no such class" in str(failed)
    assert states_of(jobs)[0].state == "failed" and states_of(jobs)[0].reason == str(failed)


def test_the_error_of_a_job_names_keys_of_the_file() -> None:
    error = "or go on as it is with --accept-weak-base --accept-preprocessing; choose another --out"
    keys = "or go on as it is with accept_weak_base: true accept_preprocessing: true; choose another out"
    assert with_keys(error) == keys


def test_a_job_begun_with_other_settings_is_told_of_what_a_plan_has(fleet_plan: Any) -> None:
    derive, *_ = read_plan(fleet_plan()).jobs
    folder = partial_folder(derive.model)
    with open_partial(derive.model, {"of": "another"}, resume=False):
        (folder / "took_long").touch()
    assert str(carry_out(derive)).endswith(f"give the same ones, choose another out, or remove {folder}")


@pytest.mark.parametrize("content", [None, '{"accuracy": {"der', "[]", "other job"])
def test_a_folder_that_does_not_say_it_is_the_job_s_is_not_taken_for_it(content: str | None, fleet_plan: Any) -> None:
    derive, *_ = read_plan(fleet_plan()).jobs
    assert isinstance(carry_out(derive), JobRecord)
    (derive.folder / RECORD).unlink()
    file = derive.model / "derivation.json"
    if content == "other job":
        reseal(file, lambda told: told.pop("job"))  # as `edgevit derive` writes it
    elif content is None:
        file.unlink()
    else:
        file.write_text(content)
    refused = carry_out(derive)
    assert isinstance(refused, JobsError) and str(derive.model) in str(refused), refused


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_full_disk_is_a_fault_of_the_machine_and_leaves_no_record(
    is_wrapped: bool, fleet_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        with writing(Path("m")) if is_wrapped else nullcontext():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")

    monkeypatch.setattr(stages, "derive", fill)
    derive, *_ = jobs = read_plan(fleet_plan()).jobs
    path = "m" if is_wrapped else "/tmp/x"
    end = carry_out(derive)
    assert isinstance(end, FullDisk) and end.reason.startswith(f"cannot write {path}: No space left on device")
    assert states_of(jobs)[0].state == "waiting" and not (derive.folder / RECORD).exists()


def test_a_job_that_another_process_does_is_put_off(fleet_plan: Any) -> None:
    derive, *_ = read_plan(fleet_plan()).jobs
    derive.folder.mkdir(parents=True)
    with alone_in(derive.folder, OutputError("busy")):
        assert carry_out(derive) == Retry(f"another edgevit does {derive.name}", is_elsewhere=True)
    assert not derive.model.exists()


def test_a_job_on_a_board_that_does_not_answer_waits_and_says_so(fleet_plan: Any, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host orin\n  HostName 127.0.0.1\n  Port 1\n")
    budgets = [{"name": "live", "fps": 30, "board": "orin"}]
    jobs = read_plan(
        fleet_plan(boards=[{"name": "orin", "ssh_config": str(config)}], budgets=budgets, methods=None)
    ).jobs
    put_off = carry_out(jobs[0])  # the budget is measured there
    assert isinstance(put_off, Retry) and "orin" in put_off.reason
    states = states_of(jobs)
    assert [state.state for state in states] == ["waiting"] * 4
    assert states[0].reason == f"as {put_off.reason}" and states[3].reason == f"for {jobs[0].name}, which waits"


@pytest.mark.slow
def test_on_a_board_the_engine_is_built_judged_and_measured(fleet_plan: Any, sshd: Any) -> None:
    server = sshd(PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    board = {"name": "orin", "host": server.host, "ssh_config": str(server.config)}
    bench = {"samples": 3, "duration_s": 0.01, "warmup": 1, "warmup_seconds": 0.01}
    jobs = read_plan(fleet_plan(boards=[board], bench=bench, export={"max_images": 20})).jobs
    ends = [carry_out(job) for job in jobs]
    assert [end.state if isinstance(end, JobRecord) else str(end) for end in ends] == ["done"] * 4
    (engine,) = ModelFolder(jobs[0].model).export.engines()
    (run,) = load_runs(jobs[3].folder / RUNS)
    assert (run.runner, run.model_sha256) == ("tensorrt", engine.sha256)


@pytest.mark.slow
def test_models_of_one_shape_share_the_times_of_kernels_on_their_board_and_each_has_its_own_engine(
    fleet_plan: Any, sshd: Any
) -> None:
    server = sshd(PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    board = {"name": "orin", "host": server.host, "ssh_config": str(server.config)}
    tasks = [{"name": name, "classes": classes} for name, classes in (("odd", ["3", "7"]), ("even", ["2", "4"]))]
    plan = read_plan(fleet_plan(boards=[board], tasks=tasks, export={"max_images": 20, "accuracy": False}))
    jobs = [job for job in plan.jobs if job.stage != "bench"]
    assert [end.state if isinstance(end, JobRecord) else str(end) for end in map(carry_out, jobs)] == ["done"] * 6
    models = (job.model for job in jobs if job.stage == "engine")
    first, second = (engine for model in models for engine in ModelFolder(model).export.engines())
    assert first.timing_cache and second.timing_cache and first.timing_cache.path == second.timing_cache.path
    assert Path(first.timing_cache.path).is_relative_to(server.cache) and first.timing_cache.bytes_before == 0
    assert second.timing_cache.bytes_before == second.timing_cache.bytes_after == first.timing_cache.bytes_after > 0
    assert first.sha256 != second.sha256, "an engine has the weights in it"


@pytest.mark.slow
def test_of_equal_boards_any_uses_the_engine_of_another_and_one_that_differs_is_left_out(
    fleet_plan: Any, sshd: Any, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    for name, release in (("orin1", "10.3.0"), ("orin2", "10.3.0"), ("odd", "10.7.0")):
        server = sshd(PYTHONPATH=STANDINS, STANDIN_TENSORRT=release)
        with config.open("a") as opened:
            opened.write(server.config.read_text().replace(f"Host {server.host}", f"Host {name}") + "\n")
    boards = [{"name": "orins", "hosts": ["orin1", "orin2", "odd"], "ssh_config": str(config)}]
    bench = {"samples": 3, "duration_s": 0.01, "warmup": 1, "warmup_seconds": 0.01}
    derive, export, engine, measured = read_plan(fleet_plan(boards=boards, bench=bench, export={"max_images": 20})).jobs
    ends = [carry_out(job) for job in (derive, export, on_host(engine, "orin1"))]
    assert all(isinstance(end, JobRecord) for end in ends), ends
    left_out = carry_out(on_host(measured, "odd"))
    assert isinstance(left_out, Retry) and left_out.leaves_out
    assert "odd is" in left_out.reason and "trt10.7.0" in left_out.reason and "trt10.3.0" in left_out.reason
    end = carry_out(on_host(measured, "orin2"))
    assert isinstance(end, JobRecord) and (end.board, end.state) == ("orin2", "done")

    # As of one board whose TensorRT is another by now.
    (measured.folder / RECORD).unlink()
    changed = carry_out(replace(on_host(measured, "odd"), hosts=()))
    assert isinstance(changed, JobsError) and "the same command builds the engine again" in str(changed)
    assert not (engine.folder / RECORD).exists()
