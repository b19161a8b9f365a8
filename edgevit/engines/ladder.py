"""The order in which precisions are tried: fp16, then more and more in fp32, until an engine is right.

Each rung keeps in fp32 what the one before it did, and more; so a rung that is right stays right further down, which is
what the search for single blocks relies on. It knows nothing of boards: `attempt` builds and judges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, Protocol, TypeVar

from edgevit.errors import EngineError
from edgevit.exporting.precision import kept_in_fp32

# The search for single blocks takes no more builds than fit into this time, by that of the build before it; but some.
SEARCH_S = 3600.0
LEAST_PROBES = 4


def _spans(numbers: Sequence[int]) -> str:
    """Ascending numbers for a person: `0 to 8, 10`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


@dataclass(frozen=True)
class PrecisionRung:
    """What an engine computes in."""

    precision: str  # "fp32": all of it; "fp16": all but what follows
    norms: bool = False  # every layer normalisation in fp32
    blocks: tuple[int, ...] = ()  # these blocks in fp32, in ascending order

    @property
    def kind(self) -> str:
        """In one word, as `bench --precision` takes it."""
        return "mixed" if self.norms or self.blocks else self.precision

    @property
    def label(self) -> str:
        """As part of a file name."""
        norms = ".norms32" if self.norms else ""
        blocks = ".blocks32-" + "-".join(map(str, self.blocks)) if self.blocks else ""
        return self.precision + norms + blocks

    def __str__(self) -> str:
        parts = ["LayerNorm"] * self.norms
        parts += [f"block{'s' * (len(self.blocks) > 1)} {_spans(self.blocks)}"] if self.blocks else []
        return f"{self.precision} with {' and '.join(parts)} in fp32" if parts else self.precision

    def modules(self, norms: Sequence[str], blocks: Sequence[str]) -> tuple[str, ...]:
        """The modules that it keeps in fp32, by name."""
        return kept_in_fp32(norms, blocks, all_norms=self.norms, chosen=self.blocks)


FP16 = PrecisionRung("fp16")


def least_rung(fp32_modules: Sequence[str], blocks: Sequence[str]) -> PrecisionRung:
    """The first rung worth trying where fp16 is known not to hold these modules."""
    return PrecisionRung("fp16", bool(fp32_modules), tuple(i for i, name in enumerate(blocks) if name in fp32_modules))


def node_patterns(modules: Sequence[str]) -> list[str]:
    """For each module, a regular expression that its nodes' names match from beginning to end."""
    return [f"^{re.escape(name)}[./].*$" for name in modules]


T = TypeVar("T")


def smallest_set(items: Sequence[T], passes: Callable[[tuple[T, ...]], bool], most_probes: int) -> tuple[T, ...] | None:
    """Find a smallest part of the items that passes, where more never fails what less has passed.

    None of them is known to fail. Smallest: without any one of its items it fails. Each is found by bisection: the
    shortest beginning of the items that passes ends in one that is needed. With k needed of n, about k * log2(n)
    probes. When these are used up, the smallest part seen to pass is returned; None: not even all of them pass.
    """
    best, needed, left = tuple(items), set[int](), most_probes

    def probe(chosen: set[int]) -> bool:
        nonlocal best, left
        left -= 1
        part = tuple(items[i] for i in sorted(chosen))
        if passes(part):
            best = part
            return True
        return False

    if not items or not probe(set(range(len(items)))):
        return None
    high = len(items)
    while left > 0:
        low = 0  # with the first `low` of the candidates it fails, with the first `high` it passes
        while high - low > 1 and left > 0:
            middle = (low + high) // 2
            if probe(needed | set(range(middle))):
                high = middle
            else:
                low = middle
        if high - low > 1:
            break
        needed.add(high - 1)
        if high == 1 or (left > 0 and probe(set(needed))):
            return tuple(items[i] for i in sorted(needed))
        high -= 1
    return best


class Judged(Protocol):
    """What an attempt gives: a built engine, and why it is wrong."""

    @property
    def failure(self) -> str | None:
        """None: it is right, or there was nothing to judge it by."""


J = TypeVar("J", bound=Judged)


@dataclass(frozen=True)
class Descent(Generic[J]):
    """Where the ladder ended."""

    rung: PrecisionRung
    judged: J
    tried: tuple[tuple[PrecisionRung, J], ...]  # every attempt that failed, in order


class _Attempts(Generic[J]):
    """Each rung is attempted once."""

    def __init__(self, attempt: Callable[[PrecisionRung], J]) -> None:
        self.attempt = attempt
        self.done: dict[PrecisionRung, J] = {}
        self.seconds = 0.0  # that the last attempt took

    def passes(self, rung: PrecisionRung) -> bool:
        if rung not in self.done:
            began = monotonic()
            self.done[rung] = self.attempt(rung)
            self.seconds = monotonic() - began
        return self.done[rung].failure is None

    def ended(self, rung: PrecisionRung) -> Descent[J]:
        failed = tuple((tried, judged) for tried, judged in self.done.items() if judged.failure is not None)
        return Descent(rung, self.done[rung], failed)


def descend(
    attempt: Callable[[PrecisionRung], J],
    *,
    fp16: bool,
    norms: bool,
    blocks: int,
    most_probes: int,
    note: Callable[[str], None],
    least: PrecisionRung = FP16,
) -> Descent[J]:
    """Try one rung after the other until an engine is right; say in a line each why the one before was not.

    Rungs that keep less in fp32 than `least` are known to be wrong and left out; so is that of `norms` where the model
    has none, as it would be fp16 once more.

    Raises:
        EngineError: even fp32 is wrong.
    """
    attempts = _Attempts(attempt)

    def failed(rung: PrecisionRung, then: str) -> None:
        note(f"{rung} {attempts.done[rung].failure}; trying {then}")

    full = PrecisionRung("fp32")
    if fp16:
        first = PrecisionRung("fp16", norms=norms, blocks=least.blocks)
        if least == FP16:
            if attempts.passes(FP16):
                return attempts.ended(FP16)
            if norms:
                failed(FP16, str(first))
        if attempts.passes(first):
            return attempts.ended(first)
        others = [i for i in range(blocks) if i not in least.blocks]
        probes = min(most_probes, max(LEAST_PROBES, int(SEARCH_S / max(attempts.seconds, 1e-3))))
        each = f"up to {probes} builds of about {attempts.seconds / 60:.0f} min" if attempts.seconds >= 60 else ""
        failed(first, f"single blocks in fp32{each and f', {each}'}" if others else "fp32")

        def with_blocks(chosen: Sequence[int]) -> PrecisionRung:
            return PrecisionRung("fp16", norms=norms, blocks=tuple(sorted({*least.blocks, *chosen})))

        def passes(chosen: tuple[int, ...]) -> bool:
            rung = with_blocks(chosen)
            right = attempts.passes(rung)
            note(f"{rung} is right" if right else f"{rung} {attempts.done[rung].failure}")
            return right

        if needed := smallest_set(others, passes, probes):
            return attempts.ended(with_blocks(needed))
        if others:
            note(f"not even {with_blocks(others)} is right; trying fp32")
    if attempts.passes(full):
        return attempts.ended(full)
    raise EngineError(
        f"no engine is right: {full} {attempts.done[full].failure}; TensorRT itself is wrong there: try another JetPack"
    )
