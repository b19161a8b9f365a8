"""Do one job of a fleet, in any process on a machine that has the data and the plan's folder."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from edgevit.board.bench import bench
from edgevit.board.comparison import load_runs
from edgevit.board.connection import open_board
from edgevit.board.facts import examine
from edgevit.board.fingerprint import fingerprint
from edgevit.board.gates import State, parse_gate, verdicts_of
from edgevit.board.request import BenchRequest
from edgevit.derivation.session.derive import derive
from edgevit.engines.request import ExportRequest
from edgevit.engines.run import export
from edgevit.errors import (
    BoardError,
    ConnectionLostError,
    EdgeVitError,
    EngineError,
    Interrupted,
    JobsError,
    OutputError,
    UnreachableError,
)
from edgevit.exporting.current import current_export
from edgevit.exporting.request import FilesRequest
from edgevit.jobs.budgets.run import meet
from edgevit.jobs.fleet.plan import FleetJob
from edgevit.jobs.fleet.states import JOB_KIND, RECORD, RUNS, JobRecord, finished
from edgevit.jobs.runners import WORKER, FullDisk, Retry
from edgevit.latency.request import MeetRequest
from edgevit.progress import Progress, Silent, WithoutRepeats
from edgevit.records.lock import alone_in
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import has_state, partial_folder
from edgevit.records.writing import is_of_full_disk, write_first, write_whole, writing
from edgevit.request import request_of
from edgevit.train.settings import Training
from edgevit.version import written_by

Gates = dict[str, State]


class WarningCollector(Silent):
    """Collects the warnings of a job in another process."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def with_keys(error: str) -> str:
    """Replace the options in an error of `edgevit derive` by the keys of a jobs file."""
    error = error.replace("another --out", "another out")
    return re.sub("--(skip-bad-images|accept-[a-z-]+)", lambda option: f"{option[1].replace('-', '_')}: true", error)


def carry_out(job: FleetJob, *_: object) -> JobRecord | Retry | FullDisk | JobsError:
    """Do a job unless it is done, and write its record. An error of edgevit is its result; any other is a bug."""
    busy = OutputError(f"another edgevit does {job.name}")
    try:
        with writing(job.folder):
            job.folder.mkdir(parents=True, exist_ok=True)
        with alone_in(job.folder, busy):
            return _carried_out(job)
    except OutputError as error:
        if error is busy:
            return Retry(str(error), is_elsewhere=True)
        return FullDisk(str(error)) if is_of_full_disk(error) else JobsError(str(error))
    except OSError as error:  # raised by a library that writes a temporary file
        if is_of_full_disk(error):
            return FullDisk(f"cannot write {error.filename or tempfile.gettempdir()}: {error.strerror}")
        raise


def _carried_out(job: FleetJob) -> JobRecord | Retry | JobsError:
    earlier = finished(job)
    if earlier is not None and earlier.gates.keys() == set(job.gates):
        return earlier
    if earlier is not None:  # judged by other gates
        try:
            return _written(job, replace(earlier, gates=_judged(job)))
        except EdgeVitError as error:  # its runs cannot be read
            return JobsError(str(error))
    heard, meter = WarningCollector(), _Meter()
    record = JobRecord(
        job.name, job.sha256, "done", versions={"edgevit": written_by()}, board=_host(job), began=time.time()
    )  # fmt: skip
    try:
        if job.hosts and (difference := _difference(job)):
            return Retry(difference, leaves_out=True)
        record = replace(record, gates=_do(job, WithoutRepeats(heard)))
    except Interrupted as stop:
        raise KeyboardInterrupt from stop  # the process ends, and the job is done by the next command
    except (UnreachableError, ConnectionLostError) as error:
        record = replace(record, state="waiting", reason=str(error))
    except OutputError as error:
        if is_of_full_disk(error):
            raise  # there is no room for a record, and another machine may do the job
        record = replace(record, state="failed", reason=with_keys(str(error)))
    except EdgeVitError as error:
        record = replace(record, state="failed", reason=with_keys(str(error)))
    record = _written(job, replace(record, warnings=tuple(heard.texts), **meter.used()))
    if record.state == "done":
        return record
    return Retry(str(record.reason)) if record.state == "waiting" else JobsError(str(record.reason))


def _written(job: FleetJob, record: JobRecord) -> JobRecord:
    with writing(job.folder):
        write_whole(job.folder / RECORD, JOB_KIND.text(record))
    return record


def _host(job: FleetJob) -> str | None:
    """The host of the board that a job is done on; None: this machine alone."""
    host = job.options.get("board") if job.place != WORKER else None
    return None if host is None else str(host)


class _Meter:
    """The time of this process from here on, with the processes that it starts and ends, and of its GPUs."""

    def __init__(self) -> None:
        self._began, self._cpu_s, self._allocated = time.monotonic(), _cpu_s(), _allocated()

    def used(self) -> dict[str, Any]:
        """The fields of a record. A GPU counts for all seconds if torch took memory on it."""
        seconds = time.monotonic() - self._began
        gpus = sum(now > self._allocated.get(gpu, 0) for gpu, now in _allocated().items())
        used = {"seconds": seconds, "cpu_s": _cpu_s() - self._cpu_s, "gpu_s": seconds * gpus}
        return {name: round(value, 2) for name, value in used.items()}


def _cpu_s() -> float:
    return sum(os.times()[:4])


def _allocated() -> dict[int, int]:
    """How often torch took memory on each GPU since the process began."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    return {gpu: torch.cuda.memory_stats(gpu).get("allocation.all.allocated", 0) for gpu in gpus}


def _do(job: FleetJob, progress: Progress) -> Gates:
    """Do a job; return the gates that were judged."""
    if job.stage == "derive":
        _derive(job, progress)
    elif job.stage == "export":
        current_export(request_of(FilesRequest, {"model": job.model, **job.options}, job.name), progress=progress)
    elif job.stage == "engine":
        export(request_of(ExportRequest, {"model": job.model, **_paths(job.options)}, job.name), progress)
    else:
        return _bench(job, progress)
    return {}


def _derive(job: FleetJob, progress: Progress) -> None:
    """Derive, unless the model is there and names this job: then its record was lost."""
    folder = ModelFolder(job.model)
    if folder.is_model and (record := folder.derivation()) and record.job in job.derivation.hashes():
        return
    if job.options:  # where a measured budget is met
        options = {**job.derivation.arguments, **_paths(job.options), "out": job.model}
        training = Training(**job.derivation.arguments["training"])
        meet(request_of(MeetRequest, {**options, "training": training}, job.name), progress)
        return
    derive(job.derivation.request(resume=has_state(partial_folder(job.model))), progress)


def _bench(job: FleetJob, progress: Progress) -> Gates:
    request = request_of(BenchRequest, {"models": [job.model], **_paths(job.options)}, job.name)
    try:
        runs = bench(request, progress=progress).runs
    except EngineError as error:
        _refuse_changed_board(job, error)
        raise
    if void := [reason for run in runs for reason in run.void()]:
        raise BoardError(f"the run is void: {void[0]}; the same command measures again")
    with writing(job.folder):
        write_whole(job.folder / RUNS, "".join(f"{run.to_json()}\n" for run in runs))
    return _judged(job)


def first_board(job: FleetJob) -> Path:
    """The file that says which of several equal boards did a job first."""
    return job.folder.parent / f"{job.place}.board"


def _difference(job: FleetJob) -> str:
    """Why a board is not equal to the first of its place that did a job; empty: it is, or is that first one."""
    host, board = str(job.options["board"]), _fingerprint(job)
    first = first_board(job)
    with writing(first):
        board_of_first, first_host = write_first(first, f"{board}\n{host}\n").split()
    if board == board_of_first:
        return ""
    return (
        f"{host} is {board}, and {first_host} is {board_of_first}: {host} is left out of {job.place}; make it a board "
        f"of its own in the plan, or remove {first} if {first_host} is the one that differs from the others"
    )


def _refuse_changed_board(job: FleetJob, error: EngineError) -> None:
    """Forget an engine whose board has another fingerprint by now, so that the same command builds it again."""
    board = _fingerprint(job)
    built_for = {engine.fingerprint for engine in ModelFolder(job.model).export.engines()}
    if built_for and board not in built_for:
        (job.folder.parent / job.needs[0] / RECORD).unlink(missing_ok=True)
        raise JobsError(f"{_host(job)} changed: {error}; or the same command builds the engine again") from error


def _fingerprint(job: FleetJob) -> str:
    options = _paths(job.options)
    with open_board(options["board"], ssh_config=options["ssh_config"]) as board:
        return fingerprint(examine(board))


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


def _paths(options: Mapping[str, Any]) -> dict[str, Any]:
    config = options.get("ssh_config")
    return {**options, "ssh_config": None if config is None else Path(str(config))}
