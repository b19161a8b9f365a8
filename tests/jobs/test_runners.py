"""Jobs in this process, in order, and in processes of their own, each as soon as it can begin."""

from __future__ import annotations

import os
import pickle
import random
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forks import server

from edgevit.errors import BudgetError, DataError, JobsError
from edgevit.jobs import runners
from edgevit.jobs.runners import (
    ALL_WORKERS,
    FullDisk,
    Job,
    JobQueue,
    Results,
    Retry,
    makespan,
    run_here,
    run_in_processes,
    work_off,
)
from edgevit.progress import Progress, Silent


def total(number: int, results: Results, _: Progress) -> int:
    """The number and the results that it needs; 0 is no job."""
    if not number:
        raise BudgetError("nothing is as small", least=0.5)
    return number + sum(results.values())


def test_jobs_are_done_once_with_the_results_that_they_need_and_go_on_after_one_that_is_refused() -> None:
    jobs = [
        Job("a", 1, total),
        Job("b", 2, total, ("a", "done")),
        Job("none", 0, total),
        Job("c", 3, total, ("none", "a")),
        Job("d", 4, total),
        Job("done", 5, total),
    ]
    results: dict[str, Any] = {"done": 10}
    events = [(job.name, result) for job, result in run_here(jobs, results, Silent(), refusals=(BudgetError,))]
    assert [event for event in events if not isinstance(event[1], Exception)] == [
        ("a", None), ("a", 1), ("b", None), ("b", 13), ("none", None), ("d", None), ("d", 4),
    ]  # fmt: skip
    refused, blocked = (result for _, result in events if isinstance(result, Exception))
    assert isinstance(refused, BudgetError) and refused.least == 0.5
    assert isinstance(blocked, JobsError) and str(blocked) == "it needs none, which failed"
    assert results == {"done": 10, "a": 1, "b": 13, "d": 4}


def test_an_error_that_is_no_refusal_ends_all() -> None:
    with pytest.raises(BudgetError, match="nothing is as small"):
        list(run_here([Job("none", 0, total), Job("a", 1, total)], {}, Silent(), refusals=(DataError,)))


def test_a_job_can_be_sent_to_another_process_and_where_all_are_done_none_is_started() -> None:
    job = Job("a", 1, len, ("b",))  # type: ignore[arg-type]  # any function of a module
    assert pickle.loads(pickle.dumps(job)) == job
    assert list(run_in_processes([job], {"a": 1}, workers=1, threads=1)) == []


def counted(record: tuple[str, str, int], results: Results, _: Progress) -> Any:
    """Count the calls in a file, and end as asked in the first of them: killed, put off or with an error."""
    file, ends, times = record
    with Path(file).open("a") as opened:
        opened.write("x")
    count = len(Path(file).read_text())
    if count > times:
        return count + sum(results.values())
    if ends == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if ends == "elsewhere":
        return Retry("another does it", is_elsewhere=True)
    return Retry("nobody answers") if ends == "later" else JobsError("no such class")


def run_all(jobs: list[Job[Any, Any]], workers: int = 2) -> list[tuple[str, Any]]:
    events = run_in_processes(jobs, {"done": 10}, workers=workers, threads=1)
    return [(job.name, result) for job, result in events]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("edgevit.jobs.workers._SPAWN", server())
    monkeypatch.setattr(runners, "PAUSE_S", 0.05)

    def make(name: str, *needs: str, ends: str = "", times: int = 0, place: str = "") -> Job[Any, Any]:
        return Job(name, (str(tmp_path / name), ends, times), counted, needs, place)

    return make


def test_a_job_begins_when_what_it_needs_is_there_and_one_that_is_killed_is_done_again(job: Any) -> None:
    events = run_all([job("a", "b", "done"), job("b", ends="killed", times=1), job("quiet", place=ALL_WORKERS)])
    again = next(result for name, result in events if isinstance(result, Retry))
    assert again.reason == "its process was ended from outside (signal 9), and it is done again"
    assert [(name, result) for name, result in events if result is not again] == [
        ("b", None), ("b", None), ("b", 2), ("a", None), ("a", 13), ("quiet", None), ("quiet", 1),
    ]  # fmt: skip


def test_what_needs_a_job_that_failed_ends_with_the_reason(job: Any) -> None:
    ends = {name: str(result) for name, result in run_all([job("a", ends="fails", times=9), job("b", "a")]) if result}
    assert ends == {"a": "no such class", "b": "it needs a: no such class"}


def test_a_board_runs_one_job_at_a_time_and_while_it_does_not_answer_the_others_go_on(job: Any, tmp_path: Path) -> None:
    dead = [job("dead", place="orin", ends="later", times=99), job("dead2", place="orin"), job("after", "dead2")]
    slow = [job("slow", place="xavier", ends="later", times=1), job("next", place="xavier")]
    events = run_all([*dead, *slow, job("other")])
    ends = {name: result for name, result in events if result is not None and not isinstance(result, Retry)}
    assert [str(ends[name]) for name in ("dead", "dead2", "after")] == [
        "nobody answers", "nobody answers", "it needs dead2: nobody answers",
    ]  # fmt: skip
    assert (ends["slow"], ends["next"], ends["other"]) == (2, 1, 1)
    assert not (tmp_path / "dead2").exists(), "one job asks for all of a board"
    of_board = [name for name, _ in events if name in ("slow", "next")]
    assert of_board == ["slow", "slow", "slow", "slow", "next", "next"]


def test_what_another_process_does_is_tried_until_that_has_ended_and_its_board_goes_on(job: Any) -> None:
    first = job("first", place="orin", ends="elsewhere", times=2 * runners.TRIES)
    events = run_all([first, job("second", place="orin")])
    ends = [name for name, result in events if isinstance(result, int)]
    assert ends == ["second", "first"]
    assert sum(isinstance(result, Retry) for _, result in events) == 2 * runners.TRIES


def test_a_job_whose_disk_is_full_fails_where_there_is_no_other_machine() -> None:
    job = Job("a", "", total)
    ((ended, error),) = JobQueue[str, int]([job], {}, 1).end(job, FullDisk("no room"))
    assert ended == job and isinstance(error, JobsError) and str(error) == "no room"


def on_board(record: tuple[str, str, int], board: str) -> tuple[str, str, int]:
    """A file of the board; "dead" and "dead2" do not answer."""
    file, _, _ = record
    return f"{file}@{board}", "later", 99 if board.startswith("dead") else 0


def test_any_of_several_boards_does_a_job_and_those_of_a_board_that_is_lost_are_done_by_the_others(
    job: Any, tmp_path: Path
) -> None:
    boards = {"boards": ("dead", "one", "two"), "with_board": on_board}
    jobs = [replace(job(f"j{number}", place="orins"), **boards) for number in range(6)]
    events = run_all(jobs)
    assert events[:3] == [("j0", None), ("j1", None), ("j2", None)], "as many at a time as there are boards"
    assert ("j0", Retry("nobody answers")) in events
    assert {name for name, result in events if result == 1} == {f"j{number}" for number in range(6)}
    of_boards = Counter(file.name.partition("@")[2] for file in tmp_path.iterdir())
    assert of_boards["one"] >= 1 and of_boards["two"] >= 1 and of_boards["one"] + of_boards["two"] == 6


def test_a_board_that_is_left_out_gets_no_more_jobs_and_without_any_board_they_fail() -> None:
    jobs = [Job(name, "", total, place="orins", boards=("a", "b")) for name in ("x", "y")]
    queue = JobQueue[str, int](jobs, {}, 1)
    first, second = queue.take(), queue.take()
    assert first and second and queue.take() is None
    assert list(queue.end(first, Retry("a differs", leaves_out=True))) == [(first, Retry("a differs", leaves_out=True))]
    assert queue.take() is None, "b is occupied"
    assert list(queue.end(second, 1)) == [(second, 1)]
    again = queue.take()
    assert again == first
    ((failed, error),) = queue.end(again, Retry("b differs", leaves_out=True))
    assert failed == first and str(error) == "b differs" and not queue.unfinished


def test_two_large_jobs_are_not_done_at_a_time_where_memory_does_not_suffice() -> None:
    jobs = [Job(name, name, total, memory_bytes=size) for name, size in (("a", 6), ("b", 6), ("c", 3), ("huge", 99))]
    queue = JobQueue[str, int](jobs, {}, 4, memory_bytes=10)
    first, small = queue.take(), queue.take()
    assert first and small and (first.name, small.name) == ("a", "c") and queue.take() is None
    list(queue.end(first, 1))
    second = queue.take()
    assert second and second.name == "b" and queue.take() is None
    list(queue.end(second, 1))
    list(queue.end(small, 1))
    alone = queue.take()
    assert alone and alone.name == "huge", "one that needs more than there is runs when no other does"


def test_of_jobs_that_can_begin_those_on_boards_begin_first() -> None:
    jobs = [Job("a", "", total), Job("b", "", total), Job("on board", "", total, place="orin")]
    queue = JobQueue[str, int](jobs, {}, 2)
    assert [job and job.name for job in (queue.take(), queue.take(), queue.take())] == ["on board", "a", "b"]


class Chance:
    """A place where some of the running jobs end by chance; it looks what could begin when it is waited for."""

    def __init__(self, jobs: list[Job[Any, Any]], seed: int) -> None:
        self.chance, self.due, self.running, self.done = random.Random(seed), list(jobs), [], set[str]()

    def begin(self, piece: Any) -> None:
        self.running.append(piece)
        self.due = [job for job in self.due if job.name != piece[0].name]

    def ended(self, _: float | None) -> list[Any]:
        ready = [job.name for job in self.due if job.place and self.done.issuperset(job.needs)]
        assert not ready or sum(bool(job.place) for job, _ in self.running) == 2, (ready, self.running)
        self.chance.shuffle(self.running)
        count = self.chance.randint(1, len(self.running))
        ends, self.running = self.running[:count], self.running[count:]
        self.done |= {job.name for job, _ in ends}
        return [(piece, 1) for piece in ends]


@pytest.mark.parametrize("seed", range(20))
def test_nobody_waits_while_a_board_is_free_and_a_job_is_ready_for_it(seed: int) -> None:
    boards: dict[str, Any] = {"place": "orins", "boards": ("orin1", "orin2")}
    jobs: list[Job[Any, Any]] = []
    for number in range(6):
        jobs += [Job(f"d{number}", "", total), Job(f"e{number}", "", total, (f"d{number}",), **boards)]
        jobs.append(Job(f"b{number}", "", total, (f"e{number}",), **boards))
    events = list(work_off(JobQueue(jobs, {}, 3), Chance(jobs, seed)))
    assert {job.name for job, result in events if result == 1} == {job.name for job in jobs}


def test_the_time_of_a_queue_is_simulated() -> None:
    jobs = [Job("a", 1, total), Job("b", 1, total, ("a",)), Job("c", 1, total), Job("d", 1, total, place="orin")]
    seconds = {"a": 3.0, "b": 2.0, "c": 4.0, "d": 9.0}
    assert makespan(JobQueue(jobs, {}, 2), lambda job: seconds[job.name]) == 9
    assert makespan(JobQueue(jobs[:3], {}, 1), lambda job: seconds[job.name]) == 9
    assert makespan(JobQueue(jobs[:3], {}, 2), lambda job: seconds[job.name]) == 5


def test_where_all_of_several_boards_are_lost_their_jobs_fail(job: Any) -> None:
    jobs = [
        replace(job(f"j{number}", place="orins"), boards=("dead", "dead2"), with_board=on_board) for number in range(3)
    ]
    ends = {name: str(result) for name, result in run_all(jobs) if isinstance(result, JobsError)}
    assert ends == {f"j{number}": "nobody answers" for number in range(3)}
