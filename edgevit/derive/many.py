"""Many derivations from one file: tasks x budgets x methods, or a list of jobs.

    base: deit_base_patch16_224
    checkpoint: base.safetensors
    data: /data/imagenet
    out: runs/fleet                      # job folders, results.json and results.md
    tasks:
      - {name: birds, classes: [robin, jay]}
      - {name: ships, classes: ships.txt}
    budgets:
      - {name: r60, rate: 0.6}
    methods:
      - {name: nuwa}
      - {name: tuned, method: nuwa, options: {finetune_epochs: 10}}

A job is a pure function of its arguments: `run_job` may run in any process, on any machine that has the data. What jobs
share they share through the cache; the first job of every task comes first, so that this work is done side by side.
"""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from edgevit.derive import load_method
from edgevit.derive.budget import readable
from edgevit.derive.options import make_config
from edgevit.derive.pipeline import derive
from edgevit.derive.training import Training
from edgevit.derive.unfinished import partial_folder
from edgevit.errors import EdgeVitError, Interrupted, OptionError, PlanError, UnknownNameError
from edgevit.folder.model import ModelSpec
from edgevit.folder.writing import file_sha256, write_whole, writing
from edgevit.models.checkpoint import load
from edgevit.progress import Progress, Silent

logger = logging.getLogger(__name__)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedTask(_Strict):
    name: str
    classes: list[str | int] | str | None = None
    data: str | None = None  # the plan's, if left out


class PlannedBudget(_Strict):
    name: str
    rate: float | None = None
    macs: str | float | None = None
    params: str | float | None = None
    ms: float | None = None
    cost_table: str | None = None


class PlannedMethod(_Strict):
    name: str
    method: str | None = None  # the name itself, if left out
    options: dict[str, Any] = {}
    training: dict[str, Any] = {}  # in place of the plan's


class PlannedJob(_Strict):
    name: str
    task: str
    budget: str
    method: str
    out: str | None = None  # a folder of the job's name under the plan's, if left out


class PlanFile(_Strict):
    """What a plan may hold; everything that `edgevit derive` takes has the name it has there."""

    base: str
    out: str
    tasks: list[PlannedTask]
    budgets: list[PlannedBudget]
    methods: list[PlannedMethod]
    jobs: list[PlannedJob] | None = None  # every task with every budget and method, if left out
    workers: int = 1
    data: str | None = None
    checkpoint: str | None = None
    pretrained: bool = False
    model_args: dict[str, Any] = {}
    preprocessing: dict[str, Any] = {}
    base_classes: str | list[str] | None = None
    shape: str = "fused"
    ffn_multiple: int | None = None
    head: str = "subset"
    finetune_base: bool = False
    accept_weak_base: bool = False
    validation_fraction: float = 0.1
    skip_bad_images: bool = False
    unlabelled: str | None = None
    reject: float | None = None
    training: dict[str, Any] = {}


@dataclass(frozen=True)
class Job:
    """One derivation: `arguments` are those of `edgevit.derive`, as plain values."""

    name: str
    task: str
    budget: str
    method: str
    out: str
    arguments: dict[str, Any]
    files: dict[str, str]  # sha256 of those that arguments name: another content is another job. Not of the images.

    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Row:
    """What became of a job: a line of the table."""

    job: str
    task: str
    budget: str
    method: str
    out: str
    sha256: str
    state: str  # started, done, failed
    seconds: float | None = None
    error: str | None = None
    top1: float | None = None
    base_restricted: float | None = None
    macs: int | None = None
    params: int | None = None
    rate: float | None = None
    reused: tuple[str, ...] = ()


# -- the plan ----------------------------------------------------------------------------------------------------------


_PARTS: dict[str, type[BaseModel]] = {
    "tasks": PlannedTask,
    "budgets": PlannedBudget,
    "methods": PlannedMethod,
    "jobs": PlannedJob,
}


def _told(error: ValidationError, file: Path) -> str:
    """The first thing that is wrong with a plan, in one line."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the plan"
    if first["type"] == "extra_forbidden":
        model = _PARTS.get(str(first["loc"][0]), PlanFile)
        return f"{file}: unknown key {where!r}; known: {', '.join(model.model_fields)}"
    return f"{file}: {where}: {first['msg'][0].lower()}{first['msg'][1:]}; see edgevit derive-many --help"


def _by_name(kind: str, entries: Sequence[Any], file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entries:
        if entry.name in found:
            raise PlanError(f"{file}: two {kind} are named {entry.name!r}; give each its own name")
        found[entry.name] = entry
    if not found:
        raise PlanError(f"{file}: no {kind}; give at least one")
    return found


def read_plan(file: str | Path) -> tuple[list[Job], PlanFile]:
    """Read a plan and lay out its jobs, the first of every task before all others.

    Raises:
        PlanError: it is no plan: an unknown key, a name that is there twice, two jobs with one folder, and the like.
        UnknownNameError: a job names a task, budget or method that is not there.
    """
    file = Path(file)
    try:
        plan = PlanFile.model_validate(yaml.safe_load(file.read_text()))
    except OSError as error:
        raise PlanError(f"cannot read {file}: {error.strerror}; check the path") from error
    except yaml.YAMLError as error:
        raise PlanError(f"{file} is not YAML: {' '.join(str(error).split())[:160]}; check the indentation") from error
    except ValidationError as error:
        raise PlanError(_told(error, file)) from error
    tasks, budgets = _by_name("tasks", plan.tasks, file), _by_name("budgets", plan.budgets, file)
    methods = _by_name("methods", plan.methods, file)
    planned = plan.jobs
    if planned is None:
        planned = [
            PlannedJob(name=f"{t}-{b}-{m}", task=t, budget=b, method=m) for t in tasks for b in budgets for m in methods
        ]
    jobs: list[Job] = []
    for entry in _by_name("jobs", planned, file).values():
        for kind, name, known in (("task", entry.task, tasks), ("budget", entry.budget, budgets)):
            if name not in known:
                raise UnknownNameError(f"{kind} of job {entry.name!r}", name, known)
        if entry.method not in methods:
            raise UnknownNameError(f"method of job {entry.name!r}", entry.method, methods)
        jobs.append(_job(plan, entry, tasks[entry.task], budgets[entry.budget], methods[entry.method], file))
    _refuse_shared_folders(jobs, file)
    first = {job.task: job.name for job in reversed(jobs)}
    return sorted(jobs, key=lambda job: first[job.task] != job.name), plan


def _job(
    plan: PlanFile, entry: PlannedJob, task: PlannedTask, budget: PlannedBudget, method: PlannedMethod, file: Path
) -> Job:
    data = task.data or plan.data
    if data is None:
        raise PlanError(f"{file}: task {task.name!r} has no data; give it some, or the whole plan")
    training = {**plan.training, **method.training}
    known = [f.name for f in fields(Training)]
    for name in training:
        if name not in known:
            raise UnknownNameError("training setting", name, known)
    shared = ("base", "checkpoint", "pretrained", "model_args", "preprocessing", "base_classes", "shape",
              "ffn_multiple", "head", "finetune_base", "validation_fraction", "skip_bad_images")  # fmt: skip
    arguments = {
        **{name: getattr(plan, name) for name in shared},
        "data": data,
        "classes": task.classes,
        "rate": budget.rate,
        "macs": budget.macs,
        "params": budget.params,
        "method": method.method or method.name,
        "options": method.options,
        "training": training,
        **({} if plan.unlabelled is None else {"unlabelled": plan.unlabelled}),
        **{name: value for name in ("ms", "cost_table") if (value := getattr(budget, name)) is not None},
        **({"accept_weak_base": True} if plan.accept_weak_base else {}),
        **({} if plan.reject is None else {"reject": plan.reject}),  # jobs done without it stay done
    }
    given = [name for name in ("rate", "macs", "params", "ms") if getattr(budget, name) is not None]
    if len(given) != 1:
        seen = " and ".join(given) or "nothing"
        raise PlanError(f"{file}: budget {budget.name!r} is {seen}; give one of rate, macs, params and ms")
    name = arguments["method"]
    make_config(name, load_method(name), method.options)  # so that a misspelt option is found before any job starts
    named = {key: arguments.get(key) for key in ("checkpoint", "base_classes", "classes", "cost_table")}
    there = {key: Path(path) for key, path in named.items() if isinstance(path, str) and Path(path).is_file()}
    files = {key: _sha256(path, path.stat().st_mtime_ns) for key, path in there.items()}
    out = entry.out or str(Path(plan.out) / entry.name)
    return Job(entry.name, entry.task, entry.budget, entry.method, out, arguments, files)


@lru_cache
def _sha256(file: Path, changed_ns: int) -> str:
    return file_sha256(file)  # which all jobs of a plan name: a checkpoint is read once


def _refuse_shared_folders(jobs: Sequence[Job], file: Path) -> None:
    owner: dict[Path, str] = {}
    for job in jobs:
        folder = Path(job.out).resolve()
        if folder in owner:
            raise PlanError(f"{file}: jobs {owner[folder]!r} and {job.name!r} both write {job.out}; give each its own")
        owner[folder] = job.name


# -- one job -----------------------------------------------------------------------------------------------------------


def run_job(job: Job) -> Row:
    """Do one job; an error that edgevit raises on purpose is its result, and any other is a bug."""
    row = _started(job)
    started = time.monotonic()
    arguments = {**job.arguments, "training": Training(**job.arguments["training"])}
    try:
        made = derive(**arguments, out=job.out, resume=partial_folder(Path(job.out)).is_dir())
    except EdgeVitError as error:
        return replace(row, state="failed", error=str(error), seconds=round(time.monotonic() - started, 1))
    return replace(_done(row, made.model.spec, made.record), seconds=round(time.monotonic() - started, 1))


def _started(job: Job) -> Row:
    return Row(job.name, job.task, job.budget, job.method, job.out, job.sha256(), "started")


def _done(row: Row, spec: ModelSpec, record: dict[str, Any]) -> Row:
    """The row of a job whose model has been written."""
    accuracy = record["accuracy"]
    return replace(
        row,
        state="done",
        top1=accuracy["derived"]["top1"],
        base_restricted=accuracy["base_restricted"]["top1"],
        macs=spec.macs,
        params=spec.params,
        rate=spec.rate,
        reused=tuple(record["facts"].get("reused", ())),
    )


CTRL_C = {signal.SIGINT}


def _enter_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    # Ctrl-C reaches every process: training saves its state, anything else just ends and is done again.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CTRL_C)


# -- all of them -------------------------------------------------------------------------------------------------------


def _read_row(held: dict[str, Any]) -> Row:
    return Row(**{**held, "reused": tuple(held["reused"])})


class _Results:
    """results.json and results.md in the plan's folder, rewritten after every job.

    `earlier` are rows of models that are there and that another plan of these names has since taken the place of: with
    the first plan again, they are done.
    """

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        self.folder, self.order = folder, [job.name for job in jobs]
        file = folder / "results.json"
        held = json.loads(file.read_text()) if file.is_file() else {}
        self.rows = {row["job"]: _read_row(row) for row in held.get("rows", [])}
        self.earlier = [_read_row(row) for row in held.get("earlier", [])]

    def has(self, job: Job) -> bool:
        """Whether this very job is done and its folder there."""
        if not Path(job.out).is_dir():
            return False
        for row in (self.rows.get(job.name), *self.earlier):
            if row is None or (row.job, row.sha256) != (job.name, job.sha256()):
                continue
            if row.state == "started":  # it ended between writing its model and telling of it
                record = json.loads(Path(job.out, "derivation.json").read_text())
                row = _done(row, load(job.out).spec, record)
            if row.state == "done":
                self._set(row)
                return True
        return False

    def _set(self, row: Row) -> None:
        before = self.rows.get(row.job)
        self.earlier = [r for r in self.earlier if r.sha256 != row.sha256 and Path(r.out).is_dir()]
        if before is not None and before.state == "done" and before.sha256 != row.sha256:
            self.earlier.append(before)
        self.rows[row.job] = row

    def add(self, row: Row) -> None:
        self._set(row)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            rows = self.ordered()
            write_whole(
                self.folder / "results.json",
                json.dumps(
                    {
                        "schema": 1,
                        "rows": [asdict(r) for r in rows],
                        "earlier": [asdict(r) for r in self.earlier],
                    },
                    indent=1,
                ),
            )
            write_whole(self.folder / "results.md", markdown(rows))

    def ordered(self) -> list[Row]:
        return [self.rows[name] for name in self.order if name in self.rows]


HEAD = ("job", "top-1", "base, restricted", "MACs", "parameters", "seconds", "state")


def cells(row: Row) -> tuple[str, ...]:
    """One row of the table as text."""

    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.2f} %"

    def count(value: int | None) -> str:
        return "" if value is None else readable(value)

    state = row.state if row.error is None else f"{row.state}: {row.error}"
    seconds = "" if row.seconds is None else f"{row.seconds:.0f}"
    return row.job, percent(row.top1), percent(row.base_restricted), count(row.macs), count(row.params), seconds, state


def markdown(rows: Sequence[Row]) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *map(cells, rows)]
    return "".join("| " + " | ".join(c.replace("|", "/") for c in line) + " |\n" for line in lines)


def derive_many(plan_file: str | Path, *, workers: int | None = None, progress: Progress | None = None) -> list[Row]:
    """Do every job of a plan that is not done yet; a job that fails does not stop the others.

    Raises:
        PlanError, UnknownNameError: the plan is no good; nothing was started.
        Interrupted: Ctrl-C; the same call goes on.
    """
    jobs, plan = read_plan(plan_file)
    workers, progress = workers or plan.workers, progress or Silent()
    if workers < 1:
        raise OptionError(f"workers {workers} is less than 1")
    results = _Results(Path(plan.out), jobs)
    due = [job for job in jobs if not results.has(job)]
    if len(due) < len(jobs):
        progress.note(f"{len(jobs) - len(due)} of {len(jobs)} jobs are done already")
    with progress.stage("derive-many", len(due), "job") as stage:
        done = 0
        for row in _run_all(due, min(workers, max(len(due), 1))):
            results.add(row)
            if row.state == "started":
                continue
            done += 1
            stage.update(done)
            told = f"top-1 {100 * row.top1:.2f} %" if row.top1 is not None else f"failed: {row.error}"
            progress.note(f"{row.job}: {told} ({row.seconds or 0:.0f} s)")
    return results.ordered()


def _run_all(due: Sequence[Job], workers: int) -> Any:
    """Yield a row when a job starts and one when it ends. Each worker is a process of its own, renewed if it dies."""
    waiting: SimpleQueue[Job] = SimpleQueue()
    rows: SimpleQueue[Row] = SimpleQueue()
    for job in due:
        waiting.put(job)
    threads = max(torch.get_num_threads() // workers, 1)
    stopping = threading.Event()
    feeders = [threading.Thread(target=_feed, args=(waiting, rows, threads, stopping)) for _ in range(workers)]
    for feeder in feeders:
        feeder.start()
    try:
        for _ in range(2 * len(due)):
            yield rows.get()
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on with the jobs that are not done") from None
    finally:
        stopping.set()
        for feeder in feeders:
            feeder.join()


def _feed(waiting: SimpleQueue[Job], rows: SimpleQueue[Row], threads: int, stopping: threading.Event) -> None:
    """Give one job after the other to one worker process."""

    def open_worker() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), _enter_worker, (threads,))

    # Inherited by workers: one that is still importing ends without a traceback. The main thread gets Ctrl-C.
    resource_tracker.ensure_running()  # which unblocks it
    signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)
    worker = open_worker()
    while not stopping.is_set():
        try:
            job = waiting.get_nowait()
        except Empty:
            break
        started = _started(job)
        rows.put(started)
        future = worker.submit(run_job, job)
        error = future.exception()
        if error is None:
            rows.put(future.result())
            continue
        if isinstance(error, BrokenProcessPool):
            told = "its process was ended from outside, perhaps for want of memory; try fewer workers"
            worker = open_worker()
        else:
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            logger.error("job %s failed", job.name, exc_info=error)
        rows.put(replace(started, state="failed", error=told))
    worker.shutdown()
