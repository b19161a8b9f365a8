"""A job is a plain record and a function of it. A runner does the jobs that are not done.

`run_here` does them one after the other in this process, `run_in_processes` several at a time. A runner yields each job
with None when it begins, and when it ends with its result, or with the error that ended it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from edgevit.errors import EdgeVitError, JobsError
from edgevit.jobs.workers import Died, work_off
from edgevit.progress import Progress, Silent

P = TypeVar("P")
R = TypeVar("R")
Results = Mapping[str, Any]  # of jobs, by name


@dataclass(frozen=True)
class Job(Generic[P, R]):
    """One piece of work, which makes a folder, and continues what an interrupted one left in it.

    Job and result can be sent to another process.
    """

    name: str
    record: P
    do: Callable[[P, Results, Progress], R]  # a function of a module
    needs: tuple[str, ...] = ()  # names of jobs before it; `do` gets their results


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
    jobs: Sequence[Job[P, R]], results: Results, *, workers: int, threads: int
) -> Generator[tuple[Job[P, R], R | EdgeVitError | None], None, None]:
    """Do jobs of one function, which need no others, in worker processes of so many threads each.

    Closing the iterator ends the processes: see `work_off`.
    """
    due = [job for job in jobs if job.name not in results]
    if not due:
        return
    # A worker imports the function's module before its first job.
    with closing(work_off(partial(_do, due[0].do), due, workers, threads)) as events:
        for job, result in events:
            yield job, _error(result) if isinstance(result, Died) else result


def _do(_: object, job: Job[Any, R]) -> R:
    return job.do(job.record, {}, Silent())


def _error(end: Died) -> JobsError:
    if end.code < 0:
        reason = f"was ended from outside (signal {-end.code}), perhaps for lack of memory; try fewer workers"
    else:
        reason = f"ended with exit code {end.code}; what is printed above is a fault of edgevit: please report it"
    return JobsError(f"its process {reason}")
