"""A plan file, and the graph of jobs that it stands for. Read without torch.

`edgevit fleet --example` prints example_plan.yaml. Its tasks, budgets, methods and common options are those of a jobs
file (`edgevit.jobs.jobs_file`), which lays out the derivations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from edgevit.board.gates import parse_gate
from edgevit.board.profiles import load_profile
from edgevit.board.request import BenchRequest
from edgevit.derivation.allocate.budget import MEASURED_BUDGETS
from edgevit.engines.request import ExportRequest
from edgevit.errors import GateError, JobsError, OptionError, ProfileError, UnknownNameError
from edgevit.exporting.request import FilesRequest
from edgevit.jobs.jobs_file import (
    COMMON_KEYS,
    JOBS,
    BudgetEntry,
    DeriveJob,
    JobsFile,
    MethodEntry,
    NamedEntry,
    PlannedJob,
    Strict,
    TaskEntry,
    entries_by_name,
    keys_of,
    lay_out,
)
from edgevit.jobs.runners import ALL_WORKERS, WORKER
from edgevit.records.documents import Reader
from edgevit.records.kinds import content_sha256
from edgevit.records.precisions import FP32, INT8
from edgevit.request import nearest, options_of, request_of

EXAMPLE = Path(__file__).with_name("example_plan.yaml")
READER = Reader(JobsError, hint="`edgevit fleet --example` prints one that is good")
HERE = "here"  # the board that is this machine
Stage = Literal["derive", "export", "engine", "bench"]
BASE_KEYS = ("base", "checkpoint", "pretrained", "model_args", "preprocessing", "base_classes")
BaseEntry: type[NamedEntry] = create_model("BaseEntry", __base__=NamedEntry, **keys_of(BASE_KEYS))
# Options of `edgevit export` and `edgevit bench` that are set for each job.
OWN_OPTIONS = {
    "export": {"model", "out", "trt", "board", "ssh_config", "profile", "fp16"},
    "bench": {"models", "labels", "board", "ssh_config", "profile", "precision", "power_mode"},
}
REQUESTS: dict[str, type] = {"export": ExportRequest, "bench": BenchRequest}


class PlanBudget(BudgetEntry):  # type: ignore[valid-type,misc]  # a class made of fields
    # Name of the board that measures ms, mj or fps where no cost_table counts them; None: no board.
    board: str | None = None


class BoardEntry(NamedEntry):
    host: str | None = None  # name that ssh takes; None: the board's name
    hosts: tuple[str, ...] = ()  # hosts of several equal boards; each job runs on any of them
    ssh_config: str | None = None
    profile: str | None = None  # name of a board profile, whose budgets become gates; None: no profile
    power_modes: tuple[str, ...] = ()  # power modes to measure in; empty: the current one

    @property
    def address(self) -> str | None:
        """The host, or the name of several; None: this machine."""
        return self.host or (None if self.name == HERE else self.name)

    @property
    def options(self) -> dict[str, Any]:
        """Options of a request that select this board."""
        return {"board": self.address, "ssh_config": self.ssh_config, "profile": self.profile}


Price = Annotated[float, Field(ge=0)]


class HourPrices(Strict):
    """Dollars of an hour; None: not counted."""

    cpu: Price | None = None  # price of one processor core
    gpu: Price | None = None
    board: Price | None = None


class PlanLayout(Strict):
    """The keys of a plan beside the options of every derivation."""

    out: str
    bases: list[BaseEntry]  # type: ignore[valid-type]  # a class made of fields
    tasks: list[TaskEntry]  # type: ignore[valid-type]
    budgets: list[PlanBudget]
    methods: tuple[MethodEntry, ...] = (MethodEntry(name="forge"),)
    # Precisions to measure; empty: those that `edgevit bench` measures by default.
    precisions: tuple[Literal["fp32", "fp16", "int8"], ...] = ()
    boards: tuple[BoardEntry, ...] = ()
    gates: tuple[str, ...] = ()
    export: dict[str, Any] = Field(default_factory=dict)  # options of `edgevit export`
    bench: dict[str, Any] = Field(default_factory=dict)  # options of `edgevit bench`
    prices: HourPrices = HourPrices()
    workers: int | None = None  # number of derivations at a time; None: as many as the processors allow
    threads: int = 4  # number of threads of each worker
    data: str | None = None
    training: dict[str, Any] = Field(default_factory=dict)


PlanFile: type[PlanLayout] = create_model(
    "PlanFile", __base__=PlanLayout, **keys_of(key for key in COMMON_KEYS if key not in BASE_KEYS)
)


@dataclass(frozen=True)
class FleetJob:
    """One job, as plain values: all that its result depends on, and where that lies."""

    name: str
    stage: Stage
    folder: Path  # folder of the job's record, its lock, and the runs of a bench
    model: Path
    sha256: str  # hash of everything that the result depends on
    derivation: DeriveJob  # the derivation that this job is, or whose model it uses
    options: Mapping[str, Any]  # options of the job's command
    needs: tuple[str, ...] = ()
    place: str = WORKER
    hosts: tuple[str, ...] = ()  # hosts of several equal boards; `on_host` puts one into the options
    gates: tuple[str, ...] = ()  # gates that a bench must pass


def on_host(job: FleetJob, host: str) -> FleetJob:
    """The job on one of several equal boards."""
    return replace(job, options={**job.options, "board": host}) if job.hosts else job


@dataclass(frozen=True)
class FleetPlan:
    """A plan with its jobs, each after those that it needs."""

    layout: PlanLayout
    jobs: tuple[FleetJob, ...]

    @property
    def out(self) -> Path:
        return Path(self.layout.out)

    def part(self, only: tuple[int, int] | None) -> tuple[FleetJob, ...]:
        """The jobs of one of several parts; each derivation is in one of them, with all that needs it."""
        if only is None:
            return self.jobs
        number, parts = only
        derivations = [job.name for job in self.jobs if job.stage == "derive"]
        chosen = set(derivations[number - 1 :: parts])
        return tuple(job for job in self.jobs if job.derivation.name in chosen)


def read_plan(file: Path) -> FleetPlan:
    """Read a plan and lay out its jobs.

    Raises:
        JobsError: the file is not valid: an unknown key or name, a number out of range, and the like.
    """
    layout = READER.yaml(file, PlanFile)
    try:
        _check(layout, file)
        derivations = _derivations(layout, file)
        gates = {board.name: _gates(layout, board) for board in layout.boards}
        jobs = tuple(job for derivation in derivations for job in _jobs_of(derivation, layout, gates))
    except (OptionError, UnknownNameError, GateError, ProfileError) as error:
        raise JobsError(f"{file}: {error}") from error
    if several := [name for name, count in Counter(job.name for job in jobs).items() if count > 1]:
        raise JobsError(
            f"{file}: two jobs are named {several[0]!r}, which is put together from the names of task, base, budget, "
            "method, board, power mode and precision; rename one of these, or list it once"
        )
    return FleetPlan(layout, jobs)


def _check(layout: PlanLayout, file: Path) -> None:
    """Refuse options of a command, and numbers, before anything is laid out."""
    if layout.boards:
        entries_by_name("boards", layout.boards, file)
    boards = [board.name for board in layout.boards]
    for board in layout.boards:
        if board.hosts and (board.host is not None or board.name == HERE or len({*board.hosts}) < len(board.hosts)):
            raise JobsError(
                f"{file}: board {board.name!r} has hosts {', '.join(board.hosts)}: list each once, leave host out, and "
                f"choose another name than {HERE!r}, which is this machine"
            )
    _refuse_shared_hosts(layout.boards, file)
    if layout.gates and not layout.boards:
        raise JobsError(f"{file}: gates {', '.join(layout.gates)} are judged on boards: list one, or leave them out")
    for budget in layout.budgets:
        measured = [name for name in MEASURED_BUDGETS if getattr(budget, name) is not None]
        if budget.board is not None and budget.board not in boards:
            raise UnknownNameError("board", budget.board, boards, owner=f"budget {budget.name!r}: the plan")
        if budget.board is not None and not measured:
            raise JobsError(f"{file}: budget {budget.name!r} names a board, and is not in ms, mj or fps; leave it out")
        if measured and budget.board is None and budget.cost_table is None:
            raise JobsError(
                f"{file}: budget {budget.name!r} is in {measured[0]}: name the board that measures it, or a cost_table "
                "that `edgevit cost` wrote"
            )
    for section, own in OWN_OPTIONS.items():
        options = {option.field for option in options_of(REQUESTS[section])} - own
        for key in getattr(layout, section):
            if key not in options:
                raise JobsError(f"{file}: {section} has the unknown option {key!r}; {nearest(key, sorted(options))}")
    for name, value in (("workers", layout.workers), ("threads", layout.threads)):
        if value is not None and value < 1:
            raise JobsError(f"{file}: {name} {value} is less than 1")
    request_of(ExportRequest, {"model": ".", **layout.export}, "export")
    request_of(BenchRequest, {"models": ["."], **layout.bench}, "bench")


def _refuse_shared_hosts(boards: Sequence[BoardEntry], file: Path) -> None:
    """Refuse two boards on one host, as a host does one job at a time."""
    owner: dict[tuple[str | None, str | None], str] = {}
    for board in boards:
        for host in board.hosts or (board.address,):
            if (other := owner.setdefault((host, board.ssh_config), board.name)) != board.name:
                raise JobsError(
                    f"{file}: boards {other!r} and {board.name!r} are both {host}, which does one job at a time: make "
                    "them one board, with several power_modes if they differ in these"
                )


def _gates(layout: PlanLayout, board: BoardEntry) -> tuple[str, ...]:
    """The gates on a board: those of the plan, and the budgets of its profile."""
    budgets = [] if board.profile is None else load_profile(board.profile).budgets
    return tuple(dict.fromkeys(str(parse_gate(text).text) for text in (*layout.gates, *budgets)))


def _derivations(layout: PlanLayout, file: Path) -> list[DeriveJob]:
    """The derivations of all bases, those of one base after another."""
    bases = entries_by_name("bases", layout.bases, file)
    methods = entries_by_name("methods", layout.methods, file)
    tasks, budgets = entries_by_name("tasks", layout.tasks, file), entries_by_name("budgets", layout.budgets, file)
    shared = {key: getattr(layout, key) for key in JobsFile.model_fields if hasattr(layout, key)}
    derivations: list[DeriveJob] = []
    for name, base in bases.items():
        of_base = {key: getattr(base, key) for key in BASE_KEYS}
        entries = [
            PlannedJob(name=f"{task}-{name}-{budget}-{method}", task=task, budget=budget, method=method)
            for task in tasks
            for budget in budgets
            for method in methods
        ]
        several = JobsFile(
            **{
                **shared,
                "methods": list(layout.methods),
                **of_base,
                "base": of_base["base"] or name,
                "workers": 1,
                "jobs": entries,
            }
        )
        derivations += lay_out(several, file)
    return derivations


def _jobs_of(derivation: DeriveJob, layout: PlanLayout, gates: Mapping[str, tuple[str, ...]]) -> Iterator[FleetJob]:
    """A derivation and all that is made of it."""
    model = Path(derivation.out)

    def job(stage: Stage, name: str, sha256: str, options: Mapping[str, Any], *needs: str, **more: Any) -> FleetJob:
        folder = Path(layout.out) / JOBS / name
        return FleetJob(name, stage, folder, model, sha256, derivation, options, needs, **more)

    measured_on = next(budget.board for budget in layout.budgets if budget.name == derivation.budget)
    derive = job("derive", derivation.name, derivation.sha256(), {})
    for board in layout.boards:
        if board.name == measured_on:
            identity = _sha256("derive", derivation.sha256(), board.options)
            derive = job("derive", derivation.name, identity, board.options, **_place(board))
    yield derive
    lowest = {"precision": INT8.name} if INT8.name in layout.precisions else {}
    files = {option.field for option in options_of(FilesRequest)}
    export = {"fp16": layout.precisions != (FP32.name,), **lowest, **layout.export}
    of_files = {key: value for key, value in export.items() if key in files}
    name = f"{derive.name}.export"
    exported = job("export", name, _sha256("export", derive.sha256, of_files), of_files, derive.name)
    yield exported
    for board in layout.boards:
        needed, is_here, place = exported, board.address is None, _place(board)
        if not is_here:
            options = {**export, "trt": True, **board.options}
            name, identity = f"{derive.name}.engine@{board.name}", _sha256("engine", exported.sha256, options)
            needed = job("engine", name, identity, options, exported.name, **place)
            yield needed
        # An engine has the fastest of the precisions that is correct on its board.
        precisions: Sequence[str | None] = (layout.precisions if is_here else ()) or (None,)
        for mode in board.power_modes or (None,):
            for precision in precisions:
                chosen = {"power_mode": mode, "precision": precision}
                options = {**layout.bench, **board.options, **{k: v for k, v in chosen.items() if v is not None}}
                ends = "".join(f".{end}" for end in (mode, precision) if end is not None)
                name, identity = f"{derive.name}.bench@{board.name}{ends}", _sha256("bench", needed.sha256, options)
                yield job("bench", name, identity, options, needed.name, gates=gates[board.name], **place)


def _place(board: BoardEntry) -> dict[str, Any]:
    return {"place": ALL_WORKERS if board.address is None else board.name, "hosts": board.hosts}


def _sha256(stage: Stage, before: str, options: Mapping[str, Any]) -> str:
    """The identity of a job: that of the job before it, and its own options except the address of its board."""
    hashed = {name: value for name, value in options.items() if name != "ssh_config"}
    return content_sha256({"stage": stage, "before": before, "options": hashed})
