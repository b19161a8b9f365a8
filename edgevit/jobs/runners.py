"""A job is a plain record and a function of it. A runner does the jobs that are not done.

`run_here` does them one after the other in this process, `run_in_processes` several at a time. A runner yields each job
with None when it begins, and when it ends with its result, or with the error that ended it alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

from edgevit.errors import EdgeVitError, JobsError
from edgevit.jobs.workers import Died, Pool
from edgevit.progress import Progress, Silent

P = TypeVar("P")
R = TypeVar("R")
Results = Mapping[str, Any]  # results of jobs by name

# What a job occupies: one of the workers, all of them, so that nothing disturbs it, or else a board, or one of several
# equal boards, by their name.
WORKER, ALL_WORKERS = "", "*"
LOOKED_AT = 1000  # jobs that are put off, or lack memory
PAUSE_S = 10.0  # before another try of what was not there
TRIES = 3  # tries of a job when there is nothing else to do, and of a job whose process was killed


@dataclass(frozen=True)
class Job(Generic[P, R]):
    """One piece of work, which makes a folder, and continues what an interrupted one left in it.

    Job and result can be sent to another process.
    """

    name: str
    record: P
    # Does the job, from its record, the results it needs and a progress; a function of a module, which can be pickled.
    do: Callable[[P, Results, Progress], R]
    needs: tuple[str, ...] = ()  # names of the jobs whose results it needs; `do` gets these results
    place: str = WORKER
    # Hosts of equal boards, of which any does the job; the same for all jobs of a place; empty: the place itself.
    boards: tuple[str, ...] = ()
    # Puts the chosen host into the record, a function of a module; None: the record needs no host.
    with_board: Callable[[P, str], P] | None = None
    memory_bytes: int = 0  # estimate of the most memory that the job takes
    inputs: tuple[str, ...] = ()  # files and folders that the machine which does the job must see
    outputs: tuple[str, ...] = ()  # files and folders that the job writes; the last is a folder with the job's lock
    shares: str = ""  # jobs with the same word may use each other's entries of the content cache; empty: none
    on_gpu: bool = False  # whether it gets a GPU of its own on a cluster that has any


@dataclass(frozen=True)
class Retry:
    """The result of a job that is tried again, because its board does not answer, or another process does it."""

    reason: str
    leaves_out: bool = False  # whether its board is left out, because it is not equal to the others of its place
    is_elsewhere: bool = False  # whether another process does the job; it is tried until that process has ended


@dataclass(frozen=True)
class FullDisk:
    """The result of a job that another machine may do; where there is none, it fails with the reason."""

    reason: str
    node: str = ""  # name of the cluster node whose disk is full; empty: this machine


Event = tuple[Job[P, R], R | EdgeVitError | Retry | None]


def run_here(
    jobs: Sequence[Job[P, R]],
    results: dict[str, Any],
    progress: Progress,
    *,
    refusals: tuple[type[EdgeVitError], ...] = (),
) -> Iterator[tuple[Job[P, R], R | EdgeVitError | None]]:
    """Do jobs in this process, in their order.

    Args:
        results: of what is done, by name; those of the jobs are added.
        refusals: errors that end their own job; any other ends all.
    """
    for job in jobs:
        if job.name in results:
            continue
        if failed := [name for name in job.needs if name not in results]:
            yield job, JobsError(f"it needs {failed[0]}, which failed")
            continue
        yield job, None
        try:
            results[job.name] = job.do(job.record, {name: results[name] for name in job.needs}, progress)
        except refusals as error:
            yield job, error
        else:
            yield job, results[job.name]


def run_in_processes(
    jobs: Sequence[Job[P, R]], results: Results, *, workers: int, threads: int, memory_bytes: int | None = None
) -> Generator[Event[P, R], None, None]:
    """Do jobs in worker processes of so many threads each; of those that can begin, the first in order begins.

    A job on a board has a process beside the `workers`. A job whose process is killed is tried again, and so is one
    that gives `Retry`, by another board of its place if there is one; what needs a job that ended with an error ends
    with one, too. Closing the iterator ends the processes: see `Pool`.

    Args:
        results: of what is done, by name.
        memory_bytes: that jobs may take together; one that needs more runs when no other does.
    """
    queue = JobQueue([job for job in jobs if job.name not in results], results, workers, memory_bytes)
    if not queue.unfinished:
        return
    # A worker imports the function's module before its first job.
    with Pool(partial(_do, jobs[0].do), threads) as pool:
        yield from work_off(queue, pool)


class Places(Protocol):
    """Where jobs are done."""

    def begin(self, piece: tuple[Job[Any, Any], Results], /) -> None:
        """Begin a job with the results that it needs."""

    def ended(self, timeout_s: float | None, /) -> Sequence[tuple[tuple[Job[Any, Any], Results], Any]]:
        """Wait for jobs to end; return some with their results, or `Died`."""


def work_off(queue: JobQueue[P, R], places: Places) -> Generator[Event[P, R], None, None]:
    """Do all jobs of a queue."""
    while queue.unfinished:
        while (job := queue.take()) is not None:
            places.begin((job, {name: queue.results[name] for name in job.needs}))
            yield job, None
        for (job, _), result in places.ended(queue.pause_s()):
            yield from queue.end(job, result)


def do_piece(piece: tuple[Job[Any, R], Results]) -> R:
    """Do a job in this process, with the results that it needs."""
    job, results = piece
    return job.do(job.record, results, Silent())


def _do(_: object, piece: tuple[Job[Any, R], Results]) -> R:
    return do_piece(piece)


def makespan(queue: JobQueue[P, Any], seconds: Callable[[Job[P, Any]], float]) -> float:
    """The seconds that the jobs of a queue take if each takes as long as `seconds` says; empties the queue."""
    ends: list[tuple[float, int, Job[P, Any]]] = []
    now, begun = 0.0, 0
    while queue.unfinished:
        while (job := queue.take()) is not None:
            heappush(ends, (now + seconds(job), begun, job))
            begun += 1
        now, _, ended = heappop(ends)
        for _ in queue.end(ended, None):
            pass
    return now


class JobQueue(Generic[P, R]):
    """The jobs that have not ended."""

    def __init__(
        self, jobs: Sequence[Job[P, R]], results: Results, workers: int, memory_bytes: int | None = None
    ) -> None:
        self.results, self.workers, self.memory_bytes = dict(results), workers, memory_bytes
        self._taken_bytes = 0
        self.unfinished = {job.name: job for job in jobs}
        self._order = {job.name: number for number, job in enumerate(jobs)}
        self._missing = {job.name: {name for name in job.needs if name not in results} for job in jobs}
        self._dependents: dict[str, list[str]] = {}
        for job in jobs:
            for name in job.needs:
                self._dependents.setdefault(name, []).append(job.name)
        self._boards = {job.place: job.boards or (job.place,) for job in jobs if job.place not in (WORKER, ALL_WORKERS)}
        self._board_of: dict[str, str] = {}  # board of each running job, by the name of the job
        self._left_out: set[str] = set()  # boards
        self._running: Counter[str] = Counter()  # by place
        self._ready: dict[str, list[tuple[int, str]]] = {}  # heaps, by place
        self._paused: dict[str, float] = {}  # until when, by board or job
        self._tries: Counter[str] = Counter()
        for job in jobs:
            if not self._missing[job.name]:
                self._ready.setdefault(job.place, []).append((self._order[job.name], job.name))
        for heap in self._ready.values():
            heapify(heap)

    def take(self) -> Job[P, R] | None:
        """The next job that can begin; None: there is none now."""
        now = time.monotonic()
        # Boards first: their jobs get the processes that have just ended one, and other jobs wait for new ones.
        for place in sorted(self._ready, key=lambda place: place in (WORKER, ALL_WORKERS)):
            heap = self._ready[place]
            if not self._has_room(place):
                continue
            paused: list[tuple[int, str]] = []
            # A smaller job may begin before one that lacks memory.
            while heap and (self._paused.get(heap[0][1], 0) > now or not self._fits(heap[0][1])):
                paused.append(heappop(heap))
                if len(paused) == LOOKED_AT:
                    break
            name = heappop(heap)[1] if heap and len(paused) < LOOKED_AT else None
            for entry in paused:
                heappush(heap, entry)
            if name is not None:
                self._running[place] += 1
                self._taken_bytes += self.unfinished[name].memory_bytes
                return self._placed(self.unfinished[name])
        return None

    def _placed(self, job: Job[P, R]) -> Job[P, R]:
        """The job with the board that it is to occupy: of those that are free, the first that was not put off."""
        if job.place not in self._boards:
            return job
        board = self._board_of[job.name] = min(self._free_boards(job.place), key=lambda board: self._tries[board])
        return job if job.with_board is None else replace(job, record=job.with_board(job.record, board))

    def _free_boards(self, place: str) -> list[str]:
        now, occupied = time.monotonic(), {*self._board_of.values(), *self._left_out}
        return [board for board in self._boards[place] if board not in occupied and self._paused.get(board, 0) <= now]

    def _fits(self, name: str) -> bool:
        """Whether there is memory for a job; where nothing else runs, there is."""
        if self.memory_bytes is None or not self._taken_bytes:
            return True
        return self._taken_bytes + self.unfinished[name].memory_bytes <= self.memory_bytes

    def _has_room(self, place: str) -> bool:
        if place == WORKER:
            return self._running[WORKER] < self.workers and not self._running[ALL_WORKERS]
        if place == ALL_WORKERS:
            return not (self._running[WORKER] or self._ready.get(WORKER) or self._running[ALL_WORKERS])
        return bool(self._free_boards(place))

    def pause_s(self) -> float | None:
        """Seconds until something that was put off is tried again; None: nothing is."""
        now = time.monotonic()
        return min((until - now for until in self._paused.values() if until > now), default=None)

    def end(self, job: Job[P, R], result: R | Died | Retry | FullDisk | EdgeVitError | None) -> Iterator[Event[P, R]]:
        """Take note of a job that ended; yield it, and what ends with it."""
        self._running[job.place] -= 1
        self._taken_bytes -= job.memory_bytes
        board = self._board_of.pop(job.name, None)
        if isinstance(result, Died):
            self._tries[job.name] += 1
            if result.code < 0 and self._tries[job.name] < TRIES:
                self._make_ready(job)
                yield job, Retry(f"its process was ended from outside (signal {-result.code}), and it is done again")
                return
            result = _error(result)
        if isinstance(result, FullDisk):
            result = JobsError(result.reason)
        if isinstance(result, Retry):
            yield from self._put_off(job, result, board)
            return
        if board is not None:
            self._tries.pop(board, None)
        if isinstance(result, EdgeVitError):
            yield from self._fail(job, result)
            return
        del self.unfinished[job.name]
        self.results[job.name] = result
        for name in self._dependents.get(job.name, ()):
            self._missing[name].discard(job.name)
            if not self._missing[name] and name in self.unfinished:
                self._make_ready(self.unfinished[name])
        yield job, result

    def _make_ready(self, job: Job[P, R]) -> None:
        heappush(self._ready.setdefault(job.place, []), (self._order[job.name], job.name))

    def _put_off(self, job: Job[P, R], later: Retry, board: str | None) -> Iterator[Event[P, R]]:
        """Try again, its board or it alone after a pause. Give up if no other board and nothing else is left to do."""
        if later.is_elsewhere:
            self._paused[job.name] = time.monotonic() + PAUSE_S
            self._make_ready(job)
            yield job, later
            return
        delayed = job.name if board is None else board
        if board is not None and later.leaves_out:
            self._left_out.add(board)
        self._paused[delayed] = time.monotonic() + PAUSE_S
        self._tries[delayed] = 1 if self._is_busy() else self._tries[delayed] + 1
        self._make_ready(job)
        boards = {*self._boards.get(job.place, ())} - self._left_out
        if any(self._tries[each] < TRIES for each in (boards if board is not None else {delayed})):
            yield job, later
            return
        for name in [name for _, name in sorted(self._ready[job.place])] if board is not None else [job.name]:
            self._ready[job.place].remove((self._order[name], name))
            yield from self._fail(self.unfinished[name], JobsError(later.reason))
        heapify(self._ready[job.place])

    def _is_busy(self) -> bool:
        """Whether a job runs, or can begin, that was not put off; of boards those count that were not lost."""
        now = time.monotonic()
        running = self._running[WORKER] + self._running[ALL_WORKERS]
        running += sum(not self._tries[board] for board in self._board_of.values())
        return bool(running) or any(
            (place not in self._boards or self._free_boards(place))
            and any(self._paused.get(name, 0) <= now for _, name in heap)
            for place, heap in self._ready.items()
        )

    def _fail(self, job: Job[P, R], error: EdgeVitError) -> Iterator[Event[P, R]]:
        del self.unfinished[job.name]
        yield job, error
        for name in self._dependents.get(job.name, ()):
            if name in self.unfinished:
                yield from self._fail(self.unfinished[name], JobsError(f"it needs {job.name}: {error}"))


def _error(end: Died) -> JobsError:
    if end.code < 0:
        reason = f"was ended from outside (signal {-end.code}), perhaps for lack of memory; try fewer workers"
    else:
        reason = f"ended with exit code {end.code}; what is printed above is a fault of edgevit: please report it"
    return JobsError(f"its process {reason}")
