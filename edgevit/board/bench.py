"""Measure models on this machine or on a board: one fresh process, and one `Run`, per model, shape and round.

Several models are measured in turns: in each round every one of them once, in random order. A machine that grows warm,
or has other work to do, is then slow for all of them alike, and the ratios within a round show the models alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Annotated, Any

from edgevit.agent.measure import Request
from edgevit.agent.records import Run
from edgevit.agent.runners import runner_names, runner_options
from edgevit.agent.runners.onnxruntime import PROVIDERS
from edgevit.board.connection import THIS_MACHINE, Board, open_board
from edgevit.board.models import Measurable, Work, find_engine_file, find_file, of_this_board
from edgevit.board.profiles import Profile, load_profile, match
from edgevit.board.roofline import Ceiling, ceiling_found, least_bytes, roofline
from edgevit.errors import AgentError, OptionError, UnfitBoardError, UnknownNameError
from edgevit.progress import Progress, Silent
from edgevit.request import BOARD, LOAD, MEASURING, RUNNER, Option, assignments, request_of
from edgevit.version import written_by

PRECISIONS = ("fp32", "fp16", "mixed")
POWER_METERS = ("ina3221", "tegrastats", "jtop")
ON_A_BOARD_S = 10.0  # of window and of idle power: the rails' sensors average over 0.43 s
ELSEWHERE_S = 1.0
CROSS_CHECK_S = 3.0  # trtexec's own default
ROUNDS = 10  # of several models in turns; an interval of their ratios needs at least 6


@dataclass(frozen=True)
class Setting:
    """Where a bench takes place, known before anything is measured."""

    host: str
    facts: dict[str, Any]  # of the board, as its agent found them
    profile: Profile | None

    @property
    def has_power(self) -> bool:
        """Say whether any power meter can be read there."""
        return any(reason is None for reason in self.facts["meters"].values())


@dataclass(frozen=True)
class Bench:
    """What a bench gave."""

    runs: tuple[Run, ...]
    setting: Setting
    changed: dict[str, Any]  # the power mode and whether the clocks were locked, as they were for the runs
    cross_checks: tuple[dict[str, Any], ...]  # trtexec's own figures for the same engines, by batch
    work: Mapping[str, Work]  # of one image, by the label of its model; files that do not say are left out
    ceiling: Ceiling | None  # of the board in its power mode; None: no profile

    def least_s(self, run: Run) -> float | None:
        """The time of one inference that this board cannot go below in this power mode."""
        work = self.work.get(run.label)
        if work is None or self.ceiling is None:
            return None
        precision = "fp32" if run.precision == "fp32" else "fp16"  # of a mixed engine, most is fp16
        moved = least_bytes(work.params, work.values, batch=run.batch, precision=precision)
        return roofline(self.ceiling, run.batch * work.macs, moved, precision).least_s

    def remarks(self) -> list[str]:
        """What a reader of the figures must know of the board's state."""
        before, now = self.setting.facts.get("power_mode") or {}, self.changed.get("power_mode")
        remarks = []
        if now is not None:
            was = before.get("name")
            remarks.append(f"power mode {now}" + (f" for this bench, {was} before and after it" if was != now else ""))
        if self.changed.get("clocks_locked") is not None:
            remarks.append("clocks locked" if self.changed["clocks_locked"] else "clocks not locked")
        return [*remarks, *self.changed["told"]]


@dataclass(frozen=True)
class Conditions:
    """How to measure.

    The runner is `tensorrt` on a board and for an engine, unless given, and the file of a model folder then the engine
    that `edgevit export --trt` built there; else it is `onnxruntime` with the exported ONNX file of `precision`: fp16
    on a GPU and fp32 on the CPU, where fp16 is slower. `options` are the runner's own beside `provider`, `threads` and
    `streams`. Where the power can be read, the window lasts 10 s and the idle power is read as long, unless given.
    """

    runner: Annotated[
        str | None,
        Option(
            "What runs the model: tensorrt, onnxruntime or fake.  "
            "[default: tensorrt on a board, onnxruntime elsewhere]",
            RUNNER,
        ),
    ] = None
    batches: Annotated[
        Sequence[int],
        Option("Number of images per inference; repeatable.  [default: 1]", LOAD, name="--batch", repeated=True),
    ] = (1,)
    streams: Annotated[
        Sequence[int],
        Option(
            "Number of inferences under way at the same time; repeatable.  [default: 1]",
            LOAD,
            name="--streams",
            repeated=True,
        ),
    ] = (1,)
    precision: Annotated[
        str | None,
        Option("Precision of a model folder's file: fp32 or fp16.  [default: fp16 on a GPU, fp32 on the CPU]", RUNNER),
    ] = None
    provider: Annotated[
        str | None, Option("What onnxruntime computes with: cpu, cuda or tensorrt.  [default: cpu]", RUNNER)
    ] = None
    threads: Annotated[int | None, Option("Threads within one operator, on the CPU.  [default: all cores]", RUNNER)] = (
        None
    )
    samples: Annotated[
        int, Option("Number of inferences that are timed, or more if --duration is longer.", MEASURING)
    ] = 200
    duration_s: Annotated[
        float | None,
        Option(
            "Seconds for which inferences are timed, or longer if --samples takes longer.  "
            "[default: 10 where power is read, else 1]",
            MEASURING,
            name="--duration",
        ),
    ] = None
    idle_s: Annotated[
        float | None,
        Option(
            "Seconds for which the idle power is measured before the first inference.  "
            "[default: 10 where power is read]",
            MEASURING,
            name="--idle",
        ),
    ] = None
    warmup: Annotated[int, Option("Number of inferences before the first that is timed.", MEASURING)] = 10
    warmup_seconds: Annotated[
        float, Option("Seconds for which these go on, or longer if --warmup takes longer.", MEASURING)
    ] = 0.5
    power_meter: Annotated[
        str | None,
        Option("What reads the power: ina3221, tegrastats or jtop.  [default: the first that can be read]", MEASURING),
    ] = None
    power_mode: Annotated[
        str | None,
        Option("Power mode to set for the bench; the earlier one is set again after it.", BOARD),
    ] = None
    lock_clocks: Annotated[bool, Option("Lock the clocks for the bench, and unlock them after it.", BOARD)] = False
    cross_check: Annotated[bool, Option("Let trtexec measure the same engine, too.", MEASURING)] = False
    options: Annotated[
        Mapping[str, Any],
        Option(
            "Option of the runner, such as cuda_graph=False; repeatable.",
            RUNNER,
            name="--option",
            metavar="NAME=VALUE",
            repeated=True,
            read=assignments("--option", "cuda_graph=False"),
        ),
    ] = field(default_factory=dict)

    def runner_options(self, runner: str, streams: int) -> dict[str, Any]:
        """The runner's own options; those that it does not know are refused by name."""
        several = None if streams == 1 else streams  # one is what every runner does by itself
        given = {"provider": self.provider, "threads": self.threads, "streams": several}
        options = {**{name: value for name, value in given.items() if value is not None}, **self.options}
        known = runner_options(runner)
        for name in options:
            if name not in known:
                raise OptionError(
                    f"the runner {runner!r} has no option {name!r}; its options: {', '.join(known) or 'none'}"
                )
        return options

    def check(self, runner: str, rounds: int) -> None:
        """Raises: UnknownNameError, OptionError."""
        named = (
            ("runner", runner, runner_names()),
            ("provider", self.provider, PROVIDERS),
            ("precision", self.precision, PRECISIONS),
            ("power meter", self.power_meter, POWER_METERS),
        )
        for kind, name, known in named:
            if name is not None and name not in known:
                raise UnknownNameError(kind, name, known)
        if not self.batches or not self.streams:
            raise OptionError("no batch size or no streams: give at least one --batch, and one --streams if any")
        limits = (
            *(("batch", batch, 1) for batch in self.batches),
            *(("streams", count, 1) for count in self.streams),
            ("repeat", rounds, 1),
            ("samples", self.samples, 1),
            ("threads", 1 if self.threads is None else self.threads, 1),
            ("duration", self.duration_s or 0, 0),
            ("idle", self.idle_s or 0, 0),
            ("warmup", self.warmup, 0),
            ("warmup-seconds", self.warmup_seconds, 0),
        )
        for name, value, least in limits:
            if not least <= value < float("inf"):
                raise OptionError(f"--{name} is {value}: it must be at least {least}")
        self.runner_options(runner, max(self.streams))
        if self.cross_check and runner != "tensorrt":
            raise OptionError(f"--cross-check runs trtexec on an engine, and the runner is {runner!r}")

    def requests(self, model: str, found: Measurable, runner: str, setting: Setting) -> list[Request]:
        """One for each batch size and number of streams."""
        request = Request(
            model=model,
            model_sha256=found.sha256,
            label=found.label,
            precision=found.precision,
            runner=runner,
            batch=1,
            samples=self.samples,
            duration_s=_or(self.duration_s, ON_A_BOARD_S if setting.has_power else ELSEWHERE_S),
            warmup=self.warmup,
            warmup_seconds=self.warmup_seconds,
            power_meter=self.power_meter,
            total_rails=tuple(setting.profile.total_rails()) if setting.profile else (),
        )
        shapes = [(batch, self.runner_options(runner, streams)) for batch in self.batches for streams in self.streams]
        return [replace(request, batch=batch, options=options) for batch, options in shapes]


def bench(
    model: str | Path,
    how: Conditions | None = None,
    *,
    repeat: int = 1,
    label: str | None = None,
    board: str | None = None,
    ssh_config: str | Path | None = None,
    profile: str | Path | None = None,
    before: Callable[[Setting, str], None] | None = None,
    on_run: Callable[[Run], None] | None = None,
    progress: Progress | None = None,
    **conditions: Any,
) -> Bench:
    """Measure one model `repeat` times at each batch size and number of streams; see `bench_in_turns`.

    `label` is what tables call the model; `conditions` are fields of `Conditions`, in place of `how`.

    Raises:
        OptionError: also of a condition that there is not.
    """
    if how is not None and conditions:
        raise OptionError(f"bench takes conditions as a whole or one by one; leave out {', '.join(conditions)}")
    return bench_in_turns(
        [model],
        how or request_of(Conditions, conditions, "bench"),
        rounds=repeat,
        labels=None if label is None else [label],
        board=board,
        ssh_config=ssh_config,
        profile=profile,
        before=before,
        on_run=on_run,
        progress=progress,
    )


def bench_in_turns(
    models: Sequence[str | Path],
    how: Conditions | None = None,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    board: str | None = None,
    ssh_config: str | Path | None = None,
    profile: str | Path | None = None,
    before: Callable[[Setting, str], None] | None = None,
    on_run: Callable[[Run], None] | None = None,
    progress: Progress | None = None,
) -> Bench:
    """Measure models against each other, on this machine or on `board`, over SSH.

    In each of `rounds`, every model is measured once at each batch size and number of streams, each time in a process
    of its own; the order within all rounds but the first is drawn with `seed`, and each run says its round and turn.
    What the ratios to the first model are, and how sure that is, `edgevit.report.runs.compare_within` says of the runs.

    `labels` are what tables call the models; else each has the name of its folder or file, or its path where two names
    are alike. `before` gets the setting and the runner's name before anything is measured, and may refuse by raising;
    `on_run` gets each run.

    Raises:
        UnknownNameError, OptionError: the request makes no sense; nothing was started.
        CheckpointError, EngineError: a model is missing, not exported, altered, or an engine of another board.
        ProfileError: the profile cannot be read, or is another board's.
        BoardError: the board cannot be reached, lacks something, or cannot run a model as asked.
    """
    how, paths, told = how or Conditions(), [Path(model) for model in models], progress or Silent()
    runner = how.runner or _usual_runner(paths, on_board=board is not None)
    how.check(runner, rounds)
    if labels is not None and len(set(labels)) != len(paths):
        raise OptionError(f"{len(paths)} models have the labels {', '.join(labels)}; give each its own")
    # Whatever can be wrong here is found before the board is bothered; which engine is the right one, the board says.
    files = [
        None if runner == "tensorrt" and path.is_dir() else find_file(path, how.precision, how.provider)
        for path in paths
    ]
    known = None if profile is None else load_profile(profile)
    with open_board(board, ssh_config=None if ssh_config is None else Path(ssh_config)) as place:
        setting = _look(place, known, how, told)
        if before:
            before(setting, runner)
        built = [
            of_this_board(file, setting.facts)
            if file
            else find_engine_file(path, setting.facts, how.batches, how.precision)
            for path, file in zip(paths, files, strict=True)
        ]
        found = [replace(file, label=name) for file, name in zip(built, labels or _names(paths, built), strict=True)]
        here = place.host == THIS_MACHINE
        there = [str(file.path) if here else place.put(file.path, file.sha256, told) for file in found]
        shapes = [how.requests(path, file, runner, setting) for path, file in zip(there, found, strict=True)]
        return _bench(place, how, found, shapes, in_turns(shapes, rounds, seed), setting, on_run, told)


def in_turns(shapes: Sequence[Sequence[Request]], rounds: int, seed: int) -> list[Request]:
    """Order the measurements of several models, each at the same shapes: those of one shape follow one another.

    The first round keeps the order of the models, so that runs in a file say which of them the first was.
    """
    random = Random(seed)
    turns: list[Request] = []
    for number in range(1, rounds + 1):
        for alike in zip(*shapes, strict=True):
            order = alike if number == 1 else random.sample(alike, len(alike))
            turns += [replace(request, round=number) for request in order]
    return turns


def _usual_runner(models: Sequence[Path], *, on_board: bool) -> str:
    """Raises: OptionError."""
    if not models:
        raise OptionError("there is no model to measure; give at least one")
    engines = [on_board or model.suffix == ".engine" for model in models]
    if len(set(engines)) > 1:
        first, other = models[engines.index(True)], models[engines.index(False)]
        raise OptionError(f"{first.name} is an engine and {other} is not; measure engines with engines")
    return "tensorrt" if engines[0] else "onnxruntime"


def _names(paths: Sequence[Path], found: Sequence[Measurable]) -> list[str]:
    """A name for each model, unlike all others: that of its folder or file, else its path, else with a number."""
    names = [file.label for file in found]
    names = [str(path) if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]
    return [f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name for i, name in enumerate(names)]


def _look(board: Board, profile: Profile | None, how: Conditions, progress: Progress) -> Setting:
    """Find out what the board is, and whether it has what was asked for."""
    with progress.stage(f"look at {board.host}"):
        facts = board.call("examine")
    if profile is not None:
        profile.check(facts)
    setting = Setting(board.host, facts, profile or match(facts))
    _check_power(setting, how)
    if how.cross_check and not facts["trtexec"]:
        raise UnfitBoardError(
            f"{board.host} has no trtexec, which --cross-check runs; install it there with "
            "`sudo apt install libnvinfer-bin`, or leave the option out"
        )
    return setting


def _bench(
    board: Board,
    how: Conditions,
    found: Sequence[Measurable],
    shapes: Sequence[Sequence[Request]],
    turns: Sequence[Request],
    setting: Setting,
    on_run: Callable[[Run], None] | None,
    progress: Progress,
) -> Bench:
    args = {
        "requests": [asdict(request) for request in turns],
        "idle_s": _or(how.idle_s, ON_A_BOARD_S) if setting.has_power else 0.0,
        "power_mode": how.power_mode,
        "lock_clocks": how.lock_clocks,
    }
    name = f"bench {', '.join(file.label for file in found)} on {board.host}"
    result = board.run_job("bench", args, name=name, progress=progress)
    runs = tuple(replace(Run.from_dict(run), edgevit=written_by()) for run in result["runs"])
    if on_run:
        for run in runs:
            on_run(run)
    if failed := result["failed"]:
        request = turns[failed["number"]]
        path = next(file.path for file in found if file.label == request.label)
        what = f"cannot measure {path} at batch {request.batch} on {board.host}"
        raise AgentError(f"{what}: {failed['message']}", remote_traceback=failed["traceback"])
    checks = _cross_check(board, chain.from_iterable(shapes), how, progress)
    work = {file.label: file.work for file in found if file.work}
    return Bench(runs, setting, result["changed"], checks, work, _ceiling(setting, result["changed"]))


def _check_power(setting: Setting, how: Conditions) -> None:
    """A meter that was asked for by name must be there; one that was not may be missing."""
    if how.power_meter is None:
        return
    meters = setting.facts["meters"]
    if reason := meters.get(how.power_meter, "unknown to the agent"):
        works = ", ".join(name for name, why in meters.items() if why is None) or "none"
        raise UnfitBoardError(
            f"{setting.host} has no power meter {how.power_meter!r} ({reason}); it has: {works}; "
            "leave --power-meter out to go without"
        )


def _ceiling(setting: Setting, changed: Mapping[str, Any]) -> Ceiling | None:
    """By the power mode that the runs were made in."""
    if setting.profile is None:
        return None
    modes = setting.facts.get("power_modes") or ()
    current = next((mode for mode in modes if mode["name"] == changed.get("power_mode")), setting.facts["power_mode"])
    return ceiling_found(setting.profile, {**setting.facts, "power_mode": current})


def _cross_check(
    board: Board, requests: Iterable[Request], how: Conditions, progress: Progress
) -> tuple[dict[str, Any], ...]:
    """Let trtexec measure the same engine in its own way, on the board set as it was for the runs."""
    checks = []
    for request in requests if how.cross_check else ():
        args = {
            "engine": request.model,
            "batch": request.batch,
            "seconds": max(CROSS_CHECK_S, request.duration_s),
            "streams": request.options.get("streams", 1),
            "power_mode": how.power_mode,
            "lock_clocks": how.lock_clocks,
        }
        shape = {"label": request.label, "batch": request.batch, "streams": args["streams"]}
        name = f"trtexec {request.label}, batch {request.batch}"
        checks.append({**shape, **board.run_job("trtexec", args, name=name, progress=progress)})
    return tuple(checks)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
