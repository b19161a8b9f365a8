"""The time left of a plan whose jobs take known times, and the memory of derivations."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import pytest
from small_base import ARGS, NAME

from edgevit.jobs.fleet.estimates import PROCESS_BYTES, BaseSize, Kind, TimeLeft, memory_of, size_of, work_of
from edgevit.jobs.fleet.plan import FleetJob, read_plan
from edgevit.jobs.fleet.run import in_order
from edgevit.jobs.fleet.states import JobRecord
from edgevit.jobs.runners import Job, JobQueue
from edgevit.network.opening import network_without_weights
from edgevit.train.settings import Training

ORINS = {"name": "orins", "hosts": ["orin1", "orin2"]}


@pytest.mark.parametrize("workers", [2, 8])
@pytest.mark.parametrize("boards", [[], [ORINS], [{"name": "here"}]], ids=["none", "two", "here"])
def test_at_half_way_the_time_left_is_right_within_a_third(fleet_plan: Any, workers: int, boards: Any) -> None:
    """Derivations of one kind differ by up to half, and jobs on boards are as long as some derivations."""
    budgets = [{"name": f"b{number}", "rate": 0.3 + 0.01 * number} for number in range(40)]
    jobs = read_plan(fleet_plan(budgets=budgets, boards=boards)).jobs
    chance = random.Random(0)
    usual = {"derive": 100.0, "export": 5.0, "engine": 60.0, "bench": 20.0}
    seconds = {job.name: usual[job.stage] * chance.uniform(0.6, 1.4) for job in jobs}
    left, wall = estimates(sorted(jobs, key=lambda job: job.stage == "derive"), {}, workers, seconds)
    at, estimated = min(left, key=lambda pair: abs(pair[0] - wall / 2))
    assert abs(estimated - (wall - at)) < (wall - at) / 3, (estimated, wall - at)
    assert left[-1] == (wall, 0)


def estimates(
    jobs: Sequence[FleetJob], work: Mapping[str, float], workers: int, seconds: Mapping[str, float]
) -> tuple[list[tuple[float, float]], float]:
    """When each job ended and what was then estimated to be left, and when all had ended, if they take so long."""
    tasks: list[Job[FleetJob, JobRecord]] = [
        Job(job.name, job, len, job.needs, job.place, job.hosts)  # type: ignore[arg-type]
        for job in jobs
    ]
    now = 0.0
    time_left = TimeLeft(tasks, {}, work, workers, clock=lambda: now)
    queue, running, left = JobQueue(tasks, {}, workers), list[tuple[float, str]](), list[tuple[float, float]]()
    by_name = {task.name: task for task in tasks}
    while queue.unfinished:
        while (job := queue.take()) is not None:
            heappush(running, (now + seconds[job.name], job.name))
            time_left.begin(job.name)
        now, name = heappop(running)
        record = JobRecord(name, "0" * 64, "done", seconds=seconds[name])
        for _ in queue.end(by_name[name], record):
            pass
        time_left.end(by_name[name].record, record)
        estimate = time_left.left_s()
        assert estimate is not None
        left.append((now, estimate))
    assert time_left.percent() == 100
    return left, now


# Processor seconds of derivation and export by task and budget, as such a plan of one base of six blocks took.
RECORDED = {
    "t0-half": (12.5, 5.24), "t1-half": (10.51, 5.18), "t2-half": (12.22, 4.22),
    "t0-less": (7.67, 4.6), "t1-less": (6.7, 4.69), "t2-less": (8.42, 4.42),
}  # fmt: skip


@pytest.mark.parametrize("share", [0.5, 0.75])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_time_left_of_a_recorded_plan_is_right_within_a_third(fleet_plan: Any, workers: int, share: float) -> None:
    """The first derivation of a task measures for the others, and takes 1.6 times as long."""
    budgets = [{"name": "half", "rate": 0.5}, {"name": "less", "rate": 0.3}]
    tasks = [{"name": f"t{number}", "classes": ["3", str(number)]} for number in range(3)]
    jobs = read_plan(fleet_plan(tasks=tasks, budgets=budgets, methods=None, boards=None)).jobs
    recorded = {
        job.name: RECORDED[f"{job.derivation.task}-{job.derivation.budget}"][job.stage == "export"] for job in jobs
    }
    left, wall = estimates(in_order(jobs, {}, workers), {}, workers, recorded)
    at, estimated = min(left, key=lambda pair: abs(pair[0] - share * wall))
    assert abs(estimated - (wall - at)) < (wall - at) / 3, (estimated, wall - at)


DEPTHS = {"deep": 4, "shallow": 2}
# The same of a plan of bases of four and two blocks. Two processes did it; the first derivation and the first export of
# each took longer, and were the only ones of the small base until half of the time had passed.
OF_TWO_BASES = {
    "t0-deep-b0": (9.98, 12.76), "t1-deep-b0": (10.27, 5.72), "t2-deep-b0": (8.02, 5.51),
    "t0-deep-b1": (5.83, 7.27), "t1-deep-b1": (7.02, 6.55), "t2-deep-b1": (5.44, 4.46),
    "t0-shallow-b0": (7.77, 8.86), "t1-shallow-b0": (4.68, 3.19), "t2-shallow-b0": (4.42, 3.51),
    "t0-shallow-b1": (3.33, 4.03), "t1-shallow-b1": (3.54, 4.04), "t2-shallow-b1": (3.24, 3.97),
}  # fmt: skip


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_the_first_jobs_of_processes_do_not_make_the_time_left_of_a_recorded_plan_too_long(
    fleet_plan: Any, share: float
) -> None:
    """Counted like the others, they made it 68 % too long at half way."""
    names = [f"t{number}" for number in range(3)]
    budgets = [{"name": f"b{number}", "rate": 0.3 + 0.1 * number} for number in range(2)]
    bases = [{"name": name, "base": NAME, "model_args": {**ARGS, "depth": depth}} for name, depth in DEPTHS.items()]
    tasks = [{"name": name, "classes": ["3", str(number)]} for number, name in enumerate(names)]
    jobs = read_plan(fleet_plan(bases=bases, tasks=tasks, budgets=budgets, boards=None)).jobs
    work, recorded = dict[str, float](), dict[str, float]()
    for job in jobs:
        task, base, budget, _ = job.derivation.name.split("-")
        recorded[job.name] = OF_TWO_BASES[f"{task}-{base}-{budget}"][job.stage == "export"]
        work |= {job.name: DEPTHS[base]} if job.stage == "derive" else {}
    left, wall = estimates(in_order(jobs, work, 2), work, 2, recorded)
    at, estimated = min(left, key=lambda pair: abs(pair[0] - share * wall))
    assert abs(estimated - (wall - at)) < (wall - at) / 3, (estimated, wall - at)


def test_before_anything_ended_nothing_is_said_and_another_base_takes_as_much_longer_as_it_has_macs(
    fleet_plan: Any,
) -> None:
    derive, *_ = read_plan(fleet_plan(boards=None)).jobs
    time_left = TimeLeft([Job(derive.name, derive, len)], {}, {derive.name: 30.0}, 1)  # type: ignore[list-item,arg-type]
    assert time_left.left_s() is None and time_left.percent() == 0
    time_left._each["derive"].append(2.0)  # of another base
    time_left._seconds[Kind(("derive", "", "other"), "forge", False, False)].append(20.0)
    assert time_left.left_s() == pytest.approx(60, abs=1)


def test_the_first_derivation_of_a_task_does_not_count_for_the_others(fleet_plan: Any) -> None:
    budgets = [{"name": f"b{number}", "rate": 0.3 + 0.1 * number} for number in range(4)]
    jobs = [job for job in read_plan(fleet_plan(budgets=budgets, boards=None)).jobs if job.stage == "derive"]
    tasks: list[Job[FleetJob, JobRecord]] = [Job(job.name, job, len) for job in jobs]  # type: ignore[arg-type]
    time_left = TimeLeft(tasks, {}, {}, 1)
    for job, seconds in zip(jobs, (100.0, 10.0, 12.0), strict=False):
        time_left.end(job, JobRecord(job.name, "0" * 64, "done", seconds=seconds))
    assert time_left.left_s() == 11, "the first measured for the others"


def test_training_takes_memory_by_its_batch_and_work_by_its_steps(fleet_plan: Any) -> None:
    size = size_of(network_without_weights(NAME, ARGS))
    assert size.params > 100_000 and size.kept > 2 * 17 * 64

    def derivation(**training: Any) -> Any:
        return read_plan(fleet_plan(training={"device": "cpu", **training}, methods=None)).jobs[0].derivation

    small, large = derivation(steps=10, batch_size=8), derivation(steps=100, batch_size=64)
    assert work_of(large, size) > 5 * work_of(small, size) - 5 * 3000 * size.macs
    assert memory_of(large, size) - memory_of(small, size) == 4 * 56 * size.kept
    usual = Training().batch
    for unstated in ({}, {"batch_size": None}):
        whole = derivation(steps=10, **unstated)
        assert memory_of(whole, size) - memory_of(small, size) == 4 * (usual - 8) * size.kept
        assert work_of(whole, size) == work_of(derivation(steps=10, batch_size=usual), size)
    parts = derivation(steps=10, batch_size=64, grad_accum=8)
    assert memory_of(parts, size) == memory_of(small, size), "a step keeps one micro-batch at a time"
    untrained = memory_of(derivation(steps=0), BaseSize(1, 1_000_000, 10**12))
    assert untrained == PROCESS_BYTES + 16_000_000
