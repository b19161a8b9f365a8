"""How long the jobs of a plan take and how much memory, from the sizes of their bases and from jobs that have ended."""

from __future__ import annotations

import time
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from edgevit.errors import EdgeVitError
from edgevit.jobs.fleet.plan import FleetJob
from edgevit.jobs.fleet.states import JobRecord
from edgevit.jobs.jobs_file import DeriveJob
from edgevit.jobs.runners import WORKER, Job, JobQueue, makespan
from edgevit.network.network import Network
from edgevit.train.settings import Training

PROCESS_BYTES = 800_000_000  # memory of Python with torch and images
# Copies of the weights: base, model and statistics; with gradients, moments and teacher.
UNTRAINED_COPIES, TRAINED_COPIES = 4, 8
KEPT = 18  # numbers of the embedding's width that training keeps of each token and block, and 2 of each pair of a head
HEAD_WIDTH = 64
USUAL_STEPS, MEASURED_IMAGES = 1000, 3000  # steps where a method's own rule decides; images of statistics and accuracy
UNSEEN_S = {"export": 20.0, "engine": 240.0, "bench": 30.0}  # before the first of a stage has ended
BASE = ("base", "checkpoint", "model_args")  # arguments that tell bases apart
SHARE = 0.05  # largest share of the time that is spent on estimating the time left


@dataclass(frozen=True)
class BaseSize:
    """The figures of a base from which its derivations are estimated."""

    macs: int
    params: int
    kept: int  # count of numbers that training keeps in memory for one image


def size_of(network: Network) -> BaseSize:
    """The size of a base."""
    geometry, blocks = network.geometry, len(network.block_modules)
    params = sum(parameter.numel() for parameter in network.parameters())
    pairs = geometry.tokens**2 * max(geometry.embed // HEAD_WIDTH, 1)
    kept = blocks * (KEPT * geometry.tokens * geometry.embed + 2 * pairs)
    return BaseSize(geometry.macs(network.dims), params, kept)


def work_of(derivation: DeriveJob, size: BaseSize) -> float:
    """MACs of a derivation, roughly: of its training and of what is measured."""
    training = Training(**derivation.arguments["training"])
    steps = USUAL_STEPS if training.steps is None else training.steps
    return float(size.macs * (3 * steps * training.batch + MEASURED_IMAGES))


def memory_of(derivation: DeriveJob, size: BaseSize) -> int:
    """Bytes of the process of a derivation, within a factor of two; with a GPU, without the memory of the GPU."""
    training = Training(**derivation.arguments["training"])
    on_gpu = training.device != "cpu" and torch.cuda.is_available()
    if training.steps == 0 or on_gpu:
        return PROCESS_BYTES + 4 * UNTRAINED_COPIES * size.params
    micro_batch = training.batch // training.grad_accum
    return PROCESS_BYTES + 4 * (TRAINED_COPIES * size.params + micro_batch * size.kept)


@dataclass(frozen=True)
class Kind:
    """Jobs that take about the same time."""

    names: tuple[str, ...]
    method: str
    measures: bool  # whether the job measures what other derivations reuse
    first: bool  # whether the job is the first of its stage in its process: it imports and compiles for the later ones

    def others(self) -> list[Kind]:
        """The kinds that differ in what is measured or imported; the most similar one first."""
        flags = product((self.measures, not self.measures), (self.first, not self.first))
        return [replace(self, measures=measures, first=first) for measures, first in flags][1:]


class TimeLeft:
    """The time that is left, from the seconds of jobs of the same kind that have ended.

    The rest of the plan is simulated with the queue of the runners. So boards count, and so do the last jobs, when some
    workers are idle. The first derivation of a task from a base measures what the others find in the
    cache, and the first job of a stage in a process imports and compiles: each may take twice as long as the others,
    and is a kind of its own.

    Args:
        order: all jobs in the order in which they are done.
        done: records of those that were done before.
        earlier: the jobs of `done`.
        work: MACs of the derivations, by their names.
    """

    def __init__(
        self,
        order: Sequence[Job[FleetJob, Any]],
        done: Mapping[str, JobRecord],
        work: Mapping[str, float],
        workers: int,
        *,
        earlier: Sequence[FleetJob] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._due = {job.name: job for job in order}
        self._done, self._work, self._workers, self._clock = dict(done), work, workers, clock
        derivations = [job.derivation for job in (*earlier, *(job.record for job in order)) if job.stage == "derive"]
        self._measuring = {derivation.name for derivation in first_of_each(derivations, _measured)}
        self._seconds: dict[Kind, list[float]] = defaultdict(list)  # in ascending order, for their median
        self._each: dict[str, list[float]] = defaultdict(list)  # seconds of a MAC, or of a job, by stage
        self._since: dict[str, float] = {}  # when the jobs that run began
        self._first: dict[str, set[str]] = defaultdict(set)  # jobs, by stage: as many as there are workers
        self._began = clock()
        self._known: tuple[float, float, float] | None = None  # when it was estimated, how long that took, what is left
        for job in earlier:
            self._learn(job, done[job.name].seconds)

    def _learn(self, job: FleetJob, seconds: float) -> None:
        """Take note of how long a job took."""
        insort(self._seconds[self._kind(job)], seconds)
        insort(self._each[job.stage], seconds / self._work_of(job))

    def begin(self, name: str) -> None:
        """Take note of a job that begins."""
        self._since[name] = self._clock()
        if len(first := self._first[self._due[name].record.stage]) < self._workers:
            first.add(name)

    def put_off(self, name: str) -> None:
        """Take note of a job that is to begin again."""
        self._since.pop(name, None)

    def end(self, job: FleetJob, result: JobRecord | EdgeVitError) -> None:
        """Take note of a job that ended."""
        self._since.pop(job.name, None)
        del self._due[job.name]
        if isinstance(result, JobRecord):
            self._done[job.name] = result
            self._learn(job, result.seconds)

    def left_s(self) -> float | None:
        """Seconds until all is done; None: nothing has ended yet."""
        if not self._seconds or not self._due:
            return None if self._due else 0.0
        now = self._clock()
        if self._known is not None and now - self._known[0] < self._known[1] / SHARE:
            return max(self._known[2] - (now - self._known[0]), 0.0)
        began = time.monotonic()
        order = sorted(self._due.values(), key=lambda job: job.name not in self._since)
        # A cluster has more workers than this machine.
        workers = max(self._workers, sum(self._due[name].place == WORKER for name in self._since))
        left = makespan(JobQueue(order, {**self._done, **self._failed(order)}, workers), self._remaining_s)
        self._known = now, time.monotonic() - began, left
        return left

    def percent(self) -> int:
        """The share of the time of this command that has passed."""
        passed, remaining = self._clock() - self._began, self.left_s()
        return 0 if remaining is None else round(100 * passed / max(passed + remaining, 0.1))

    def _failed(self, order: Sequence[Job[FleetJob, Any]]) -> dict[str, None]:
        """Jobs that ended with an error, as if they were done: the jobs that need them end, too."""
        return {name: None for job in order for name in job.needs if name not in self._due and name not in self._done}

    def _remaining_s(self, job: Job[FleetJob, Any]) -> float:
        usual = self._usual_s(job.record)
        passed = self._clock() - self._since[job.name] if job.name in self._since else 0.0
        return max(usual - passed, 0.1 * usual)

    def _usual_s(self, job: FleetJob) -> float:
        kind = self._kind(job)
        for other in (kind, *kind.others()):
            if seconds := self._seconds.get(other):
                return _median(seconds) * self._ratio(kind, other)
        if each := self._each.get(job.stage):  # times of jobs with another base, method or board
            return self._work_of(job) * _median(each)
        every = [value for seconds in self._seconds.values() for value in seconds]
        return UNSEEN_S.get(job.stage, sum(every) / len(every))

    def _ratio(self, kind: Kind, other: Kind) -> float:
        """How many times as long as another kind of its stage a job takes, by bases with both seen; or 1."""
        ratios = [
            _median(seconds) / max(_median(others), 0.01)
            for each, seconds in self._seconds.items()
            if each.names[0] == kind.names[0] and (each.measures, each.first) == (kind.measures, kind.first)
            if (others := self._seconds.get(replace(each, measures=other.measures, first=other.first)))
        ]
        return _median(sorted(ratios or [1.0]))

    def _kind(self, job: FleetJob) -> Kind:
        names = job.stage, job.place, *(str(job.derivation.arguments.get(key)) for key in BASE)
        measures = job.stage == "derive" and job.name in self._measuring
        return Kind(names, job.derivation.method, measures, job.name in self._first[job.stage])

    def _work_of(self, job: FleetJob) -> float:
        return self._work.get(job.name, 1.0) if job.stage == "derive" else 1.0


def _median(ascending: Sequence[float]) -> float:
    return (ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2]) / 2


def _measured(derivation: DeriveJob) -> tuple[str, ...]:
    """A key of what a derivation measures: those of one key share the measurement."""
    return *(str(derivation.arguments.get(key)) for key in BASE), derivation.task, derivation.method


def first_of_each(derivations: Iterable[DeriveJob], key: Callable[[DeriveJob], object]) -> list[DeriveJob]:
    """The first of the derivations that are alike in a key."""
    firsts: dict[object, DeriveJob] = {}
    for derivation in derivations:
        firsts.setdefault(key(derivation), derivation)
    return list(firsts.values())
