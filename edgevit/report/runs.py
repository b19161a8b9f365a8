"""What a person reads of runs: a row each, and how two groups of them compare."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgevit.agent.records import RecordError, Run, comparable
from edgevit.errors import RunsError


@dataclass(frozen=True)
class Row:
    """The figures of one run, in the units of a table; None was not measured."""

    label: str
    precision: str | None
    runner: str
    provider: str | None
    batch: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    spread: float  # standard deviation over mean
    samples: int
    images_per_s: float
    memory_peak_mib: float | None  # resident set of the process
    memory_taken_mib: float | None  # fall of the machine's available memory
    load_ms: float
    first_inference_ms: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """How much longer `after` takes than `before` at one batch size; below 1 is faster.

    `low` and `high` set the quartiles against each other: 25th percentile of the one over 75th of the other.
    """

    before: str
    after: str
    batch: int
    before_p50_ms: float
    after_p50_ms: float
    ratio: float  # p50 over p50
    low: float
    high: float
    differing: tuple[str, ...]  # what differs in their environments; not empty only if the comparison was forced

    def within_spread(self) -> bool:
        """Say whether the two cannot be told apart."""
        return self.low <= 1 <= self.high


def load_runs(path: str | Path) -> list[Run]:
    """Read a JSON-lines file of runs.

    Raises:
        RunsError: it is missing, empty, or a line of it is not a run.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RunsError(f"cannot read runs from {path}: {error}") from error
    runs = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                runs.append(Run.from_json(line))
            except RecordError as error:
                raise RunsError(f"{path}, line {number}: {error}") from error
    if not runs:
        raise RunsError(f"no runs in {path}; write some with `edgevit bench MODEL --output {path}`")
    return runs


def make_row(run: Run) -> Row:
    return Row(
        label=run.label,
        precision=run.precision,
        runner=run.runner,
        provider=run.provider,
        batch=run.batch,
        p50_ms=run.p50_ns() / 1e6,
        p90_ms=run.p90_ns() / 1e6,
        p99_ms=run.p99_ns() / 1e6,
        spread=run.stddev_ns() / run.mean_ns(),
        samples=len(run.latencies_ns),
        images_per_s=run.images_per_second(),
        memory_peak_mib=_mib(run.memory_peak_rss_bytes),
        memory_taken_mib=_mib(run.memory_taken_bytes()),
        load_ms=run.load_ns / 1e6,
        first_inference_ms=run.first_inference_ns / 1e6,
        warnings=tuple(run.warnings()),
    )


def compare_runs(before: Iterable[Run], after: Iterable[Run], *, force: bool = False) -> list[Comparison]:
    """Set each model of `after` against each model of `before` at every batch size that both were measured at.

    Several runs of one model at one batch size are pooled, so that the spread between processes counts too.

    Raises:
        RunsError: they have no batch size in common, or were made in different environments and not `force`.
    """
    old, new = _group(before), _group(after)
    pairs = [(a, b) for b in new for a in old if a[0].batch == b[0].batch]
    if not pairs:
        raise RunsError(f"no batch size in common: {_batches(old)} before, {_batches(new)} after")
    if not force:
        for a, b in pairs:
            _refuse_different_environments([*a, *b])
    return [_compare(a, b) for a, b in pairs]


def three_digits(value: float | None) -> str:
    """Write three significant digits, without an exponent and without claiming more; a dash is not measured."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = 2 - math.floor(math.log10(abs(float(f"{value:.2e}"))))
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def _group(runs: Iterable[Run]) -> list[list[Run]]:
    """Put runs of the same model, run in the same way, together."""
    groups: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.label, run.model_sha256, run.precision, run.runner, run.provider, run.batch].append(run)
    return list(groups.values())


def _refuse_different_environments(runs: Sequence[Run]) -> None:
    for run in runs:
        if names := comparable(runs[0], run):
            here, there = run.environment, runs[0].environment
            seen = "; ".join(
                f"{name} was {there.get(name, 'unknown')!r}, now {here.get(name, 'unknown')!r}" for name in names
            )
            raise RunsError(f"not comparable: {seen}. Measure both in one place, or compare anyway with --force")


def _compare(before: Sequence[Run], after: Sequence[Run]) -> Comparison:
    old, new = _pool(before), _pool(after)
    differing = {name for run in (*before, *after) for name in comparable(old, run)}
    return Comparison(
        before=_name(old),
        after=_name(new),
        batch=old.batch,
        before_p50_ms=old.p50_ns() / 1e6,
        after_p50_ms=new.p50_ns() / 1e6,
        ratio=new.p50_ns() / old.p50_ns(),
        low=new.latency_ns(25) / old.latency_ns(75),
        high=new.latency_ns(75) / old.latency_ns(25),
        differing=tuple(sorted(differing)),
    )


def _pool(runs: Sequence[Run]) -> Run:
    return replace(runs[0], latencies_ns=tuple(latency for run in runs for latency in run.latencies_ns))


def _name(run: Run) -> str:
    return f"{run.label} {run.precision}" if run.precision else run.label


def _batches(groups: Iterable[Sequence[Run]]) -> str:
    return ", ".join(map(str, sorted({group[0].batch for group in groups})))


def _mib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / 2**20
