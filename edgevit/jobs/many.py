"""Many derivations from one jobs file: `edgevit derive-many JOBS`. example_jobs.yaml has every key.

`run_job` can run a job in any process, on any machine that has the data. Jobs
share statistics and data through the cache; as many tasks are in progress at a time as there are workers
(`jobs_file.tasks_side_by_side`).

A model's derivation.json names its job. So a finished job is recognised even if results.json is lost.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from edgevit.derivation.method import refuse_training
from edgevit.derivation.request import DeriveRequest
from edgevit.derivation.session.derive import derive
from edgevit.errors import CheckpointError, EdgeVitError, JobsError, OptionError, OutputError
from edgevit.jobs.folder import working_in
from edgevit.jobs.jobs_file import RESULTS, DeriveJob, DeriveManyRequest, read_jobs, tasks_side_by_side
from edgevit.jobs.jobs_table import READER, TABLE_KIND, JobRow, JobsTable
from edgevit.jobs.runners import Job, Later, run_in_processes
from edgevit.progress import OnlyOnce, Progress, Silent
from edgevit.records.derivation import DerivationRecord
from edgevit.records.model import ModelSpec
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import has_state, partial_folder
from edgevit.records.writing import write_whole, writing
from edgevit.request import takes_options
from edgevit.text import format_count
from edgevit.version import written_by

# -- one job -----------------------------------------------------------------------------------------------------------


def run_job(job: DeriveJob, *_: object) -> JobRow:
    """Run one job. An error of edgevit is its result; any other exception is a bug."""
    row, began, heard = _started(job), time.monotonic(), Heard()
    try:
        derivation = derive(_request(job), OnlyOnce(heard))
        row = _done(row, derivation.model.spec, derivation.record)
    except EdgeVitError as error:
        row = replace(row, state="failed", error=with_keys(str(error)))
    return replace(row, seconds=round(time.monotonic() - began, 1), warnings=tuple(heard.texts))


def with_keys(error: str) -> str:
    """Replace the options in an error of `edgevit derive` by the keys of a jobs file."""
    error = error.replace("another --out", "another out")
    return re.sub("--(skip-bad-images|accept-[a-z-]+)", lambda option: f"{option[1].replace('-', '_')}: true", error)


class Heard(Silent):
    """Collects the warnings of a derivation in another process."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def _request(job: DeriveJob) -> DeriveRequest:
    return job.request(resume=has_state(partial_folder(Path(job.out))))


def _started(job: DeriveJob) -> JobRow:
    return JobRow(job.name, job.task, job.budget, job.method, job.out, job.sha256(), "started")


def _done(row: JobRow, spec: ModelSpec, record: DerivationRecord) -> JobRow:
    """The row of a job whose model is written."""
    derived, restricted = record.accuracy.derived, record.accuracy.base_restricted
    return replace(
        row,
        state="done",
        top1=None if derived is None else derived.top1,
        base_restricted=None if restricted is None else restricted.top1,
        macs=spec.macs,
        params=spec.params,
        rate=spec.rate,
        reused=record.facts.reused,
    )


def _finished_row(job: DeriveJob, rows: Sequence[JobRow], progress: Progress) -> JobRow | None:
    """The row of a job that is finished; None if it must be run.

    Args:
        rows: those of results.json with the name of this job.
    """
    folder = ModelFolder(Path(job.out))
    if not folder.path.is_dir():
        return None
    hashes = job.hashes()
    done = [row for row in rows if row.sha256 in hashes and row.state == "done"]
    if done:
        return done[-1]
    try:
        record = folder.derivation()
        if record and record.job in hashes:
            return _done(_started(job), folder.spec(), record)
    except CheckpointError as error:
        progress.warn(f"the model of job {job.name} cannot be read: {error}")
    return None


# -- all of them -------------------------------------------------------------------------------------------------------


@dataclass
class _Results:
    """results.json and results.md, rewritten whenever a job starts or ends."""

    folder: Path
    order: Sequence[str]
    rows: dict[str, JobRow] = field(default_factory=dict)

    def refuse_foreign(self) -> None:
        """Raise OutputError if a file with one of these names is something else."""
        table, shown = self.folder / RESULTS[0], self.folder / RESULTS[1]
        try:
            content = READER.json(table, dict[str, Any]) if table.is_file() else {}
        except JobsError:
            content = {}
        with writing(shown):
            text = shown.read_text(encoding="utf-8", errors="replace") if shown.is_file() else ""
        for file, foreign in (
            (table, content and "rows" not in content),
            (shown, text and not text.startswith("| job |")),
        ):
            if foreign:
                raise OutputError(f"{file} is no table of jobs, so it is not overwritten; choose another out")

    def read(self, progress: Progress) -> JobsTable:
        """The table of an earlier run; an empty one if it is missing or damaged."""
        file = self.folder / RESULTS[0]
        try:
            return TABLE_KIND.read(file) if file.is_file() else JobsTable()
        except JobsError as error:
            progress.warn(str(error))
            return JobsTable()

    def add(self, *rows: JobRow) -> None:
        self.rows |= {row.job: row for row in rows}
        jobs_table = JobsTable(tuple(self.ordered()), versions={"edgevit": written_by()})
        with writing(self.folder):
            write_whole(self.folder / RESULTS[0], TABLE_KIND.text(jobs_table))
            write_whole(self.folder / RESULTS[1], markdown(self.ordered()))

    def ordered(self) -> list[JobRow]:
        return [self.rows[name] for name in self.order if name in self.rows]


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


def markdown(rows: Sequence[JobRow]) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *map(cells, rows)]
    return "".join("| " + " | ".join(c.replace("|", "/") for c in line) + " |\n" for line in lines)


@takes_options(DeriveManyRequest, "jobs")
def derive_many(request: DeriveManyRequest, progress: Progress | None = None) -> list[JobRow]:
    """Run every job of a jobs file (YAML) that is not finished. A job that fails does not stop the others.

    Raises:
        JobsError, UnknownNameError, OptionError: the file is not valid; nothing was started.
        EdgeVitError: every job fails for the same reason; nothing was started.
        OutputError: another process works on these jobs, or the tables cannot be written.
        Interrupted: Ctrl-C or SIGTERM; the same call continues.
    """
    jobs, layout = read_jobs(request.jobs)
    workers = layout.workers if request.workers is None else request.workers
    progress = progress or Silent()
    if workers < 1:
        raise OptionError(f"workers {workers} is less than 1")
    for job in jobs:
        refuse_training(job.request())
    jobs, folder = tasks_side_by_side(jobs, workers), Path(layout.out)
    with working_in(folder, "the jobs that are not done"):
        results = _Results(folder, [job.name for job in jobs])
        results.refuse_foreign()
        return _work_off(jobs, results, workers, progress)


def _work_off(jobs: Sequence[DeriveJob], results: _Results, workers: int, progress: Progress) -> list[JobRow]:
    before = results.read(progress)
    earlier = {job.name: [row for row in before.rows if row.job == job.name] for job in jobs}
    finished = {job.name: row for job in jobs if (row := _finished_row(job, earlier[job.name], progress)) is not None}
    due = [job for job in jobs if job.name not in finished]
    _refuse_shared_error(due)
    results.add(*before.rows, *finished.values())
    if finished:
        progress.note(f"{len(finished)} of {len(jobs)} jobs are done already")
    workers = min(workers, max(len(due), 1))
    threads = max(torch.get_num_threads() // workers, 1)
    events = run_in_processes([Job(job.name, job, run_job) for job in jobs], finished, workers=workers, threads=threads)
    with progress.stage("derive-many", len(due), "job") as stage, closing(events):
        done, warned = 0, set[str]()
        try:
            for job, result in events:
                if isinstance(result, Later):
                    progress.warn(f"{job.name}: {result.reason}")
                    continue
                row = _row(job.record, result)
                results.add(row)
                if row.state != "started":
                    done += 1
                    stage.update(done)
                    outcome = f"failed: {row.error}" if row.error else f"top-1 {cells(row)[1]}"
                    for text in sorted({*row.warnings} - warned, key=row.warnings.index):  # jobs of a task share most
                        progress.warn(f"{row.job}: {text}")
                    warned.update(row.warnings)
                    progress.note(f"{row.job}: {outcome} ({row.seconds or 0:.0f} s)")
        except KeyboardInterrupt:
            progress.note("stopping: trainings save their state first; press Ctrl-C again to end at once")
            raise
    return results.ordered()


def _refuse_shared_error(due: Sequence[DeriveJob]) -> None:
    """Raise an error that every job would fail with, such as missing weights.

    Raises:
        EdgeVitError: the shared error.
    """
    reasons = map(_refusal, due)
    if len(due) > 1 and (first := next(reasons)) is not None and all(str(error) == str(first) for error in reasons):
        raise first


def _refusal(job: DeriveJob) -> EdgeVitError | None:
    try:
        _request(job).check()
    except EdgeVitError as error:
        return error
    return None


def _row(job: DeriveJob, result: JobRow | EdgeVitError | None) -> JobRow:
    """The row of a job that began (None) or ended."""
    if isinstance(result, JobRow):
        return result
    return _started(job) if result is None else replace(_started(job), state="failed", error=str(result))
