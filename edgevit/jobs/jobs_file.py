"""A jobs file: many derivations, as tasks x budgets x methods or as a list of jobs. Read here, without torch.

example_jobs.yaml, which `edgevit derive-many --example` prints, has every key.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
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
from edgevit.numbers import check_number
from edgevit.records.contents import contents
from edgevit.records.documents import Reader
from edgevit.records.model_folder import ModelFolder
from edgevit.request import BUDGET, COMPUTING, Option, default_of, options_of, plain_type, request_of
from edgevit.train.settings import Training

EXAMPLE = Path(__file__).with_name("example_jobs.yaml")
RESULTS = ("results.json", "results.md")  # beside the jobs' folders
READER = Reader(JobsError, hint="`edgevit derive-many --example` prints one that is good")
# Options of `edgevit derive` that say where models are measured.
PLACE_KEYS = (
    "batch", "board", "lock_clocks", "power_mode", "profile", "provider", "run_precision", "runner",
    "ssh_config", "threads",
)  # fmt: skip
TABLE = (
    "derive-many measures nothing: measure a table with `edgevit cost BASE --board HOST --output FILE` and name it as "
    "the budget's cost_table, or use `edgevit derive`"
)
BUDGET_KEYS = tuple(asked.field for asked in options_of(DeriveRequest) if asked.option.panel == BUDGET)
TASK_KEYS, METHOD_KEYS = ("classes", "data"), ("method", "options", "supernet", "training")
OWN_KEYS = ("out", "resume", "overwrite")  # which every job has its own way of
# The hash of every job has these fields, and the others only where they differ from the default: so a job that is done
# keeps its hash when edgevit gets a new option, and is not done again.
ALWAYS = {
    "base", "checkpoint", "pretrained", "model_args", "preprocessing", "base_classes", "shape", "ffn_multiple", "head",
    "finetune_base", "validation_fraction", "skip_bad_images", "data", "classes", "rate", "macs", "params", "method",
    "options", "training",
}  # fmt: skip
# Options that let a job go on where it would have failed: one that was done without them is the same.
LENIENT = ("skip_bad_images", "accept_weak_base", "accept_preprocessing")
DEFAULTS = {one.name: default_of(one) for one in fields(DeriveRequest)}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Named(_Strict):
    name: str


def _keys(names: Iterable[str]) -> dict[str, Any]:
    """Keys for fields of a derivation: with their types, as a file has their values, and their defaults."""
    hints = get_type_hints(DeriveRequest)
    return {name: (plain_type(hints[name]), DEFAULTS[name] if DEFAULTS[name] != () else None) for name in names}


TaskEntry: type[_Named] = create_model("TaskEntry", __base__=_Named, **_keys(TASK_KEYS))
BudgetEntry: type[_Named] = create_model("BudgetEntry", __base__=_Named, **_keys(BUDGET_KEYS))


class MethodEntry(_Named):
    method: str | None = None  # the name itself, if left out
    options: dict[str, Any] = {}
    training: dict[str, Any] = {}  # in place of the file's
    supernet: str | None = None  # for slices of it, which have no other base


class PlannedJob(_Strict):
    name: str
    task: str
    budget: str
    method: str
    out: str | None = None  # a folder of the job's name under the file's, if left out


class Layout(_Strict):
    """What lays out the jobs, beside the options that are the same for all."""

    base: str
    out: str
    tasks: list[TaskEntry]  # type: ignore[valid-type]  # a class made of fields
    budgets: list[BudgetEntry]  # type: ignore[valid-type]
    methods: list[MethodEntry]
    jobs: list[PlannedJob] | None = None  # every task with every budget and method, if left out
    workers: int = 1
    data: str | None = None
    training: dict[str, Any] = {}


COMMON_KEYS = tuple(
    dict.fromkeys(
        asked.path[0]
        for asked in options_of(DeriveRequest)
        if asked.path[0] not in {*BUDGET_KEYS, *TASK_KEYS, *METHOD_KEYS, *OWN_KEYS, "base"}
    )
)
# What a jobs file may hold; everything that `edgevit derive` takes has the name it has there.
JobsFile: type[Layout] = create_model("JobsFile", __base__=Layout, **_keys(COMMON_KEYS))


class _Trained(_Strict):
    training: Training


@dataclass(frozen=True, kw_only=True)
class DeriveManyRequest:
    """What `edgevit.derive_many` is asked."""

    jobs: Annotated[Path, Option("YAML of tasks, budgets and methods; --example prints one.", None)]
    workers: Annotated[
        int | None, Option("Number of derivations side by side.  [default: what the file says]", COMPUTING)
    ] = None


@dataclass(frozen=True)
class Job:
    """One derivation: `arguments` are those of `edgevit.derive`, as plain values."""

    name: str
    task: str
    budget: str
    method: str
    out: str
    arguments: dict[str, Any]
    files: dict[str, str]  # sha256 of those that arguments name, and of models' weights: not of the images

    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def hashes(self) -> set[str]:
        """Its own hash, and those of the same job without lenient options: done without them, it is done."""
        given = [name for name in LENIENT if self.arguments.get(name)]
        less = (set(some) for count in range(len(given) + 1) for some in combinations(given, count))
        return {replace(self, arguments=self._without(names)).sha256() for names in less}

    def _without(self, options: Collection[str]) -> dict[str, Any]:
        given = {name: value for name, value in self.arguments.items() if name not in options}
        return {**given, **{name: DEFAULTS[name] for name in options if name in ALWAYS}}

    def request(self, *, resume: bool = False) -> DeriveRequest:
        """The derivation that this is."""
        training = Training(**self.arguments["training"])
        given = {**self.arguments, "training": training, "out": self.out, "resume": resume}
        return replace(request_of(DeriveRequest, given, f"job {self.name!r}"), job=self.sha256())


def read_jobs(file: str | Path) -> tuple[list[Job], Layout]:
    """Read a jobs file and lay out its jobs, as `tasks_side_by_side` says for the file's own workers.

    Raises:
        JobsError: it is no jobs file: an unknown key, a name that is there twice or not at all, two jobs with one
            folder, a number out of range, and the like.
    """
    file = Path(file)
    told = READER.yaml(file, dict[str, Any])
    if given := [key for key in told if key in PLACE_KEYS]:
        raise JobsError(f"{file}: {given[0]} says how models are measured; {TABLE}")
    layout = READER.checked(told, JobsFile, str(file))
    try:
        return _jobs(layout, file), layout
    except (OptionError, UnknownNameError) as error:
        raise JobsError(f"{file}: {error}") from error


def _jobs(layout: Layout, file: Path) -> list[Job]:
    tasks, budgets = _by_name("tasks", layout.tasks, file), _by_name("budgets", layout.budgets, file)
    methods = _by_name("methods", layout.methods, file)
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
    jobs: list[Job] = []
    for entry in _by_name("jobs", planned, file).values():
        for kind, name, known in (("task", entry.task, tasks), ("budget", entry.budget, budgets)):
            if name not in known:
                raise UnknownNameError(kind, name, known, owner=f"the file of job {entry.name!r}")
        if entry.method not in methods:
            raise UnknownNameError("method", entry.method, methods, owner=f"the file of job {entry.name!r}")
        jobs.append(_job(layout, entry, tasks[entry.task], budgets[entry.budget], methods[entry.method], file))
    for job in jobs:
        asked = job.request()
        read_options(asked.method, asked.settings)
        make_policy(asked.shape, asked.ffn_multiple, asked.embed_multiple)
    _refuse_shared_folders(jobs, file)
    return tasks_side_by_side(jobs, layout.workers)


def tasks_side_by_side(jobs: Sequence[Job], workers: int) -> list[Job]:
    """As many tasks at a time as there are workers: the first job of each, whose work the others share, then the rest.

    So tasks are begun side by side, and what is shared is used before so much else is cached that it has to go.
    """
    first = {job.task: job.name for job in reversed(jobs)}
    turn = {task: i // max(workers, 1) for i, task in enumerate(dict.fromkeys(job.task for job in jobs))}
    return sorted(jobs, key=lambda job: (turn[job.task], first[job.task] != job.name))


def _by_name(kind: str, entries: Sequence[Any], file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entries:
        name = entry.name
        if name in found:
            raise JobsError(f"{file}: two {kind} are named {name!r}; give each its own name")
        if name in ("", ".", "..", *RESULTS) or "/" in name or not name.isprintable():
            raise JobsError(f"{file}: {name!r}, one of the {kind}, cannot be the name of a folder; try another")
        found[name] = entry
    if not found:
        raise JobsError(f"{file}: no {kind}; give at least one")
    return found


def _check_method(layout: Layout, method: MethodEntry, file: Path) -> None:
    """Find a misspelt option or a setting that cannot be before any job starts."""
    name = method.method or method.name
    options, settings = {o.name for o in describe(name).options}, {f.name for f in fields(Training)}
    for given, own, other, where in (
        (method.options, options, settings, "training"),
        (method.training, settings, options, "options"),
    ):
        for key in given:
            if key not in own and key in other:
                raise JobsError(f"{file}: {key} of method {method.name!r} belongs under {where}: move it there")
    read_options(name, method.options)
    training = {**layout.training, **method.training}
    for key in training:
        if key not in settings:
            raise UnknownNameError("training setting", key, settings)
    READER.checked({"training": training}, _Trained, str(file)).training.check()


def _check_supernet(layout: Layout, method: MethodEntry, file: Path) -> None:
    """Find a method that has no super-network to slice, or one that it does not slice."""
    given, slices = method.supernet or method.options.get("supernet"), describe(method.method or method.name).slices
    if slices and not given and not ModelFolder(Path(layout.base)).is_supernet:
        raise JobsError(
            f"{file}: method {method.name!r} slices a super-network, and has none: name its folder under supernet; "
            "`edgevit supernet` makes one"
        )
    if given and not slices:
        able = " or ".join(name for name in method_names() if describe(name).slices)
        raise JobsError(f"{file}: method {method.name!r} slices no super-network, as {able} does; leave {given} out")


def _check_budget(budget: _Named, file: Path) -> None:
    asked = {name: getattr(budget, name) for name in BUDGET_KEYS if name != "cost_table"}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) != 1:
        seen = " and ".join(given) or "nothing"
        *first, last = asked
        raise JobsError(f"{file}: budget {budget.name!r} is {seen}; give one of {', '.join(first)} and {last}")
    timed = [name for name in given if name in MEASURED_BUDGETS]
    if timed and budget.model_dump()["cost_table"] is None:
        raise JobsError(f"{file}: budget {budget.name!r} is in {timed[0]}, and has no cost_table; {TABLE}")
    if asked["rate"] is not None:
        check_number(f"budget {budget.name!r}: rate", asked["rate"], "(0, 1)", "0.6 leaves 40 % of the MACs")


def _job(layout: Layout, entry: PlannedJob, task: _Named, budget: _Named, method: MethodEntry, file: Path) -> Job:
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
        name: value for name, value in arguments.items() if name in ALWAYS or value not in (None, DEFAULTS[name])
    }
    try:
        files = contents(arguments)
    except OptionError as error:
        raise JobsError(f"{error}; {file} names it") from error
    out = entry.out or str(Path(layout.out) / entry.name)
    return Job(entry.name, entry.task, entry.budget, entry.method, out, arguments, files)


def _refuse_shared_folders(jobs: Sequence[Job], file: Path) -> None:
    """Refuse two jobs of which one would write into the other's folder, or where the other keeps unfinished work."""
    owner: dict[Path, Job] = {}
    for job in jobs:
        for folder in (_real(job.out), _real(f"{Path(job.out)}.partial")):
            _refuse_shared(owner.setdefault(folder, job), job, file)
    for job in jobs:
        for folder in _real(job.out).parents:
            _refuse_shared(owner.get(folder, job), job, file)


def _refuse_shared(one: Job, other: Job, file: Path) -> None:
    if one is not other:
        raise JobsError(f"{file}: jobs {one.name!r} and {other.name!r} both write {one.out}; give each its own folder")


def _real(path: str) -> Path:
    return Path(os.path.realpath(path))
