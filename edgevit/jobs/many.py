"""Many derivations from one jobs file: `edgevit derive-many JOBS`. example_jobs.yaml has every key.

They are jobs of a fleet that has derivations alone. They share statistics and data through the cache; as many tasks are
in progress at a time as there are workers (`jobs_file.tasks_side_by_side`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from edgevit.derivation.method import refuse_training
from edgevit.errors import CheckpointError, EdgeVitError, OptionError
from edgevit.jobs.fleet.estimates import TimeLeft
from edgevit.jobs.fleet.plan import FleetJob
from edgevit.jobs.fleet.run import follow_runner
from edgevit.jobs.fleet.stages import carry_out
from edgevit.jobs.fleet.states import finished, record_of
from edgevit.jobs.folder import working_in
from edgevit.jobs.jobs_file import JOBS, DeriveManyRequest, read_jobs, tasks_side_by_side
from edgevit.jobs.runners import Job, run_in_processes
from edgevit.progress import Progress, Silent, WithoutRepeats
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import has_state, partial_folder
from edgevit.request import takes_options
from edgevit.text import format_count


@dataclass(frozen=True)
class JobRow:
    """The state and result of a job."""

    job: str
    task: str
    budget: str
    method: str
    out: str  # folder of the model
    sha256: str  # hash of the job with all its arguments
    state: Literal["done", "failed"]
    seconds: float | None = None
    error: str | None = None
    # Accuracy of the model on the test part; None: not measured, as of a slice without images.
    top1: float | None = None
    base_restricted: float | None = None  # accuracy of the restricted base on the test part; None: not measured
    macs: int | None = None
    params: int | None = None
    rate: float | None = None
    reused: tuple[str, ...] = ()  # kinds of results that were taken from the cache
    warnings: tuple[str, ...] = ()  # warnings of the derivation


HEAD = ("job", "top-1", "base, restricted", "MACs", "parameters", "seconds", "state")


def cells(row: JobRow) -> tuple[str, ...]:
    """A row of the table as text."""

    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.2f} %"

    def count(value: int | None) -> str:
        return "" if value is None else format_count(value)

    state = row.state if row.error is None else f"{row.state}: {row.error}"
    seconds = "" if row.seconds is None else f"{row.seconds:.0f}"
    return row.job, percent(row.top1), percent(row.base_restricted), count(row.macs), count(row.params), seconds, state


@takes_options(DeriveManyRequest, "jobs")
def derive_many(request: DeriveManyRequest, progress: Progress | None = None) -> list[JobRow]:
    """Run every job of a jobs file (YAML) that is not finished. A job that fails does not stop the others.

    Raises:
        JobsError, UnknownNameError, OptionError: the file is not valid; nothing was started.
        EdgeVitError: every job fails for the same reason; nothing was started.
        OutputError: another process works on these jobs, or their folder cannot be written.
        Interrupted: Ctrl-C or SIGTERM; the same call continues.
    """
    derivations, layout = read_jobs(request.jobs)
    workers = layout.workers if request.workers is None else request.workers
    progress = WithoutRepeats(progress or Silent())
    if workers < 1:
        raise OptionError(f"workers {workers} is less than 1")
    for derivation in derivations:
        refuse_training(derivation.request())
    folder = Path(layout.out)
    jobs = [
        FleetJob(job.name, "derive", folder / JOBS / job.name, Path(job.out), job.sha256(), job, {})
        for job in tasks_side_by_side(derivations, workers)
    ]
    with working_in(folder, "the jobs that are not done"):
        due = [job for job in jobs if finished(job) is None]
        _refuse_shared_error(due)
        if len(due) < len(jobs):
            progress.note(f"{len(jobs) - len(due)} of {len(jobs)} jobs are done already")
        workers = min(workers, max(len(due), 1))
        threads = max(torch.get_num_threads() // workers, 1)
        tasks = [Job(job.name, job, carry_out) for job in due]
        events = run_in_processes(tasks, {}, workers=workers, threads=threads)
        failed = follow_runner(events, TimeLeft(tasks, {}, {}, workers), progress, stage="derive-many")
        return [_row(job, failed.get(job.name), progress) for job in jobs]


def _row(job: FleetJob, error: str | None, progress: Progress) -> JobRow:
    """The row of a job that is done, or that ended with an error."""
    derivation, record, folder = job.derivation, record_of(job), ModelFolder(job.model)
    if record is not None and error is None:
        error = record.reason
    row = JobRow(
        job.name, derivation.task, derivation.budget, derivation.method, derivation.out, job.sha256,
        "done" if error is None else "failed",
        seconds=None if record is None else record.seconds or None,
        error=error,
        warnings=() if record is None else record.warnings,
    )  # fmt: skip
    if error is not None:
        return row
    try:
        spec, made = folder.spec(), folder.derivation()
    except CheckpointError as fault:
        progress.warn(f"the model of job {job.name} cannot be read: {fault}")
        return row
    row = replace(row, macs=spec.macs, params=spec.params, rate=spec.rate)
    if made is None:
        return row
    derived, restricted = made.accuracy.derived, made.accuracy.base_restricted
    return replace(
        row,
        top1=None if derived is None else derived.top1,
        base_restricted=None if restricted is None else restricted.top1,
        reused=made.facts.reused,
    )


def _refuse_shared_error(due: Sequence[FleetJob]) -> None:
    """Raise an error that every job would fail with, such as missing weights.

    Raises:
        EdgeVitError: the shared error.
    """
    reasons = map(_refusal, due)
    if len(due) > 1 and (first := next(reasons)) is not None and all(str(error) == str(first) for error in reasons):
        raise first


def _refusal(job: FleetJob) -> EdgeVitError | None:
    try:
        job.derivation.request(resume=has_state(partial_folder(job.model))).check()
    except EdgeVitError as error:
        return error
    return None
