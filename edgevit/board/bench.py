"""Measure a model on this machine or on a board: one fresh process, and one `Run`, per batch size and repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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

PRECISIONS = ("fp32", "fp16", "mixed")
POWER_METERS = ("ina3221", "tegrastats", "jtop")
ON_A_BOARD_S = 10.0  # of window and of idle power: the rails' sensors average over 0.43 s
ELSEWHERE_S = 1.0
CROSS_CHECK_S = 3.0  # trtexec's own default


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
    cross_checks: tuple[dict[str, Any], ...]  # trtexec's own figures for the same engine, by batch
    work: Work | None  # of one image; None: the file that was measured does not say
    ceiling: Ceiling | None  # of the board in its power mode; None: no profile

    def least_s(self, run: Run) -> float | None:
        """The time of one inference that this board cannot go below in this power mode."""
        if self.work is None or self.ceiling is None:
            return None
        precision = "fp32" if run.precision == "fp32" else "fp16"  # of a mixed engine, most is fp16
        moved = least_bytes(self.work.params, self.work.values, batch=run.batch, precision=precision)
        return roofline(self.ceiling, run.batch * self.work.macs, moved, precision).least_s

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
class Asked:
    """How to measure."""

    runner: str
    batches: Sequence[int]
    streams: Sequence[int]
    repeat: int
    precision: str | None
    provider: str | None
    threads: int | None
    samples: int
    duration_s: float | None
    idle_s: float | None
    warmup: int
    warmup_seconds: float
    power_meter: str | None
    power_mode: str | None
    lock_clocks: bool
    cross_check: bool
    options: Mapping[str, Any]

    def runner_options(self, streams: int) -> dict[str, Any]:
        """The runner's own options; those that it does not know are refused by name."""
        several = None if streams == 1 else streams  # one is what every runner does by itself
        given = {"provider": self.provider, "threads": self.threads, "streams": several}
        options = {**{name: value for name, value in given.items() if value is not None}, **self.options}
        known = runner_options(self.runner)
        for name in options:
            if name not in known:
                raise OptionError(
                    f"the runner {self.runner!r} has no option {name!r}; its options: {', '.join(known) or 'none'}"
                )
        return options

    def check(self) -> None:
        """Raises: UnknownNameError, OptionError."""
        named = (
            ("runner", self.runner, runner_names()),
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
            ("repeat", self.repeat, 1),
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
        self.runner_options(max(self.streams))
        if self.cross_check and self.runner != "tensorrt":
            raise OptionError(f"--cross-check runs trtexec on an engine, and the runner is {self.runner!r}")

    def requests(self, model: str, found: Measurable, label: str | None, setting: Setting) -> list[Request]:
        """One for each batch size and number of streams, in turn: what drifts meets all of them alike."""
        request = Request(
            model=model,
            model_sha256=found.sha256,
            label=label or found.label,
            precision=found.precision,
            runner=self.runner,
            batch=1,
            samples=self.samples,
            duration_s=_or(self.duration_s, ON_A_BOARD_S if setting.has_power else ELSEWHERE_S),
            warmup=self.warmup,
            warmup_seconds=self.warmup_seconds,
            power_meter=self.power_meter,
            total_rails=tuple(setting.profile.total_rails()) if setting.profile else (),
        )
        shapes = [(batch, self.runner_options(streams)) for batch in self.batches for streams in self.streams]
        return [replace(request, batch=batch, options=options) for batch, options in shapes] * self.repeat


def bench(
    model: str | Path,
    *,
    board: str | None = None,
    ssh_config: str | Path | None = None,
    profile: str | Path | None = None,
    batches: Sequence[int] = (1,),
    repeat: int = 1,
    runner: str | None = None,
    precision: str | None = None,
    provider: str | None = None,
    threads: int | None = None,
    streams: Sequence[int] = (1,),
    samples: int = 200,
    duration_s: float | None = None,
    idle_s: float | None = None,
    warmup: int = 10,
    warmup_seconds: float = 0.5,
    power_meter: str | None = None,
    power_mode: str | None = None,
    lock_clocks: bool = False,
    cross_check: bool = False,
    label: str | None = None,
    options: Mapping[str, Any] | None = None,
    before: Callable[[Setting, str], None] | None = None,
    on_run: Callable[[Run], None] | None = None,
    progress: Progress | None = None,
) -> Bench:
    """Measure `model` at each batch size and number of streams, on this machine or on `board`, over SSH.

    On a board the runner is `tensorrt` unless asked otherwise, and the engine the one that `edgevit export --trt` built
    there; elsewhere it is `onnxruntime` with the exported ONNX file of `precision`: fp16 on a GPU and fp32 on the CPU,
    where fp16 is slower. `label` is what tables call the model. `options` are the runner's own beside `provider`,
    `threads` and `streams`. Where the power can be read, the window lasts 10 s and the idle power is read as long.
    `before` gets the setting and the runner's name before anything is measured, and may refuse by raising; `on_run`
    gets each run.

    Raises:
        UnknownNameError, OptionError: the request makes no sense; nothing was started.
        CheckpointError, EngineError: the model is missing, not exported, altered, or an engine of another board.
        ProfileError: the profile cannot be read, or is another board's.
        BoardError: the board cannot be reached, lacks something, or cannot run the model as asked.
    """
    asked = Asked(
        runner=runner or ("tensorrt" if board or Path(model).suffix == ".engine" else "onnxruntime"),
        batches=batches,
        streams=streams,
        repeat=repeat,
        precision=precision,
        provider=provider,
        threads=threads,
        samples=samples,
        duration_s=duration_s,
        idle_s=idle_s,
        warmup=warmup,
        warmup_seconds=warmup_seconds,
        power_meter=power_meter,
        power_mode=power_mode,
        lock_clocks=lock_clocks,
        cross_check=cross_check,
        options=options or {},
    )
    asked.check()
    # Whatever can be wrong here is found before the board is bothered; which engine is the right one, the board says.
    found = None if asked.runner == "tensorrt" and Path(model).is_dir() else find_file(Path(model), precision, provider)
    known = None if profile is None else load_profile(profile)
    told = progress or Silent()
    with open_board(board, ssh_config=None if ssh_config is None else Path(ssh_config)) as place:
        setting = _look(place, known, asked, told)
        if before:
            before(setting, asked.runner)
        if found is None:
            found = find_engine_file(Path(model), setting.facts, batches, precision)
        else:
            found = of_this_board(found, setting.facts)
        there = str(found.path) if place.host == THIS_MACHINE else place.put(found.path, found.sha256, told)
        return _bench(place, asked, found, asked.requests(there, found, label, setting), setting, on_run, told)


def _look(board: Board, profile: Profile | None, asked: Asked, progress: Progress) -> Setting:
    """Find out what the board is, and whether it has what was asked for."""
    with progress.stage(f"look at {board.host}"):
        facts = board.call("examine")
    if profile is not None:
        profile.check(facts)
    setting = Setting(board.host, facts, profile or match(facts))
    _check_power(setting, asked)
    if asked.cross_check and not facts["trtexec"]:
        raise UnfitBoardError(
            f"{board.host} has no trtexec, which --cross-check runs; install it there with "
            "`sudo apt install libnvinfer-bin`, or leave the option out"
        )
    return setting


def _bench(
    board: Board,
    asked: Asked,
    found: Measurable,
    requests: Sequence[Request],
    setting: Setting,
    on_run: Callable[[Run], None] | None,
    progress: Progress,
) -> Bench:
    args = {
        "requests": [asdict(request) for request in requests],
        "idle_s": _or(asked.idle_s, ON_A_BOARD_S) if setting.has_power else 0.0,
        "power_mode": asked.power_mode,
        "lock_clocks": asked.lock_clocks,
    }
    name = f"bench {requests[0].label} on {board.host}"
    result = board.run_job("bench", args, name=name, progress=progress)
    runs = tuple(Run.from_dict(run) for run in result["runs"])
    if on_run:
        for run in runs:
            on_run(run)
    if failed := result["failed"]:
        what = f"cannot measure {found.path} at batch {requests[failed['number']].batch} on {board.host}"
        raise AgentError(f"{what}: {failed['message']}", remote_traceback=failed["traceback"])
    once = requests[: len(requests) // asked.repeat]
    checks = _cross_check(board, once, asked, progress) if asked.cross_check else ()
    return Bench(runs, setting, result["changed"], checks, found.work, _ceiling(setting, result["changed"]))


def _check_power(setting: Setting, asked: Asked) -> None:
    """A meter that was asked for by name must be there; one that was not may be missing."""
    if asked.power_meter is None:
        return
    meters = setting.facts["meters"]
    if reason := meters.get(asked.power_meter, "unknown to the agent"):
        works = ", ".join(name for name, why in meters.items() if why is None) or "none"
        raise UnfitBoardError(
            f"{setting.host} has no power meter {asked.power_meter!r} ({reason}); it has: {works}; "
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
    board: Board, requests: Sequence[Request], asked: Asked, progress: Progress
) -> tuple[dict[str, Any], ...]:
    """Let trtexec measure the same engine in its own way, on the board set as it was for the runs."""
    checks = []
    for request in requests:
        args = {
            "engine": request.model,
            "batch": request.batch,
            "seconds": max(CROSS_CHECK_S, request.duration_s),
            "streams": request.options.get("streams", 1),
            "power_mode": asked.power_mode,
            "lock_clocks": asked.lock_clocks,
        }
        shape = {"batch": request.batch, "streams": args["streams"]}
        name = f"trtexec, batch {request.batch}"
        checks.append({**shape, **board.run_job("trtexec", args, name=name, progress=progress)})
    return tuple(checks)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
