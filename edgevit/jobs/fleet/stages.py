"""Do one job of a fleet, in any process on a machine that has the data and the plan's folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgevit.board.bench import run as measure_bench
from edgevit.board.comparison import load_runs
from edgevit.board.gates import State, parse_gate, verdicts_of
from edgevit.board.request import BenchRequest
from edgevit.derivation.session.derive import run as derive
from edgevit.engines.request import ExportRequest
from edgevit.engines.run import run_export
from edgevit.errors import (
    BoardError,
    ConnectionLostError,
    EdgeVitError,
    Interrupted,
    JobsError,
    OutputError,
    UnreachableError,
)
from edgevit.exporting.current import current_export
from edgevit.exporting.request import FilesRequest
from edgevit.jobs.budgets.run import run as meet
from edgevit.jobs.fleet.plan import FleetJob
from edgevit.jobs.fleet.states import JOB_KIND, RECORD, RUNS, JobRecord, finished
from edgevit.jobs.many import Heard, with_keys
from edgevit.jobs.runners import Later
from edgevit.latency.request import MeetRequest
from edgevit.progress import OnlyOnce, Progress
from edgevit.records.lock import alone_in
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import has_state, partial_folder
from edgevit.records.writing import write_whole, writing
from edgevit.request import request_of
from edgevit.train.settings import Training
from edgevit.version import written_by

Gates = dict[str, State]


def carry_out(job: FleetJob, *_: object) -> JobRecord | Later | JobsError:
    """Do a job unless it is done, and write its record. An error of edgevit is its result; any other is a bug."""
    busy = OutputError(f"another edgevit does {job.name}")
    try:
        with writing(job.folder):
            job.folder.mkdir(parents=True, exist_ok=True)
        with alone_in(job.folder, busy):
            return _carried_out(job)
    except OutputError as error:  # a full disk, for one, on which there is no record
        return Later(str(error)) if error is busy else JobsError(str(error))


def _carried_out(job: FleetJob) -> JobRecord | Later | JobsError:
    earlier = finished(job)
    if earlier is not None and earlier.gates.keys() == set(job.gates):
        return earlier
    heard, began = Heard(), time.monotonic()
    record = JobRecord(job.name, job.sha256, "done", versions={"edgevit": written_by()})
    try:
        gates = _do(job, OnlyOnce(heard)) if earlier is None else _judged(job)
        seconds = time.monotonic() - began if earlier is None else earlier.seconds
        record = replace(record, gates=gates, seconds=round(seconds, 1))
    except Interrupted as stop:
        raise KeyboardInterrupt from stop  # the process ends, and the job is done by the next command
    except (UnreachableError, ConnectionLostError) as error:
        record = replace(record, state="waiting", reason=str(error))
    except EdgeVitError as error:
        record = replace(record, state="failed", reason=with_keys(str(error)))
    record = replace(record, warnings=tuple(heard.texts) if earlier is None else earlier.warnings)
    with writing(job.folder):
        write_whole(job.folder / RECORD, JOB_KIND.text(record))
    if record.state == "done":
        return record
    return Later(str(record.reason)) if record.state == "waiting" else JobsError(str(record.reason))


def _do(job: FleetJob, progress: Progress) -> Gates:
    """Do a job; return the gates that were judged."""
    if job.stage == "derive":
        _derive(job, progress)
    elif job.stage == "export":
        current_export(request_of(FilesRequest, {"model": job.model, **job.options}, job.name), progress=progress)
    elif job.stage == "engine":
        run_export(request_of(ExportRequest, {"model": job.model, **_paths(job.options)}, job.name), progress)
    else:
        return _bench(job, progress)
    return {}


def _derive(job: FleetJob, progress: Progress) -> None:
    """Derive, unless the model is there and names this job: then its record was lost."""
    folder = ModelFolder(job.model)
    if folder.is_model and (record := folder.derivation()) and record.job in job.derivation.hashes():
        return
    if job.options:  # where a measured budget is met
        given = {**job.derivation.arguments, **_paths(job.options), "out": job.model}
        training = Training(**job.derivation.arguments["training"])
        meet(request_of(MeetRequest, {**given, "training": training}, job.name), progress)
        return
    derive(job.derivation.request(resume=has_state(partial_folder(job.model))), progress)


def _bench(job: FleetJob, progress: Progress) -> Gates:
    request = request_of(BenchRequest, {"models": [job.model], **_paths(job.options)}, job.name)
    runs = measure_bench(request, progress=progress).runs
    if void := [reason for run in runs for reason in run.void()]:
        raise BoardError(f"the run is void: {void[0]}; the same command measures again")
    with writing(job.folder):
        write_whole(job.folder / RUNS, "".join(f"{run.to_json()}\n" for run in runs))
    return _judged(job)


def _judged(job: FleetJob) -> Gates:
    """Judge the runs of a bench by the gates of the plan; of several batch sizes the worst counts."""
    if not job.gates:
        return {}
    order: tuple[State, ...] = ("pass", "not measured", "void", "fail")
    gates: Gates = {}
    for verdict in verdicts_of(map(parse_gate, job.gates), load_runs(job.folder / RUNS)):
        text = verdict.gate.text
        gates[text] = max(gates.get(text, "pass"), verdict.state, key=order.index)
    return gates


def _paths(options: Mapping[str, object]) -> dict[str, object]:
    config = options.get("ssh_config")
    return {**options, "ssh_config": None if config is None else Path(str(config))}
