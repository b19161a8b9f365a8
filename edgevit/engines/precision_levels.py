"""The order of precisions: fp16, then more and more modules in fp32, until an engine is correct.

Each level keeps in fp32 all modules of the one before it, and more, so that a level after a correct one is correct,
too; the search for single blocks relies on this. Boards are unknown here: `attempt` builds and checks an engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, Protocol, TypeVar

from edgevit.errors import EngineError
from edgevit.exporting.precision import modules_in_fp32
from edgevit.records.precisions import FP16, FP32, MIXED

# The search for single blocks makes as many builds as fit into this time if each takes as long as the last one, but at
# least `_LEAST_PROBES`.
_SEARCH_S = 3600.0
_LEAST_PROBES = 4


def _spans(numbers: Sequence[int]) -> str:
    """Format ascending numbers: `0 to 8, 10`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


@dataclass(frozen=True)
class PrecisionLevel:
    """The precision of an engine, and the modules that it keeps in fp32."""

    precision: str  # name of the precision of all modules but those below
    norms: bool = False  # whether every layer normalisation is in fp32
    blocks: tuple[int, ...] = ()  # numbers of the blocks that are in fp32, in ascending order

    @property
    def kind(self) -> str:
        """In one word, as in `bench --precision`. In INT8 some modules are always in floating point."""
        return MIXED if self.precision == FP16.name and (self.norms or self.blocks) else self.precision

    @property
    def label(self) -> str:
        """The level as a part of a file name."""
        norms = ".norms32" if self.norms else ""
        blocks = ".blocks32-" + "-".join(map(str, self.blocks)) if self.blocks else ""
        return self.precision + norms + blocks

    def __str__(self) -> str:
        parts = ["LayerNorm"] * self.norms
        parts += [f"block{'s' * (len(self.blocks) > 1)} {_spans(self.blocks)}"] if self.blocks else []
        return f"{self.precision} with {' and '.join(parts)} in fp32" if parts else self.precision

    def modules(self, norms: Sequence[str], blocks: Sequence[str]) -> tuple[str, ...]:
        """The names of the modules that it keeps in fp32."""
        return modules_in_fp32(norms, blocks, all_norms=self.norms, chosen=self.blocks)


FIRST, LAST = PrecisionLevel(FP16.name), PrecisionLevel(FP32.name)


def first_level(fp32_modules: Sequence[str], blocks: Sequence[str]) -> PrecisionLevel:
    """The first level to try where these modules are known to overflow fp16."""
    chosen = tuple(i for i, name in enumerate(blocks) if name in fp32_modules)
    return PrecisionLevel(FP16.name, bool(fp32_modules), chosen)


def node_patterns(modules: Sequence[str]) -> list[str]:
    """A regular expression for each module that matches the whole names of its nodes."""
    return [f"^{re.escape(name)}[./].*$" for name in modules]


T = TypeVar("T")


def smallest_set(items: Sequence[T], passes: Callable[[tuple[T, ...]], bool], most_probes: int) -> tuple[T, ...] | None:
    """Find a minimal subset of the items that passes; a superset of a passing set must pass, too.

    The empty set is known to fail. Minimal: it fails without any one of its items. Each item is found by bisection: the
    shortest passing prefix of the items ends in one that is needed. With k needed of n this takes about k * log2(n)
    probes. When these are used up, the smallest passing subset so far is returned; None: not even all items pass.
    """
    best, needed, remaining = tuple(items), set[int](), most_probes

    def probe(chosen: set[int]) -> bool:
        nonlocal best, remaining
        remaining -= 1
        part = tuple(items[i] for i in sorted(chosen))
        if passes(part):
            best = part
            return True
        return False

    if not items or not probe(set(range(len(items)))):
        return None
    high = len(items)
    while remaining > 0:
        low = 0  # the first `low` candidates fail, the first `high` pass
        while high - low > 1 and remaining > 0:
            middle = (low + high) // 2
            if probe(needed | set(range(middle))):
                high = middle
            else:
                low = middle
        if high - low > 1:
            break
        needed.add(high - 1)
        if high == 1 or (remaining > 0 and probe(set(needed))):
            return tuple(items[i] for i in sorted(needed))
        high -= 1
    return best


class Judged(Protocol):
    """The result of an attempt: a built engine and its failure."""

    @property
    def failure(self) -> str | None:
        """None: it is correct, or it could not be checked."""


J = TypeVar("J", bound=Judged)


@dataclass(frozen=True)
class PrecisionSearch(Generic[J]):
    """The result of a search for the precision of an engine."""

    level: PrecisionLevel
    judged: J
    failed: tuple[tuple[PrecisionLevel, J], ...]  # all failed attempts, in order


class _Attempts(Generic[J]):
    """Attempts of levels, each at most once."""

    def __init__(self, attempt: Callable[[PrecisionLevel], J]) -> None:
        self.attempt = attempt
        self.done: dict[PrecisionLevel, J] = {}
        self.seconds = 0.0  # duration of the last attempt

    def passes(self, level: PrecisionLevel) -> bool:
        if level not in self.done:
            began = monotonic()
            self.done[level] = self.attempt(level)
            self.seconds = monotonic() - began
        return self.done[level].failure is None

    def ended(self, level: PrecisionLevel) -> PrecisionSearch[J]:
        failed = tuple(
            (failed_level, judged) for failed_level, judged in self.done.items() if judged.failure is not None
        )
        return PrecisionSearch(level, self.done[level], failed)


def search_precision(
    attempt: Callable[[PrecisionLevel], J],
    *,
    fp16: bool,
    norms: bool,
    blocks: int,
    most_probes: int,
    note: Callable[[str], None],
    start: PrecisionLevel = FIRST,
    last: PrecisionLevel = LAST,
) -> PrecisionSearch[J]:
    """Try one level after the other until an engine is correct; note the failure of each.

    Levels that keep less in fp32 than `start` are known to be wrong, and skipped. The level of `norms` is skipped where
    the model has no norms, as it would equal fp16.

    Raises:
        EngineError: even the last one is wrong.
    """
    attempts = _Attempts(attempt)

    def failed(level: PrecisionLevel, then: str) -> None:
        note(f"{level} {attempts.done[level].failure}; trying {then}")

    if fp16:
        first = PrecisionLevel(FP16.name, norms=norms, blocks=start.blocks)
        if start == FIRST:
            if attempts.passes(FIRST):
                return attempts.ended(FIRST)
            if norms:
                failed(FIRST, str(first))
        if attempts.passes(first):
            return attempts.ended(first)
        others = [i for i in range(blocks) if i not in start.blocks]
        probes = min(most_probes, max(_LEAST_PROBES, int(_SEARCH_S / max(attempts.seconds, 1e-3))))
        each = f"up to {probes} builds of about {attempts.seconds / 60:.0f} min" if attempts.seconds >= 60 else ""
        failed(first, f"single blocks in fp32{each and f', {each}'}" if others else str(last))

        def with_blocks(chosen: Sequence[int]) -> PrecisionLevel:
            return PrecisionLevel(FP16.name, norms=norms, blocks=tuple(sorted({*start.blocks, *chosen})))

        def passes(chosen: tuple[int, ...]) -> bool:
            level = with_blocks(chosen)
            right = attempts.passes(level)
            note(f"{level} is right" if right else f"{level} {attempts.done[level].failure}")
            return right

        if needed := smallest_set(others, passes, probes):
            return attempts.ended(with_blocks(needed))
        if others:
            note(f"not even {with_blocks(others)} is right; trying {last}")
    if attempts.passes(last):
        return attempts.ended(last)
    raise EngineError(
        f"no engine is right: {last} {attempts.done[last].failure}; TensorRT itself is wrong there: try another JetPack"
    )
