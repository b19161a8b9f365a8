"""Statistics of runs: a row of figures for each, and comparisons between models."""

from __future__ import annotations

import math
import shlex
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from edgevit.agent.records import CLOSED_LOOP, RecordError, Run, comparable
from edgevit.board.intervals import Ratio, Side, ratios
from edgevit.errors import RunsError
from edgevit.records.documents import Reader

READER = Reader(RunsError, hint="remove the line if it was cut off, or measure again")
UNITS = {"p50": "ms", "p99": "ms", "mean": "ms", "processor": "ms", "throughput": "images/s", "energy": "mJ/image"}
_MORE_IS_BETTER = ("throughput",)
# Fields of runs that many have in common, and those that are many readings.
_SHARED = (
    *("label", "model", "model_sha256", "precision", "runner", "provider", "session", "environment", "edgevit"),
    *("clocks_before_khz", "clocks_after_khz", "temperatures_before_c", "temperatures_after_c"),
    *("power_mode_before", "power_mode_after"),
)
_DURING = ("clocks_during_khz", "temperatures_during_c")

BUSY: Final = "not judged: the machine was busy"
_Outcome = Literal[
    "better",
    "worse",
    "cannot be told apart",
    "too few samples",
    "too few rounds",
    "not judged: the machine was busy",
    "void",
]


@dataclass(frozen=True)
class Row:
    """The figures of one run, in the units of a table; None was not measured."""

    label: str
    precision: str | None
    runner: str
    provider: str | None
    batch: int
    streams: int
    use: str  # how inferences follow each other, and where they begin
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    gpu_p50_ms: float | None
    gpu_p99_ms: float | None
    spread: float  # standard deviation of the latencies over their mean
    samples: int
    images_per_s: float
    memory_peak_mib: float | None  # peak resident set of the process
    memory_drop_mib: float | None  # largest fall of the machine's available memory
    memory_engine_mib: float | None
    load_ms: float
    first_inference_ms: float
    power_w: float | None  # mean power of the module: the sum of `rails`
    idle_power_w: float | None
    energy_mj: float | None  # energy per image, including what the module draws when idle
    energy_net_mj: float | None  # energy per image, less what the module draws when idle
    rails: tuple[str, ...]  # rails that make up the module; empty: not known
    power_window_s: float | None
    # Share of that window in which meters are read and no inference runs; not counted in `power_w`.
    ticks_share: float | None
    gpu_load: float | None  # mean load of the GPU, 0 to 1
    temperature_max_c: float | None
    power_mode: str | None
    roofline_share: float | None  # share of the board's peak: the least time by the roofline over the measured time
    period_ms: float | None  # time between the beginnings of two inferences; None: one follows another without pauses
    missed: int | None  # number of periods in which no inference began
    # Median time of each part of an inference; None: its input is there at the beginning.
    parts_ms: dict[str, float] | None
    void: tuple[str, ...]  # why these numbers are not those of this board; empty: they are
    warnings: tuple[str, ...]

    @property
    def memory_mib(self) -> float | None:
        """Memory of the model: on a CPU that of its process, else the fall of free memory, which a Jetson's GPU shares.

        Other programs change free memory, too, on a CPU by more than two models differ.
        """
        return self.memory_peak_mib if self.provider == "CPUExecutionProvider" else self.memory_drop_mib


@dataclass(frozen=True)
class Comparison:
    """One figure of `after` over that of `before`, at one batch size and number of streams, with its 95 % interval."""

    before: str
    after: str
    batch: int
    streams: int
    use: str  # how inferences of both follow each other, and where they begin
    figure: str  # name of the compared figure, a key of UNITS
    unit: str
    before_value: float
    after_value: float
    ratio: float
    # Lower end of the ratio's interval; None: not judged, as a run is void, the machine was busy, or samples are few.
    low: float | None
    high: float | None
    outcome: _Outcome
    # Number of runs before and after; with one each, the interval leaves out how processes differ.
    runs: tuple[int, int]
    # Number of successive inferences resampled together, before and after; None: whole runs were resampled.
    blocks: tuple[int, int] | None
    # Number of rounds of one session in which both were measured in turns; None: not measured in turns.
    rounds: int | None
    widened: float  # factor by which each end of the interval was moved, as a machine's speed moved within a run
    void: tuple[str, ...]  # why the runs are void; empty: they are not
    warnings: tuple[str, ...]  # warnings of the runs, with the model's name
    # Names of what differs in their environments; not empty only if the comparison was forced.
    differing: tuple[str, ...]


class RunReader:
    """Parse many lines of runs; equal parts, such as the environment, are stored once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._values: dict[int, Any] = {}  # by their hash

    def content(self, line: bytes, source: str) -> dict[str, object]:
        """Parse a line to plain values, of a run or of another record; `run` checks those of a run.

        Raises: the error of the reader.
        """
        values = self._reader.values(line, source)
        # Without an escape no string can have a zero byte or half a character, which `run` does not look for.
        if isinstance(values, dict) and "latencies_ns" in values and b"\\u" not in line:
            return values
        return self._reader.checked(values, dict[str, object], source)

    def run(self, content: dict[str, object]) -> Run:
        """Raises: RecordError."""
        once = {name: self._once(content[name]) for name in _SHARED if name in content}
        for name in _DURING:
            if isinstance(rows := content.get(name), list):
                once[name] = list(map(self._once, rows))
        return Run.from_dict({**content, **once})

    def _once(self, value: Any) -> Any:
        try:
            key = hash(tuple(value.items()) if isinstance(value, dict) else value)
        except TypeError:  # a list, of which a run has none in these places
            return value
        if (held := self._values.setdefault(key, value)) != value:  # two values of one hash
            return value
        return held


def load_runs(path: str | Path) -> list[Run]:
    """Read a JSON-lines file of runs, of any size: one line at a time.

    Raises:
        RunsError: it is missing, empty, or a line of it is not a run.
    """
    if Path(path).is_dir():
        raise RunsError(
            f"{path} is a folder, and runs are lines of a file; "
            f"`edgevit bench {shlex.quote(str(path))} OTHER --output runs.jsonl` writes one"
        )
    reader, runs = RunReader(READER), []
    for source, line in READER.lines(Path(path)):
        content = reader.content(line, source)
        if "profiled" in content:
            show = f"edgevit show {shlex.quote(str(path))}"
            raise RunsError(f"{source} holds profiled layers, which are no latencies; see `{show}`")
        try:
            runs.append(reader.run(content))
        except RecordError as error:
            raise RunsError(f"{source}: {error}; {READER.hint}") from error
    if not runs:
        raise RunsError(f"no runs in {path}; write some with `edgevit bench MODEL --output {shlex.quote(str(path))}`")
    return runs


def make_row(run: Run, least_s: float | None = None) -> Row:
    """Compute the figures of a run. `least_s` is the lower bound on the time of one inference, if known."""
    share = None if least_s is None or run.use() != CLOSED_LOOP else least_s / _inference_s(run)
    power = run.power
    return Row(
        label=run.label,
        precision=run.precision,
        runner=run.runner,
        provider=run.provider,
        batch=run.batch,
        streams=run.streams,
        use=run.use(),
        p50_ms=run.latency_ms,
        p90_ms=run.p90_ns() / 1e6,
        p95_ms=run.p95_ns() / 1e6,
        p99_ms=run.p99_ns() / 1e6,
        gpu_p50_ms=_over(run.gpu_percentile_ns(50), 1e6),
        gpu_p99_ms=_over(run.gpu_percentile_ns(99), 1e6),
        spread=run.stddev_ns() / run.mean_ns(),
        samples=len(run.latencies_ns),
        images_per_s=run.images_per_second(),
        memory_peak_mib=_over(run.memory_peak_rss_bytes, 2**20),
        memory_drop_mib=_over(run.memory_drop_bytes(), 2**20),
        memory_engine_mib=_over(run.memory_engine_bytes, 2**20),
        load_ms=run.load_ns / 1e6,
        first_inference_ms=run.first_inference_ns / 1e6,
        power_w=_over(run.power_mw(), 1e3),
        idle_power_w=_over(run.idle_power_mw(), 1e3),
        energy_mj=run.energy_per_image_mj(),
        energy_net_mj=run.net_energy_per_image_mj(),
        rails=power.total if power else (),
        power_window_s=power.window_s() if power else None,
        ticks_share=run.ticks_ns() / (run.ticks_ns() + run.wall_ns) if power else None,
        gpu_load=run.gpu_load(),
        temperature_max_c=run.temperature_max_c(),
        power_mode=run.power_mode_before,
        roofline_share=share,
        period_ms=_over(run.period_ns, 1e6),
        missed=run.missed,
        parts_ms={name: statistics.median(times) / 1e6 for name, times in (run.parts_ns or {}).items()} or None,
        void=tuple(run.void()),
        warnings=(*run.warnings(), *_too_fast(share)),
    )


def compare_runs(before: Iterable[Run], after: Iterable[Run], *, force: bool = False) -> list[Comparison]:
    """Compare each model of `after` with the same model in `before`, at equal batch sizes and numbers of streams.

    Models are the same if label and precision are equal; a model that `before` lacks is compared with each model there.
    Void runs and runs of a busy machine are shown and not judged, unless `force`; means of models in turns are judged.

    Raises:
        RunsError: they have no batch size in common, or were made in different environments and not `force`.
    """
    old, new = _groups(before), _groups(after)
    partners = _Partners(old)
    pairs = [(a, b) for b in new for a in partners.of_name(b)]
    return _compare_pairs(pairs, old, new, force=force)


def compare_within(runs: Iterable[Run], *, force: bool = False) -> list[Comparison]:
    """Compare each model with the first, at equal batch sizes and numbers of streams; see `compare_runs`.

    For models in turns, ratios are taken within rounds, and `decisive` picks the figure to report.

    Raises:
        RunsError: there is one model only, or no two have a batch size in common, or they were made in different
            environments and not `force`.
    """
    groups = _groups(runs)
    first = [member for member in groups if _model(member.runs[0]) == _model(groups[0].runs[0])]
    others = [member for member in groups if _model(member.runs[0]) != _model(groups[0].runs[0])]
    if not others:
        raise RunsError(f"all runs are of {groups[0].name}: there is nothing to set against each other")
    partners = _Partners(first)
    pairs = [(a, b) for b in others for a in partners.of_use(b)]
    return _compare_pairs(pairs, first, others, force=force)


def decisive(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Pick the figure by which models in turns are judged.

    It is the p50; if other programs were busy, the processor time of an inference, or the mean if that is unknown.
    """
    busy = any(c.outcome == BUSY for c in comparisons)
    figures = {c.figure for c in comparisons}
    figure = ("processor" if "processor" in figures else "mean") if busy else "p50"
    return [c for c in comparisons if c.figure == figure]


def group(runs: Iterable[Run]) -> list[list[Run]]:
    """Group repeats: runs of the same model under the same conditions."""
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[_model(run), run.runner, run.provider, run.batch, run.streams, run.use()].append(run)
    return list(groups.values())


def three_digits(value: float | None) -> str:
    """Write three significant digits without an exponent; a dash for a value that was not measured."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = 2 - math.floor(math.log10(abs(float(f"{value:.2e}"))))
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


@dataclass(frozen=True)
class _Group(Side):
    """Repeats of one model under the same conditions."""

    @cached_property
    def name(self) -> str:
        return _name(self.runs[0])

    @cached_property
    def shape(self) -> tuple[int, int]:
        return self.runs[0].batch, self.runs[0].streams

    @cached_property
    def use(self) -> str:
        return self.runs[0].use()

    @cached_property
    def sessions(self) -> set[str]:
        return {run.session for run in self.runs if run.session is not None}

    @cached_property
    def environments(self) -> list[Run]:
        """The first run of each environment."""
        return _first_of_each_environment(self.runs)

    @cached_property
    def environments_of_sessions(self) -> list[Run]:
        """The environments of the first run of each session, and of all runs outside a session.

        Within a session environments differ by the models alone.
        """
        first = {run.session or number: run for number, run in reversed([*enumerate(self.runs)])}
        return _first_of_each_environment([*first.values()][::-1])

    @cached_property
    def void(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reason for run in self.runs for reason in run.void()))

    @cached_property
    def is_busy(self) -> bool:
        return any(run.is_busy() for run in self.runs)

    @cached_property
    def unsteadiness(self) -> float:
        return math.prod(run.unsteadiness() for run in self.runs)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        return tuple(gather_warnings(self.runs))


def _groups(runs: Iterable[Run]) -> list[_Group]:
    return [_Group(members) for members in group(runs)]


class _Partners:
    """The groups to compare with, indexed by what has to be equal."""

    def __init__(self, groups: Iterable[_Group]) -> None:
        self._groups: dict[tuple[object, ...], list[_Group]] = defaultdict(list)
        for member in groups:
            for use in (member.use, None):
                self._groups[member.shape, use].append(member)
                self._groups[member.shape, use, member.name].append(member)

    def of_use(self, group: _Group) -> list[_Group]:
        """Groups of equal batch size, streams and use; if none has this use, groups of any use."""
        return self._groups.get((group.shape, self._use(group)), [])

    def of_name(self, group: _Group) -> list[_Group]:
        """Groups that `of_use` returns and that are of the same model; if none is, all that it returns."""
        return self._groups.get((group.shape, self._use(group), group.name)) or self.of_use(group)

    def _use(self, group: _Group) -> str | None:
        return group.use if (group.shape, group.use) in self._groups else None


def _model(run: Run) -> tuple[str, str, str | None]:
    return run.label, run.model_sha256, run.precision


def _first_of_each_environment(runs: Iterable[Run]) -> list[Run]:
    first: dict[object, Run] = {}
    for run in runs:
        first.setdefault(tuple(sorted(run.environment.items())), run)
    return list(first.values())


def _of_one_environment(before: _Group, after: _Group) -> list[list[Run]]:
    """Check that the runs of all groups were made on one machine in one state.

    Models that share a session are checked against themselves in other sessions.
    """
    if not before.sessions & after.sessions:
        return [[*before.environments, *after.environments]]
    return [before.environments_of_sessions, after.environments_of_sessions]


def _refuse_different_environments(runs: Sequence[Run]) -> None:
    for run in runs:
        if names := comparable(runs[0], run):
            current, first = run.environment, runs[0].environment
            differences = "; ".join(
                f"{name} was {first.get(name, 'unknown')!r}, now {current.get(name, 'unknown')!r}" for name in names
            )
            raise RunsError(f"not comparable: {differences}. Measure both in one place, or compare anyway with --force")


def _refuse_different_use(pairs: Sequence[tuple[_Group, _Group]]) -> None:
    """Refuse runs of models that were used differently, even with `force`: their ratio says nothing of the models."""
    for a, b in pairs:
        if a.use != b.use:
            raise RunsError(
                f"not comparable: inferences of {a.name} were {a.use}, and of {b.name} {b.use}; "
                "measure both with the same --period-ms, --end-to-end and --alternate"
            )


def _compare_pairs(
    pairs: Sequence[tuple[_Group, _Group]], before: Iterable[_Group], after: Iterable[_Group], *, force: bool
) -> list[Comparison]:
    if not pairs:
        raise RunsError(f"no batch size in common: {_batches(before)} before, {_batches(after)} after")
    _refuse_different_use(pairs)
    for a, b in () if force else pairs:
        for runs in _of_one_environment(a, b):
            _refuse_different_environments(runs)
    return [comparison for a, b in pairs for comparison in _compare(a, b, force=force)]


def _compare(before: _Group, after: _Group, *, force: bool) -> list[Comparison]:
    first = before.runs[0]
    differing = {name for run in (*before.environments, *after.environments) for name in comparable(first, run)}
    comparisons = []
    for ratio in ratios(before, after):
        # Of several runs, the spread between them holds what moved within them.
        widened = before.unsteadiness * after.unsteadiness if ratio.blocks else 1.0
        widened_ratio = _widen(ratio, widened)
        withheld = None if force else _withheld(before, after, widened_ratio)
        comparisons.append(
            Comparison(
                before=before.name,
                after=after.name,
                batch=after.runs[0].batch,
                streams=after.runs[0].streams,
                use=after.use,
                figure=widened_ratio.figure,
                unit=UNITS[widened_ratio.figure],
                before_value=widened_ratio.before,
                after_value=widened_ratio.after,
                ratio=widened_ratio.ratio,
                low=None if withheld else widened_ratio.low,
                high=None if withheld else widened_ratio.high,
                outcome=withheld or _outcome(widened_ratio),
                runs=(len(before.runs), len(after.runs)),
                blocks=None if withheld else widened_ratio.blocks,
                rounds=widened_ratio.rounds,
                widened=widened,
                void=tuple(dict.fromkeys((*before.void, *after.void))),
                warnings=(*before.warnings, *after.warnings),
                differing=tuple(sorted(differing)),
            )
        )
    return comparisons


def gather_warnings(runs: Sequence[Run], subject: str | None = None) -> list[str]:
    """Collect the warnings of a model's runs, each kind once, with its name or `who` and the number of runs."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for kind, text in run.doubts().items():
            kinds[kind].append(text)
    subject = subject or f"{_name(runs[0])}, batch {runs[0].batch}"
    several = len(runs) > 1
    return [
        f"{subject}: {f'{len(texts)} of {len(runs)} runs, such as: ' if several else ''}{texts[0]}"
        for texts in kinds.values()
    ]


def _widen(ratio: Ratio, factor: float) -> Ratio:
    if ratio.low is None or ratio.high is None:
        return ratio
    return replace(ratio, low=ratio.low / factor, high=ratio.high * factor)


def _withheld(before: _Group, after: _Group, ratio: Ratio) -> _Outcome | None:
    """Return why a ratio is not judged; None: it is.

    Programs that are busy throughout a round slow all of its models by the same share of time, so means are valid.
    Medians are not: a short inference mostly ends before it is interrupted, a long one does not.
    """
    if before.void or after.void:
        return "void"
    steady = ratio.rounds is not None and ratio.figure in ("mean", "throughput", "processor")
    return BUSY if not steady and (before.is_busy or after.is_busy) else None


def _outcome(ratio: Ratio) -> _Outcome:
    if ratio.low is None or ratio.high is None:
        return "too few samples" if ratio.rounds is None else "too few rounds"
    if ratio.low <= 1 <= ratio.high:
        return "cannot be told apart"
    return "better" if (ratio.low > 1) == (ratio.figure in _MORE_IS_BETTER) else "worse"


def _inference_s(run: Run) -> float:
    """Seconds of the board per inference: with several streams, wall time over the number of inferences."""
    if run.streams > 1:
        return run.wall_ns / len(run.latencies_ns) / 1e9
    return (run.gpu_percentile_ns(50) or run.p50_ns()) / 1e9


def _too_fast(share: float | None) -> list[str]:
    if share is None or share <= 1:
        return []
    return [
        f"an inference took less than the board needs at its peak (share {share:.2f}), and cannot be believed; "
        "check the batch size, the power mode, and that inference is waited for"
    ]


def _name(run: Run) -> str:
    return f"{run.label} {run.precision}" if run.precision else run.label


def _batches(groups: Iterable[_Group]) -> str:
    return ", ".join(
        f"{batch} with {streams} streams" if streams > 1 else str(batch)
        for batch, streams in sorted({member.shape for member in groups})
    )


def _over(value: float | None, size: float) -> float | None:
    return None if value is None else value / size
