"""Measure models on this machine or on a board: one fresh process, and one `Run`, per model, shape and round.

Several models are measured in turns: each round measures every model once, in random order. A machine that grows warm
or is busy slows all models of a round alike, so that ratios within a round depend on the models alone. With
`alternate`, the models of a round share one process and take turns of milliseconds, which also cancels disturbances of
a second. Each round has its own process, because ratios vary by half a percent with the placement of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.records import Run
from edgevit.board.answers import BenchAnswer, Changed, FailedRun, answer_records, wrong_answer
from edgevit.board.connection import THIS_MACHINE, Board, open_board
from edgevit.board.facts import CLOCK_OFF_S, BoardFacts, examine
from edgevit.board.images import find_images, preprocessing_of
from edgevit.board.layers import LayerProfile, profile_of
from edgevit.board.models import Measurable, Work, check_sendable, find_engine_file, find_file, of_this_board
from edgevit.board.profiles import Profile, load_profile, match
from edgevit.board.request import BenchRequest, Conditions
from edgevit.board.roofline import Ceiling, board_ceiling
from edgevit.errors import AgentError, UnfitBoardError
from edgevit.progress import Progress, Silent
from edgevit.records.precisions import FP16, PRECISIONS
from edgevit.records.writing import file_sha256
from edgevit.request import takes_options
from edgevit.text import printable, shortened
from edgevit.version import written_by

# Duration of the window and of the idle measurement on a board: the rails' sensors average over 0.43 s.
_ON_A_BOARD_S = 10.0
_ELSEWHERE_S = 1.0
_OLDEST_RUN = datetime(2026, 1, 1, tzinfo=timezone.utc)  # none is older than edgevit
_CROSS_CHECK_S = 3.0  # trtexec's own default


@dataclass(frozen=True)
class Setting:
    """The machine of a bench, as examined before anything is measured."""

    host: str
    facts: BoardFacts
    profile: Profile | None


@dataclass(frozen=True)
class Bench:
    """The result of a bench."""

    runs: tuple[Run, ...]
    setting: Setting
    changed: Changed  # the power mode and whether the clocks were locked, as they were for the runs
    cross_checks: tuple[dict[str, Any], ...]  # figures of trtexec for the same engines, by batch
    # MACs, parameters and values of one image, by the label of the model; models that do not state them are left out.
    work: Mapping[str, Work]
    ceiling: Ceiling | None  # peaks of the board in its power mode; None: the board has no profile
    profiles: tuple[LayerProfile, ...] = ()  # times of the models' layers; empty: they were not requested

    def least_s(self, run: Run) -> float | None:
        """The lower bound on the time of one inference on this board in this power mode."""
        work = self.work.get(run.label)
        if work is None or self.ceiling is None:
            return None
        precision = run.precision if run.precision in PRECISIONS else FP16.name  # most of a mixed engine is in FP16
        return work.least_s(self.ceiling, run.batch, precision)

    def remarks(self) -> list[str]:
        """Remarks on the state of the board that concern the figures."""
        before, now = self.setting.facts.power_mode, self.changed.power_mode
        remarks = []
        if now is not None:
            was = before.name if before else None
            remarks.append(f"power mode {now}" + (f" for this bench, {was} before and after it" if was != now else ""))
        if self.changed.clocks_locked is not None:
            remarks.append("clocks locked" if self.changed.clocks_locked else "clocks not locked")
        used = {run.power.meter for run in self.runs if run.power}
        best, reason = next(iter(self.setting.facts.meters.items()), ("", None))
        if used and best not in used and reason:
            remarks.append(f"power through {' and '.join(sorted(used))} ({best}: {reason})")
        return [*remarks, *self.changed.messages]


@takes_options(BenchRequest, "models", "conditions")
def bench(
    request: BenchRequest,
    *,
    before: Callable[[Setting, str], None] | None = None,
    on_run: Callable[[Run], None] | None = None,
    on_profile: Callable[[LayerProfile], None] | None = None,
    progress: Progress | None = None,
) -> Bench:
    """Measure a model, or several in turns, on this machine or on a board over SSH.

    A model is a folder with an export, an ONNX file or an engine. Each round measures every model once at each batch
    size and number of streams, each time in its own process, or all models in one process if they alternate. A run
    records its round and turn. `edgevit.board.comparison.compare_within` computes ratios to the first model, with
    intervals.

    A model without a label is named by its folder or file, or by its path where two names are equal. `before` receives
    the setting and the runner's name before anything is measured, and may raise to stop. `on_run` receives each run,
    and `on_profile` each profile of layers. The board keeps its results until these have returned: if they raise, the
    same request collects the results again.

    Raises:
        UnknownNameError, OptionError: the request makes no sense; nothing was started.
        CheckpointError, EngineError: a model is missing, not exported, altered, or an engine of another board.
        ProfileError: the profile cannot be read, or is another board's.
        BoardError: the board cannot be reached, lacks something, or cannot run a model as asked.
    """
    request.check()
    conditions, runner, shown = request.conditions, request.runner, progress or Silent()
    paths = [Path(model) for model in request.models]
    # Whatever can be wrong here is found before the board is bothered; which engine is the right one, the board says.
    files = [_file(path, conditions, runner) for path in paths]
    images = find_images(Path(conditions.images)) if conditions.images else []
    profile = None if request.profile is None else load_profile(request.profile)
    with open_board(request.board, ssh_config=request.ssh_config) as place:
        setting = look(place, profile, conditions, shown)
        if before:
            before(setting, runner)
        built = [_built(path, file, setting, conditions) for path, file in zip(paths, files, strict=True)]
        names = request.labels or _names(paths, built)
        measured = [replace(file, label=name) for file, name in zip(built, names, strict=True)]

        if place.host != THIS_MACHINE:
            for file in measured:
                check_sendable(file, place.host)

        def sent(path: Path, sha256: str) -> str:
            return str(path) if place.host == THIS_MACHINE else place.put(path, sha256, shown)

        remote_paths = [sent(file.path, file.sha256) for file in measured]
        pictures = [sent(path, file_sha256(path)) for path in images]
        shapes = [
            requests_of(conditions, path, file, runner, setting, pictures)
            for path, file in zip(remote_paths, measured, strict=True)
        ]
        turns = in_turns(shapes, request.rounds, request.seed, alternate=request.alternate)
        callbacks = (on_run or _ignore, on_profile or _ignore)
        return _bench(place, conditions, measured, shapes, turns, setting, *callbacks, shown)


@takes_options(BenchRequest, "models", "conditions")
def bench_in_turns(
    request: BenchRequest,
    *,
    rounds: int | None = None,
    before: Callable[[Setting, str], None] | None = None,
    on_run: Callable[[Run], None] | None = None,
    progress: Progress | None = None,
) -> Bench:
    """Measure models against each other: `bench` of several, whose `repeat` is here called `rounds`."""
    repeat = request.repeat if rounds is None else rounds
    return bench(replace(request, repeat=repeat), before=before, on_run=on_run, progress=progress)


def _file(path: Path, conditions: Conditions, runner: str) -> Measurable | None:
    """Find the file of a model to measure; None for an engine, which is chosen once the board is known."""
    return (
        None if runner == "tensorrt" and path.is_dir() else find_file(path, conditions.precision, conditions.provider)
    )


def _built(path: Path, file: Measurable | None, setting: Setting, conditions: Conditions) -> Measurable:
    if file is None:
        return find_engine_file(path, setting.facts, conditions.batches, conditions.precision)
    return of_this_board(file, setting.facts)


def requests_of(
    conditions: Conditions, model: str, file: Measurable, runner: str, setting: Setting, pictures: Sequence[str] = ()
) -> list[MeasurementRequest]:
    """Return one request for each batch size and number of streams."""
    request = MeasurementRequest(
        model=model,
        model_sha256=file.sha256,
        label=file.label,
        precision=file.precision,
        runner=runner,
        batch=1,
        samples=conditions.samples,
        duration_s=_or(conditions.duration_s, _ON_A_BOARD_S if setting.facts.has_power else _ELSEWHERE_S),
        warmup=conditions.warmup,
        warmup_seconds=conditions.warmup_seconds,
        power_meter=conditions.power_meter,
        total_rails=tuple(setting.profile.total_rails()) if setting.profile else (),
        period_ms=conditions.period_ms,
        images=pictures,
        preprocessing=preprocessing_of(file.path) if pictures else None,
    )
    shapes = [
        (batch, conditions.runner_options(runner, streams))
        for batch in conditions.batches
        for streams in conditions.streams
    ]
    return [replace(request, batch=batch, options=options) for batch, options in shapes]


def in_turns(
    shapes: Sequence[Sequence[MeasurementRequest]], rounds: int, seed: int, *, alternate: bool = False
) -> list[list[MeasurementRequest]]:
    """Order the measurements of several models at equal shapes; those of one shape follow one another.

    Return the requests of each process: one model, or all models if they `alternate`. The first round keeps the order
    of the models, so that the first run in a file is that of the first model.
    """
    random = Random(seed)
    turns: list[list[MeasurementRequest]] = []
    for number in range(1, rounds + 1):
        for of_shape in zip(*shapes, strict=True):
            order = of_shape if number == 1 else random.sample(of_shape, len(of_shape))
            numbered = [replace(request, round=number) for request in order]
            turns += [numbered] if alternate else [[request] for request in numbered]
    return turns


def _names(paths: Sequence[Path], files: Sequence[Measurable]) -> list[str]:
    """Give each model a unique name: that of its folder or file, else its path, else with a number."""
    names = [file.label for file in files]
    names = [str(path) if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]
    return [f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name for i, name in enumerate(names)]


def look(board: Board, profile: Profile | None, conditions: Conditions, progress: Progress) -> Setting:
    """Examine the board, and check that it fits the profile and has the requested meters.

    Raises:
        ProfileError: the board is not the one that the profile describes.
        UnfitBoardError: the board lacks something.
    """
    with progress.stage(f"look at {board.host}"):
        facts = examine(board, progress)
    if profile is not None:
        profile.check(facts)
    setting = Setting(board.host, facts, profile or match(facts))
    _check_power(setting, conditions)
    if conditions.cross_check and not facts.trtexec:
        raise UnfitBoardError(
            f"{board.host} has no trtexec, which --cross-check runs; install it there with "
            "`sudo apt install libnvinfer-bin`, or leave the option out"
        )
    return setting


def _bench(
    board: Board,
    conditions: Conditions,
    files: Sequence[Measurable],
    shapes: Sequence[Sequence[MeasurementRequest]],
    turns: Sequence[Sequence[MeasurementRequest]],
    setting: Setting,
    on_run: Callable[[Run], None],
    on_profile: Callable[[LayerProfile], None],
    progress: Progress,
) -> Bench:
    profiled = list(chain.from_iterable(shapes)) if conditions.layers else []
    name = f"bench {', '.join(file.label for file in files)} on {board.host}"

    def keep(done: Turns) -> None:
        for run in done.runs:
            on_run(run)
        for profile in done.profiles:
            on_profile(profile)

    done = take_turns(board, conditions, turns, setting, name, progress, keep, profiled=profiled)
    if failed := done.failed:
        paths = " and ".join(str(file.path) for file in files if file.label in failed.labels)
        problem = f"cannot measure {paths} at batch {failed.batch} on {board.host}"
        raise AgentError(f"{problem}: {failed.message}", remote_traceback=failed.traceback)
    checks = _cross_check(board, chain.from_iterable(shapes), conditions, progress)
    work = {file.label: file.work for file in files if file.work}
    return Bench(done.runs, setting, done.changed, checks, work, _ceiling(setting, done.changed), done.profiles)


@dataclass(frozen=True)
class Turns:
    """The result of measurements that were made one after the other."""

    runs: tuple[Run, ...]
    changed: Changed  # the power mode and whether the clocks were locked, as they were for the runs
    failed: FailedRun | None  # the run that failed, after which none was made; None: no run failed
    profiles: tuple[LayerProfile, ...]  # times of the layers of the models for which they were requested


def take_turns(
    board: Board,
    conditions: Conditions,
    turns: Sequence[Sequence[MeasurementRequest]],
    setting: Setting,
    name: str,
    progress: Progress,
    keep: Callable[[Turns], None],
    *,
    profiled: Sequence[MeasurementRequest] = (),
    as_stated: bool = False,
) -> Turns:
    """Measure in this order as one job called `name`, then profile layers.

    `turns` has the requests of each process: one model, or several that alternate. The board keeps the results until
    `keep` has returned. With `as_stated`, runs are kept only if their power mode and clocks are those of `setting`,
    which was read before this job's turn.

    Raises:
        UnfitBoardError: they are not, because another job had changed them when `setting` was read.
        BoardError: the board was lost, the job failed there, or the runs are not those that were asked for.
    """
    args = {
        "requests": [[asdict(request) for request in turn] for turn in turns],
        "profiled": [asdict(request) for request in profiled],
        "idle_s": _or(conditions.idle_s, _ON_A_BOARD_S) if setting.facts.has_power else 0.0,
        "power_mode": conditions.power_mode,
        "lock_clocks": conditions.lock_clocks,
    }

    def keep_stated(result: tuple[Turns, str | None]) -> Turns:
        done, alone = result
        if alone:
            progress.note(f"models are measured one after the other on {board.host}, and not alternately: {alone}")
        if not (as_stated and _other_state(done.runs, conditions, setting)):
            keep(done)
        return done

    def read(result: BenchAnswer) -> tuple[Turns, str | None]:
        with answer_records(board.host, "bench"):
            return _turns_of(result, turns, profiled, board.host, setting.facts), result.alone

    turns_done: Turns = board.run_job("bench", args, name=name, progress=progress, read=read, keep=keep_stated)
    if as_stated and (state := _other_state(turns_done.runs, conditions, setting)):
        raise UnfitBoardError(
            f"{board.host} ran with {state} when it was looked at, as if another job had set it for itself; these runs "
            "are not kept: try again"
        )
    return turns_done


def _turns_of(
    result: BenchAnswer,
    turns: Sequence[Sequence[MeasurementRequest]],
    profiled: Sequence[MeasurementRequest],
    host: str,
    facts: BoardFacts,
) -> Turns:
    """Read the result of a bench, and check it against the requests.

    Raises:
        AgentError: runs are missing, or are not those of the requests.
        RecordError, RunsError: a run cannot be read.
    """
    runs = [Run.from_dict(run) for run in result.runs]
    failed, profiles = result.failed, result.profiles
    requests = list(chain.from_iterable(turns))
    for number, (run, request) in enumerate(zip(runs, requests), 1):  # noqa: B905 (the counts are compared below)
        for name, value in _identity(request).items():
            if (actual := getattr(run, name)) != value:
                problem = f"run {number} has {name} {actual!r}, and {value!r} was asked for"
                raise wrong_answer(host, "bench", shortened(problem, 200))
    count, expected = len(runs) + len(profiles), len(requests) + len(profiled)
    if count > expected or (count < expected and not failed) or (profiles and len(runs) != len(requests)):
        raise wrong_answer(host, "bench", f"{count} runs and profiles came, and {expected} were asked for")
    if failed:
        remaining = [*turns, *([request] for request in profiled)]
        while remaining and (count := count - len(remaining[0])) >= 0:
            del remaining[0]
        labels = tuple(printable(request.label) for request in remaining[0]) if remaining else ()
        if failed.labels != labels or failed.batch != remaining[0][0].batch:
            raise wrong_answer(host, "bench", "what failed is not what was the next to be measured")
        failed = replace(failed, labels=tuple(request.label for request in remaining[0]))
    ahead_s = facts.clock_ahead_s or 0.0
    dated_runs = tuple(
        replace(
            run,
            label=request.label,
            model=Path(request.model).name,
            created=dated(run.created, ahead_s),
            edgevit=written_by(),
        )
        for run, request in zip(runs, requests)  # noqa: B905 (one that failed ended the rest)
    )
    layers = (profile_of(request, profile, dated_runs) for request, profile in zip(profiled, profiles))  # noqa: B905
    return Turns(dated_runs, result.changed, failed, tuple(layers))


def _identity(request: MeasurementRequest) -> dict[str, Any]:
    """The fields of a run that its request decides, as the agent's answer has them."""
    return {
        "label": printable(request.label),
        "model": printable(Path(request.model).name),
        **{name: getattr(request, name) for name in ("model_sha256", "precision", "runner", "batch", "round")},
    }


def dated(created: str, ahead_s: float, now: datetime | None = None) -> str:
    """Convert the time of a run from the board's clock, which is `ahead_s` ahead, to that of this machine.

    A time in the future means that the board's clock was set meanwhile; it becomes the time of arrival.
    """
    now = now or datetime.now(timezone.utc)
    try:
        created_at = datetime.fromisoformat(created)
        created_at -= timedelta(seconds=ahead_s if abs(ahead_s) > CLOCK_OFF_S else 0.0)
        possible = _OLDEST_RUN <= created_at <= now + timedelta(seconds=CLOCK_OFF_S)
    except (ValueError, TypeError, OverflowError):  # no time, or none of this calendar
        possible = False
    return (created_at if possible else now).isoformat(timespec="seconds")


def _other_state(runs: Sequence[Run], conditions: Conditions, setting: Setting) -> str | None:
    """Describe how power mode or clocks of the runs differ from the setting; None: they do not, or cannot be read."""
    mode, locked = setting.facts.power_mode, conditions.lock_clocks or setting.facts.clocks_locked
    stated = {
        "power_mode": conditions.power_mode or (mode.name if mode else None),
        "clocks": None if locked is None else "locked" if locked else "free",
    }
    for name, value in stated.items():
        for actual in (run.environment.get(name) for run in runs):
            if None not in (actual, value) and actual != value:
                called = name.replace("_", " ")
                return f"{called} {actual}, and had {called} {value}"
    return None


def _check_power(setting: Setting, conditions: Conditions) -> None:
    """Check that a power meter requested by name is available."""
    if conditions.power_meter is None:
        return
    meters = setting.facts.meters
    if reason := meters.get(conditions.power_meter, "unknown to the agent"):
        works = ", ".join(name for name, unavailable in meters.items() if unavailable is None) or "none"
        raise UnfitBoardError(
            f"{setting.host} has no power meter {conditions.power_meter!r} ({reason}); it has: {works}; "
            "leave --power-meter out to go without"
        )


def _ceiling(setting: Setting, changed: Changed) -> Ceiling | None:
    """The ceiling of the power mode in which the runs were made."""
    if setting.profile is None:
        return None
    return board_ceiling(setting.profile, setting.facts, setting.facts.listed_mode(changed.power_mode))


def _cross_check(
    board: Board, requests: Iterable[MeasurementRequest], conditions: Conditions, progress: Progress
) -> tuple[dict[str, Any], ...]:
    """Measure the same engine with trtexec, under the same power mode and clocks.

    A failure is a warning, as the runs themselves are complete.
    """
    checks = []
    for request in requests if conditions.cross_check else ():
        args = {
            "engine": request.model,
            "batch": request.batch,
            "seconds": max(_CROSS_CHECK_S, request.duration_s),
            "streams": request.options.get("streams", 1),
            "power_mode": conditions.power_mode,
            "lock_clocks": conditions.lock_clocks,
        }
        shape = {"label": request.label, "batch": request.batch, "streams": args["streams"]}
        name = f"trtexec {request.label}, batch {request.batch}"
        try:
            checks.append({**shape, **board.run_job("trtexec", args, name=name, progress=progress)})
        except AgentError as error:
            progress.warn(f"{name}: {error}")
    return tuple(checks)


def _ignore(_: object) -> None:
    """Keep nothing."""


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
