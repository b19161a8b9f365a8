"""A jobs file: many derivations, as tasks x budgets x methods or as a list of jobs. Read without torch.

`edgevit derive-many --example` prints example_jobs.yaml, which has every key.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from edgevit.derivation.allocate.budget import MEASURED_BUDGETS
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.methods import method_names
from edgevit.derivation.options import describe, read_options
from edgevit.derivation.request import DeriveRequest
from edgevit.errors import JobsError, OptionError, UnknownNameError
from edgevit.latency.request import MeetRequest
from edgevit.numbers import check_number
from edgevit.records.contents import contents
from edgevit.records.documents import Reader
from edgevit.records.model_folder import ModelFolder
from edgevit.request import BUDGET, COMPUTING, Option, default_of, options_of, plain_type, request_of
from edgevit.train.settings import Training

EXAMPLE = Path(__file__).with_name("example_jobs.yaml")
JOBS = "jobs"  # folder of `out` with the records of the jobs; the models lie beside it
_READER = Reader(JobsError, hint="`edgevit derive-many --example` prints one that is good")
# Options of `edgevit derive` that say where models are measured.
PLACE_KEYS = {option.field for option in options_of(MeetRequest)} - {o.field for o in options_of(DeriveRequest)}
TABLE = (
    "derive-many measures nothing: measure a table with `edgevit cost BASE --board HOST --output FILE` and name it as "
    "the budget's cost_table, or use `edgevit derive`"
)
BUDGET_KEYS = tuple(option.field for option in options_of(DeriveRequest) if option.option.panel == BUDGET)
TASK_KEYS, METHOD_KEYS = ("classes", "data"), ("method", "options", "supernet", "training")
OWN_KEYS = ("out", "resume", "overwrite")  # set for each job
# The hash of a job covers these fields, and others only if they differ from the default: a new option of edgevit leaves
# the hashes of finished jobs as they are.
_ALWAYS = {
    "base", "checkpoint", "pretrained", "model_args", "preprocessing", "base_classes", "shape", "ffn_multiple", "head",
    "finetune_base", "validation_fraction", "skip_bad_images", "data", "classes", "rate", "macs", "params", "method",
    "options", "training",
}  # fmt: skip
# Options that let a job continue where it would fail: a job that finished without them is the same.
_LENIENT = ("skip_bad_images", "accept_weak_base", "accept_preprocessing")
_DEFAULTS = {f.name: default_of(f) for f in fields(DeriveRequest)}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NamedEntry(Strict):
    name: str


def keys_of(names: Iterable[str]) -> dict[str, Any]:
    """Keys for fields of a derivation, with the types of a file's values and with their defaults."""
    hints = get_type_hints(DeriveRequest)
    return {name: (plain_type(hints[name]), _DEFAULTS[name] if _DEFAULTS[name] != () else None) for name in names}


TaskEntry: type[NamedEntry] = create_model("TaskEntry", __base__=NamedEntry, **keys_of(TASK_KEYS))
BudgetEntry: type[NamedEntry] = create_model("BudgetEntry", __base__=NamedEntry, **keys_of(BUDGET_KEYS))


class MethodEntry(NamedEntry):
    method: str | None = None  # name of the method; None: the entry's name is the method
    options: dict[str, Any] = {}
    training: dict[str, Any] = {}  # training options that override those of the file
    # Folder of the super-network to cut slices from, instead of the base; None: the base is cut.
    supernet: str | None = None


class PlannedJob(Strict):
    name: str
    task: str
    budget: str
    method: str
    out: str | None = None  # model folder; None: a folder of the job's name in the file's folder


class Layout(Strict):
    """The keys that lay out the jobs; all other keys are options of every job."""

    base: str
    out: str
    tasks: list[TaskEntry]  # type: ignore[valid-type]  # a class made of fields
    budgets: list[BudgetEntry]  # type: ignore[valid-type]
    methods: list[MethodEntry]
    jobs: list[PlannedJob] | None = None  # the jobs to do; None: every task with every budget and method
    workers: int = 1
    data: str | None = None
    training: dict[str, Any] = {}


COMMON_KEYS = tuple(
    dict.fromkeys(
        option.path[0]
        for option in options_of(DeriveRequest)
        if option.path[0] not in {*BUDGET_KEYS, *TASK_KEYS, *METHOD_KEYS, *OWN_KEYS, "base"}
    )
)
# The keys of a jobs file; options of `edgevit derive` have the same names.
JobsFile: type[Layout] = create_model("JobsFile", __base__=Layout, **keys_of(COMMON_KEYS))


class _Trained(Strict):
    training: Training


@dataclass(frozen=True, kw_only=True)
class DeriveManyRequest:
    """The options of `edgevit derive-many`."""

    jobs: Annotated[Path, Option("YAML file of tasks, budgets and methods; --example prints one.", None)]
    workers: Annotated[
        int | None, Option("Number of derivations in parallel.  [default: as the file states]", COMPUTING)
    ] = None


@dataclass(frozen=True)
class DeriveJob:
    """One derivation: `arguments` are those of `edgevit.derive`, as plain values."""

    name: str
    task: str
    budget: str
    method: str
    out: str
    arguments: dict[str, Any]
    files: dict[str, str]  # sha256 of each file in the arguments, and of models' weights; images are not hashed

    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(vars(self), sort_keys=True).encode()).hexdigest()

    def hashes(self) -> set[str]:
        """The hashes of this job with and without lenient options."""
        lenient = [name for name in _LENIENT if self.arguments.get(name)]
        less = (set(some) for count in range(len(lenient) + 1) for some in combinations(lenient, count))
        return {replace(self, arguments=self._without(names)).sha256() for names in less}

    def _without(self, options: Collection[str]) -> dict[str, Any]:
        arguments = {name: value for name, value in self.arguments.items() if name not in options}
        return {**arguments, **{name: _DEFAULTS[name] for name in options if name in _ALWAYS}}

    def request(self, *, resume: bool = False) -> DeriveRequest:
        """The request of this derivation."""
        training = Training(**self.arguments["training"])
        options = {**self.arguments, "training": training, "out": self.out, "resume": resume}
        return replace(request_of(DeriveRequest, options, f"job {self.name!r}"), job=self.sha256())


def read_jobs(file: str | Path) -> tuple[list[DeriveJob], Layout]:
    """Read a jobs file and lay out its jobs in the order of `tasks_side_by_side`.

    Raises:
        JobsError: the file is not valid: an unknown key, a missing or repeated name, two jobs with one folder, a
            number out of range, and the like.
    """
    file = Path(file)
    content = _READER.yaml(file, dict[str, Any])
    if place_keys := [key for key in content if key in PLACE_KEYS]:
        raise JobsError(f"{file}: {place_keys[0]} says how models are measured; {TABLE}")
    layout = _READER.checked(content, JobsFile, str(file))
    try:
        return lay_out(layout, file), layout
    except (OptionError, UnknownNameError) as error:
        raise JobsError(f"{file}: {error}") from error


def lay_out(layout: Layout, file: Path) -> list[DeriveJob]:
    """The derivations of a file; raises as `read_jobs` does, or the errors of their options."""
    tasks, budgets = entries_by_name("tasks", layout.tasks, file), entries_by_name("budgets", layout.budgets, file)
    methods = entries_by_name("methods", layout.methods, file)
    for method in layout.methods:
        _check_method(layout, method, file)
        _check_supernet(layout, method, file)
    for budget in layout.budgets:
        _check_budget(budget, file)
    planned = layout.jobs
    if planned is None:
        planned = [
            PlannedJob(name=f"{t}-{b}-{m}", task=t, budget=b, method=m) for t in tasks for b in budgets for m in methods
        ]
    jobs: list[DeriveJob] = []
    for entry in entries_by_name("jobs", planned, file).values():
        for kind, name, entries in (("task", entry.task, tasks), ("budget", entry.budget, budgets)):
            if name not in entries:
                raise UnknownNameError(kind, name, entries, owner=f"the file of job {entry.name!r}")
        if entry.method not in methods:
            raise UnknownNameError("method", entry.method, methods, owner=f"the file of job {entry.name!r}")
        jobs.append(_job(layout, entry, tasks[entry.task], budgets[entry.budget], methods[entry.method], file))
    for job in jobs:
        request = job.request()
        read_options(request.method, request.options)
        make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
    _refuse_shared_folders(jobs, file)
    return tasks_side_by_side(jobs, layout.workers)


def tasks_side_by_side(jobs: Sequence[DeriveJob], workers: int) -> list[DeriveJob]:
    """Order jobs for as many tasks at a time as there are workers: the first job of each task, then the others.

    The first job of a task measures what the others share, and they use it before the cache has to drop it.
    """
    first = {job.task: job.name for job in reversed(jobs)}
    turn = {task: i // max(workers, 1) for i, task in enumerate(dict.fromkeys(job.task for job in jobs))}
    return sorted(jobs, key=lambda job: (turn[job.task], first[job.task] != job.name))


def entries_by_name(kind: str, entries: Sequence[Any], file: Path) -> dict[str, Any]:
    """Entries by their names, which differ, and can be those of folders."""
    named: dict[str, Any] = {}
    for entry in entries:
        name = entry.name
        if name in named:
            raise JobsError(f"{file}: two {kind} are named {name!r}; give each its own name")
        if name in ("", ".", "..") or (kind, name) == ("jobs", JOBS) or "/" in name or not name.isprintable():
            raise JobsError(f"{file}: {name!r}, one of the {kind}, cannot be the name of a folder; try another")
        named[name] = entry
    if not named:
        raise JobsError(f"{file}: no {kind}; give at least one")
    return named


def _check_method(layout: Layout, method: MethodEntry, file: Path) -> None:
    """Refuse a misspelt option or an impossible setting before any job starts."""
    name = method.method or method.name
    options, settings = {o.name for o in describe(name).options}, {f.name for f in fields(Training)}
    for mapping, allowed, misplaced, section in (
        (method.options, options, settings, "training"),
        (method.training, settings, options, "options"),
    ):
        for key in mapping:
            if key not in allowed and key in misplaced:
                raise JobsError(f"{file}: {key} of method {method.name!r} belongs under {section}: move it there")
    read_options(name, method.options)
    training = {**layout.training, **method.training}
    for key in training:
        if key not in settings:
            raise UnknownNameError("training setting", key, settings)
    _READER.checked({"training": training}, _Trained, str(file)).training.check()


def _check_supernet(layout: Layout, method: MethodEntry, file: Path) -> None:
    """Refuse a method that lacks a super-network, or that cannot use one."""
    supernet, slices = method.supernet or method.options.get("supernet"), describe(method.method or method.name).slices
    if slices and not supernet and not ModelFolder(Path(layout.base)).is_supernet:
        raise JobsError(
            f"{file}: method {method.name!r} slices a super-network, and has none: name its folder under supernet; "
            "`edgevit supernet` makes one"
        )
    if supernet and not slices:
        able = " or ".join(name for name in method_names() if describe(name).slices)
        raise JobsError(f"{file}: method {method.name!r} slices no super-network, as {able} does; leave {supernet} out")


def _check_budget(budget: NamedEntry, file: Path) -> None:
    limits = {name: getattr(budget, name) for name in BUDGET_KEYS if name != "cost_table"}
    names = [name for name, value in limits.items() if value is not None]
    if len(names) != 1:
        listed_names = " and ".join(names) or "nothing"
        *first, last = limits
        raise JobsError(f"{file}: budget {budget.name!r} is {listed_names}; give one of {', '.join(first)} and {last}")
    timed = [name for name in names if name in MEASURED_BUDGETS]
    if timed and budget.model_dump()["cost_table"] is None and getattr(budget, "board", None) is None:
        raise JobsError(f"{file}: budget {budget.name!r} is in {timed[0]}, and has no cost_table; {TABLE}")
    if limits["rate"] is not None:
        check_number(f"budget {budget.name!r}: rate", limits["rate"], "(0, 1)", "0.6 leaves 40 % of the MACs")


def _job(
    layout: Layout, entry: PlannedJob, task: NamedEntry, budget: NamedEntry, method: MethodEntry, file: Path
) -> DeriveJob:
    arguments = {
        "base": layout.base if method.supernet is None else None,
        **{name: getattr(layout, name) for name in COMMON_KEYS},
        **{name: getattr(task, name) for name in TASK_KEYS},
        **{name: getattr(budget, name) for name in BUDGET_KEYS},
        "method": method.method or method.name,
        "options": method.options,
        "supernet": method.supernet,
        "training": {**layout.training, **method.training},
    }
    arguments["data"] = arguments["data"] or layout.data
    if arguments["data"] is None:
        raise JobsError(f"{file}: task {task.name!r} has no data; give it some, or the whole file")
    arguments = {
        name: value for name, value in arguments.items() if name in _ALWAYS or value not in (None, _DEFAULTS[name])
    }
    try:
        files = contents(arguments)
    except OptionError as error:
        raise JobsError(f"{error}; {file} names it") from error
    out = entry.out or str(Path(layout.out) / entry.name)
    return DeriveJob(entry.name, entry.task, entry.budget, entry.method, out, arguments, files)


def _refuse_shared_folders(jobs: Sequence[DeriveJob], file: Path) -> None:
    """Refuse two jobs if one writes into the other's folder, or into its folder of unfinished work."""
    owner: dict[Path, DeriveJob] = {}
    for job in jobs:
        for folder in (_real(job.out), _real(f"{Path(job.out)}.partial")):
            _refuse_shared(owner.setdefault(folder, job), job, file)
    for job in jobs:
        for folder in _real(job.out).parents:
            _refuse_shared(owner.get(folder, job), job, file)


def _refuse_shared(job: DeriveJob, second: DeriveJob, file: Path) -> None:
    if job is not second:
        raise JobsError(f"{file}: jobs {job.name!r} and {second.name!r} both write {job.out}; give each its own folder")


def _real(path: str) -> Path:
    return Path(os.path.realpath(path))
