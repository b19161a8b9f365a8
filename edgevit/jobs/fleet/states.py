"""The states of a plan's jobs (done, running, failed, waiting) by the files in their folders; without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from edgevit.board.gates import State
from edgevit.errors import JobsError
from edgevit.jobs.fleet.plan import FleetJob, Stage
from edgevit.jobs.runners import ALL_WORKERS, WORKER
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind, Versions
from edgevit.records.lock import is_held
from edgevit.records.model import Sha256
from edgevit.records.model_folder import ModelFolder

# What a job waits for, by its place; at any other place, for that board.
TURN = {WORKER: "for a worker", ALL_WORKERS: "until nothing else runs here"}
VERBS = {"failed": "failed", "running": "runs", "waiting": "waits"}
RECORD, RUNS = "job.json", "runs.jsonl"  # file names in the folder of a job


@dataclass(frozen=True)
class JobRecord:
    """job.json: how a job ended."""

    job: str
    sha256: Sha256  # hash of everything that the result depends on
    state: Literal["done", "failed", "waiting"]
    reason: str | None = None  # why the job failed or waits
    seconds: float = 0.0  # duration of the last try
    cpu_s: float = 0.0  # processor seconds of the last try, in all threads and processes
    gpu_s: float = 0.0  # seconds of the last try times the number of GPUs that it used
    began: float | None = None  # start of the last try, in seconds since the epoch; None: the job was not tried
    board: str | None = None  # host of the board that did the job; None: it needed no board
    gates: dict[str, State] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    versions: Versions | None = None


JOB_KIND = RecordKind("fleet_job", JobRecord, Reader(JobsError, hint="remove it: its job is done again"))


JobProgress = Literal["done", "failed", "running", "waiting"]


@dataclass(frozen=True)
class JobState:
    """The state of a job."""

    job: str
    stage: Stage
    state: JobProgress
    reason: str | None = None  # why the job failed, or what it waits for
    seconds: float | None = None
    cpu_s: float = 0.0
    gpu_s: float = 0.0
    began: float | None = None  # start of the last try, in seconds since the epoch
    board: str | None = None  # host of the board that did the job; None: no board did
    place: str = WORKER
    needs: tuple[str, ...] = ()
    gates: dict[str, State] = field(default_factory=dict)
    waits_for_another: bool = False  # whether it waits for another job, which `reason` names

    @property
    def passed(self) -> bool:
        """Whether it is done, and all its gates pass."""
        return self.state == "done" and all(state == "pass" for state in self.gates.values())


def record_of(job: FleetJob) -> JobRecord | None:
    """The record of how the job ended; None: there is none, it cannot be read, or the job has changed since.

    A derivation that is done stays done with a lenient option more or less.
    """
    try:
        record = JOB_KIND.read(job.folder / RECORD)
    except JobsError:
        return None
    is_same = record.sha256 == job.sha256
    if not is_same and job.stage == "derive" and record.state == "done":
        is_same = record.sha256 in job.derivation.hashes()
    return record if is_same else None


def finished(job: FleetJob) -> JobRecord | None:
    """The record of a job that is done and whose result is there."""
    record = record_of(job)
    return record if record is not None and record.state == "done" and _has_result(job) else None


def _has_result(job: FleetJob) -> bool:
    model = ModelFolder(job.model)
    if job.stage == "derive":
        return model.is_model
    return (job.folder / RUNS).is_file() if job.stage == "bench" else model.export.record_file.is_file()


def states_of(jobs: Sequence[FleetJob], failed: Mapping[str, str] = MappingProxyType({})) -> list[JobState]:
    """The states of jobs; in `jobs`, each comes after those that it needs.

    Args:
        failed: reasons of jobs that failed, by name, where no record can be written.
    """
    states: dict[str, JobState] = {}
    for job in jobs:
        state = _state(job, states)
        if state.state == "waiting" and job.name in failed:
            state = replace(state, state="failed", reason=failed[job.name], waits_for_another=False)
        states[job.name] = state
    return list(states.values())


def _state(job: FleetJob, before: dict[str, JobState]) -> JobState:
    record = record_of(job)
    if record is not None and record.state == "done" and _has_result(job):
        gates = {gate: record.gates.get(gate, "not measured") for gate in job.gates}
        return JobState(job.name, job.stage, "done", None, gates=gates, **_took(job, record))
    if is_held(job.folder):
        return JobState(job.name, job.stage, "running")
    if record is not None and record.state == "failed":
        return JobState(job.name, job.stage, "failed", record.reason, **_took(job, record))
    reason = f"as {record.reason}" if record is not None and record.reason else TURN.get(job.place, f"for {job.place}")
    for name in job.needs:
        if (needed := before[name]).state != "done":
            cause = needed.reason if needed.waits_for_another else f"for {name}, which {VERBS[needed.state]}"
            return JobState(job.name, job.stage, "waiting", cause, waits_for_another=True)
    return JobState(job.name, job.stage, "waiting", reason)


def _took(job: FleetJob, record: JobRecord) -> dict[str, Any]:
    of_record = {name: getattr(record, name) for name in ("seconds", "cpu_s", "gpu_s", "began", "board")}
    return {**of_record, "place": job.place, "needs": job.needs}
