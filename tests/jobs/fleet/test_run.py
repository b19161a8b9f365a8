"""A whole plan in worker processes, whatever breaks on the way."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import bad_jobs
import counted_jobs
import pytest
from counted_jobs import Event
from forks import Program, server
from places import STANDINS
from recorded_progress import RecordedProgress
from small_base import ARGS, NAME, PLAN, PREPROCESSING, QUICK, write_checkpoint

from edgevit.errors import EdgeVitError, JobsError, OptionError, OutputError
from edgevit.jobs import runners
from edgevit.jobs.fleet import run
from edgevit.jobs.fleet.estimates import TimeLeft
from edgevit.jobs.fleet.plan import read_plan
from edgevit.jobs.fleet.request import FleetRequest
from edgevit.jobs.fleet.run import fleet, follow_runner
from edgevit.jobs.fleet.stages import WarningCollector, carry_out
from edgevit.jobs.fleet.states import JOB_KIND, RECORD, JobRecord
from edgevit.jobs.ray_cluster import run_on_ray
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
    done = {name for name, state in states.items() if state.passed}
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


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"budget_of": "whole"}, "--budget-of whole is for detectors, and --output is classes; leave it out"),
        ({"budget_of": "hole"}, "no part of a detector 'hole'; did you mean 'whole'?"),
        ({"remove_blocks": -1}, "--remove-blocks -1"),
        ({"reject": 2}, "--reject 2"),
    ],
    ids=["whole", "hole", "blocks", "reject"],
)
def test_an_option_of_all_derivations_that_cannot_be_is_refused_before_anything_starts(
    changed: dict[str, Any], reason: str, fleet_plan: Any, tmp_path: Path
) -> None:
    with pytest.raises(EdgeVitError) as refused:
        fleet(fleet_plan(**changed))
    assert reason in str(refused.value) and not (tmp_path / "fleet").exists()


def test_a_file_in_place_of_the_folder_of_all_results_is_refused_before_anything_starts(
    fleet_plan: Any, tmp_path: Path
) -> None:
    (tmp_path / "fleet").write_text("notes")
    with pytest.raises(OutputError, match=r"fleet is not a folder, so .* cannot be created"):
        fleet(fleet_plan())


def test_workers_are_not_for_a_cluster(fleet_plan: Any) -> None:
    with pytest.raises(OptionError, match="--workers is for processes on this machine"):
        fleet(FleetRequest(plan=fleet_plan(), workers=2, ray="auto"))


@pytest.mark.parametrize("can_write", [True, False])
def test_a_job_whose_process_died_is_shown_as_failed_also_where_no_record_can_be_written(
    can_write: bool, fleet_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(jobs: Sequence[Job[Any, Any]], *_: object, **options: object) -> Iterator[tuple[Job[Any, Any], Any]]:
        if not can_write:
            (tmp_path / "fleet").touch()
        first = next(job for job in jobs if not job.needs)
        yield first, None
        yield first, JobsError("its process was ended from outside (signal 9)")

    monkeypatch.setattr(run, "run_in_processes", die)
    derive, *_ = read_plan(fleet_plan()).jobs
    if can_write:  # after another failure
        derive.folder.mkdir(parents=True)
        earlier = JobRecord(derive.name, derive.sha256, "failed", "a check failed", versions={"edgevit": "1"})
        (derive.folder / RECORD).write_text(JOB_KIND.text(earlier))
    states = fleet(fleet_plan())
    assert [state.state for state in states] == ["failed", "waiting", "waiting"]
    assert states[0].reason == "its process was ended from outside (signal 9)"
    assert states[1].reason == "for odd-tiny-half-nuwa, which failed"


def test_ctrl_c_is_told_what_is_waited_for(fleet_plan: Any) -> None:
    derive, *_ = read_plan(fleet_plan()).jobs
    first, told = Job(derive.name, derive, carry_out), RecordedProgress()

    def stopped() -> Generator[Any, None, None]:
        yield first, None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow_runner(stopped(), TimeLeft([first], {}, {}, 1), told, stage="fleet")
    assert told.notes == ["stopping: trainings save their state first; press Ctrl-C again to end at once"]


def weights(folder: Path) -> dict[str, str]:
    files = sorted(folder.glob("*/model.safetensors"))
    return {file.parent.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def twelve(folder: Path, steps: int) -> dict[str, Any]:
    """The keys of a plan of 2 bases x 3 tasks x 2 budgets."""
    known = {"base": NAME, "preprocessing": PREPROCESSING}
    bases = []
    for name, depth in (("tiny", 2), ("deep", 3)):
        (folder / name).mkdir()
        checkpoint = str(write_checkpoint(folder / name, depth=depth))
        bases.append({"name": name, **known, "checkpoint": checkpoint, "model_args": {**ARGS, "depth": depth}})
    return {
        "bases": bases,
        "tasks": [{"name": f"t{number}", "classes": [str(number), str(number + 3)]} for number in range(3)],
        "budgets": [{"name": "half", "rate": 0.5}, {"name": "less", "rate": 0.3}],
        "methods": [{**PLAN["methods"][0], "training": {**QUICK, "steps": steps}}],  # type: ignore[index]
    }


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_what_the_same_command_ends_bit_identically_to_a_serial_run(
    fleet_plan: Any, tmp_path: Path
) -> None:
    """12 derivations, 2 bases x 3 tasks x 2 budgets; only what was running is done twice."""
    changes = twelve(tmp_path, steps=3)
    serial = fleet_plan(**changes, out=str(tmp_path / "serial"))
    assert all(state.passed for state in fleet(serial))

    file, out = fleet_plan(**changes, workers=2), tmp_path / "fleet"
    program = Program("-m", "edgevit", "fleet", file, new_session=True)
    while len(list(out.glob(f"jobs/*/{RECORD}"))) < 10:
        assert program.poll() is None, program.stderr
        time.sleep(0.05)
    program.send_signal(signal.SIGKILL)
    program.wait()
    time.sleep(1)  # its workers end by themselves
    before = {name: stamp for name, stamp in stamps(out / "jobs").items() if name.endswith(RECORD)}
    ended = Program("-m", "edgevit", "fleet", file, "--json")
    assert code_of(ended) == 0, ended.stderr
    states = json.loads(ended.stdout)["jobs"]
    assert len(states) == 36 and {state["state"] for state in states} == {"done"}
    after = stamps(out / "jobs")
    assert {name: after[name] for name in before} == before, "nothing that was done is done again"
    assert len(weights(out)) == 12 and weights(out) == weights(tmp_path / "serial")


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the file of `counted_jobs`, for processes that start later."""
    monkeypatch.setenv(counted_jobs.VARIABLE, str(tmp_path / "events"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("runner", ["processes", "ray"])
def test_two_drivers_at_once_do_no_job_twice_and_their_workers_compute_no_statistics_twice(
    runner: str,
    fleet_plan: Any,
    counted: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    more: list[str] = []
    if runner == "ray":
        cluster = request.getfixturevalue("cluster")
        cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        more = ["--ray", "auto"]
    budgets = [{"name": "half", "rate": 0.5}, {"name": "less", "rate": 0.3}]
    file = fleet_plan(budgets=budgets, methods=None, boards=None)
    for program in [Program(*counted_jobs.PROGRAM, "fleet", file, *more) for _ in range(2)]:
        assert code_of(program) == 0, program.stderr
    derivations = [f"odd-tiny-{budget['name']}-forge" for budget in budgets]
    assert times_done() == dict.fromkeys([*derivations, *(f"{name}.export" for name in derivations)], 1)
    entries = Counter(event.job for event in counted_jobs.events() if event.event == "entry")
    assert len(entries) > 2 and set(entries.values()) == {1}, entries


@pytest.mark.slow
def test_ctrl_c_ends_driver_and_workers_and_the_same_command_does_again_only_what_was_running(
    fleet_plan: Any, counted: None
) -> None:
    budgets = [{"name": f"b{number}", "rate": number / 10} for number in (3, 5, 7)]
    file = fleet_plan(budgets=budgets, boards=None)
    held = "odd-tiny-b5-nuwa"  # neither the first nor the last
    program = Program(*counted_jobs.PROGRAM, "fleet", file, new_session=True, variables={counted_jobs.HELD: held})
    until(lambda: any(event.job == held for event in counted_jobs.events()), program)
    assert ended() >= 2
    os.killpg(program.pid, signal.SIGINT)  # as a terminal, to driver and workers
    assert code_of(program) == 130 and "stopped; the same command continues" in program.stderr, program.stderr
    again = Program(*counted_jobs.PROGRAM, "fleet", file)
    assert code_of(again) == 0, again.stderr
    jobs = {job.name for job in read_plan(file).jobs}
    assert times_done() == dict.fromkeys(jobs, 1)
    begun = Counter(event.job for event in counted_jobs.events() if event.event == "begins")
    assert begun == {**dict.fromkeys(jobs, 1), held: 2}


def times_done() -> Counter[str]:
    """How often each job was done, and not only found done."""
    return Counter(job for job, _ in {(e.job, e.written_ns) for e in counted_jobs.events() if e.event == "done"})


def until(is_true: Callable[[], bool], program: Program) -> None:
    """Wait for something while a program runs."""
    while not is_true():
        assert program.poll() is None, program.stderr
        time.sleep(0.05)


def code_of(program: Program) -> int:
    """The exit code of a program, for which it may take minutes where the machine is busy."""
    while (code := program.poll()) is None:
        time.sleep(0.1)
    return code


def running_on(node: int) -> set[str]:
    """The jobs that run on a node, by the process number of its raylet."""
    jobs: set[str] = set()
    for event in counted_jobs.events():
        if event.parent == node:
            (jobs.add if event.event == "begins" else jobs.discard)(event.job)
    return jobs


def ended(stage: str = "") -> int:
    return sum(event.event == "done" and stage in event.job for event in counted_jobs.events())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_on_two_nodes_of_ray_a_lost_node_a_killed_driver_and_a_board_lost_twice_cost_only_what_was_running(
    fleet_plan: Any, counted: None, cluster: Any, sshd: Any, tmp_path: Path
) -> None:
    """12 derivations, 2 bases x 3 tasks x 2 budgets, each with export, engine and bench; as a serial run makes them."""
    board = sshd(PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    changes = twelve(tmp_path, steps=12)
    serial = read_plan(fleet_plan(**changes, boards=None, out=str(tmp_path / "serial"))).jobs
    assert all(isinstance(carry_out(job), JobRecord) for job in serial if job.stage == "derive")
    orin = {"name": "orin", "host": board.host, "ssh_config": str(board.config)}
    bench = {"samples": 3, "duration_s": 0.01, "warmup": 1, "warmup_seconds": 0.01}
    file = fleet_plan(**changes, boards=[orin], bench=bench, export={"max_images": 20, "accuracy": False})

    second = cluster.add_node(num_cpus=1)
    raylet = second.all_processes["raylet"][0].process.pid
    command = (*counted_jobs.PROGRAM, "fleet", file, "--ray", cluster.address, "--json")

    def lose_board(program: Program) -> None:
        board.stop()
        so_far = len(lost_board())
        until(lambda: len(lost_board()) > so_far, program)
        board.start()

    first = Program(*command)
    until(lambda: any("engine" in event.job for event in counted_jobs.events()), first)
    lose_board(first)
    until(lambda: bool(running_on(raylet)) and ended() >= 6, first)
    killed = running_on(raylet)
    cluster.remove_node(second, allow_graceful=False)
    until(lambda: ended() >= 14, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    events = counted_jobs.events()
    killed |= {event.job for event in events if events_of(events, event.job)[-1].event == "begins"}

    again = Program(*command)
    so_far = ended("bench")
    until(lambda: ended("bench") > so_far, again)
    lose_board(again)
    assert code_of(again) == 0, again.stderr
    states = json.loads(again.stdout)["jobs"]
    assert len(states) == 48 and {state["state"] for state in states} == {"done"}
    assert len(weights(tmp_path / "fleet")) == 12 and weights(tmp_path / "fleet") == weights(tmp_path / "serial")
    assert times_done() == dict.fromkeys((state["job"] for state in states), 1)
    begun = Counter(event.job for event in counted_jobs.events() if event.event == "begins")
    put_off = Counter(event.job for event in counted_jobs.events() if event.event == "put off")
    twice = {job for job, count in begun.items() if count > 1 + put_off[job]}
    assert twice <= killed, "only what was running is done again"
    assert len(lost_board()) >= 2


def lost_board() -> list[Event]:
    """The jobs that were put off for their board."""
    put_off = (event for event in counted_jobs.events() if event.event == "put off")
    return [event for event in put_off if "another edgevit does" not in event.reason]


def events_of(events: Sequence[Event], job: str) -> list[Event]:
    return [event for event in events if event.job == job]


@pytest.mark.slow
def test_jobs_of_a_board_that_does_not_answer_wait_and_say_so_and_the_others_go_on(
    fleet_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgevit.jobs.workers._SPAWN", server())
    monkeypatch.setattr(runners, "PAUSE_S", 0.1)
    config = tmp_path / "config"
    config.write_text("Host orin\n  HostName 127.0.0.1\n  Port 1\n")
    file = fleet_plan(boards=[{"name": "orin", "ssh_config": str(config)}, {"name": "here"}])
    states = {state.job.partition(".")[2]: state for state in fleet(file)}
    assert {name for name, state in states.items() if state.passed} == {"", "export", "bench@here"}
    engine, bench = states["engine@orin"], states["bench@orin"]
    assert (engine.state, bench.state) == ("waiting", "waiting")
    assert str(engine.reason).startswith("as ") and "orin" in str(engine.reason)
    assert bench.reason == f"for {engine.job}, which waits"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("size", "address"), [("50%", "client_address"), ("200k", "address")])
def test_a_node_that_does_not_see_the_folder_gets_inputs_and_gives_models_and_one_whose_disk_is_full_does_no_harm(
    size: str,
    address: str,
    counted: None,
    blind_node: Any,
    cluster: Any,
    fleet_plan: Any,
    image_folder: Any,
    base_weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "home"
    image_folder(home / "photos", {"c3": 12, "c7": 12})
    shutil.copy(base_weights, home / "base.safetensors")
    (home / "names.txt").write_text("".join(f"c{number}\n" for number in range(10)))
    monkeypatch.chdir(home)
    base = {"base": NAME, "checkpoint": "base.safetensors", "model_args": ARGS, "preprocessing": PREPROCESSING}
    keys = {
        "bases": [{"name": "tiny", **base, "base_classes": "names.txt"}],
        "tasks": [{"name": "some", "classes": ["c3", "c7"]}],
        "budgets": [{"name": f"b{number}", "rate": number / 10} for number in range(3, 7)],
        "methods": [{**PLAN["methods"][0], "training": {**QUICK, "steps": 3}}],  # type: ignore[index]
        "data": "photos",
        "boards": None,
    }
    serial = read_plan(fleet_plan(**keys, out="serial")).jobs
    assert all(isinstance(carry_out(job), JobRecord) for job in serial if job.stage == "derive")
    raylet = blind_node(home, size)
    monkeypatch.setattr(run, "carry_out", counted_jobs.carry_out)
    heard = WarningCollector()
    request = FleetRequest(plan=fleet_plan(**keys, out="fleet"), ray=getattr(cluster, address))
    states = fleet(request, heard)
    assert all(state.passed for state in states), states
    assert len(weights(Path("fleet"))) == 4 and weights(Path("fleet")) == weights(Path("serial"))
    done = [event for event in counted_jobs.events() if event.event == "done"]
    assert sorted(event.job for event in done) == sorted(state.job for state in states)
    full = [text for text in heard.texts if "No space left on device" in text]
    if size == "200k":
        assert all(event.parent != raylet for event in done)
        where = f"on {socket.gethostname()}: cannot write {tmp_path / 'second_cache'}"
        assert full and all(where in text and text.endswith("another node tries it") for text in full), heard.texts
    else:
        assert any(event.parent == raylet for event in done) and not full
        assert not list((tmp_path / "second_cache").glob("edgevit/sent/jobs/*/*")), "folders of jobs are removed"
        data = str(home / "photos")
        job = Job("a", "a", bad_jobs.count, place="blind", inputs=(data,), outputs=("fleet/jobs/a",))
        *_, (_, refused) = run_on_ray([job], {}, address=getattr(cluster, address), threads=1)
        assert f"{socket.gethostname()} does not see {data}; put it where all nodes see it" in str(refused)
