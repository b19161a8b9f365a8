"""The order in which precisions are tried: fp16, then more and more in fp32, until an engine is right.

Each rung keeps in fp32 what the one before it did, and more; so a rung that is right stays right further down, which is
what the search for single blocks relies on. It knows nothing of boards: `attempt` builds and judges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from edgevit.errors import EngineError


@dataclass(frozen=True)
class Rung:
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
        count = len(self.blocks)
        parts = ["LayerNorm"] * self.norms
        parts += [f"block{'s' * (count > 1)} {', '.join(map(str, self.blocks))}"] if count else []
        return f"{self.precision} with {' and '.join(parts)} in fp32" if parts else self.precision

    def modules(self, norms: Sequence[str], blocks: Sequence[str]) -> tuple[str, ...]:
        """The modules that it keeps in fp32, by name; a block brings its own normalisations."""
        chosen = [blocks[i] for i in self.blocks]
        inside = tuple(f"{name}." for name in chosen)
        return (*[n for n in norms if self.norms and not n.startswith(inside)], *chosen)


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

    rung: Rung
    judged: J
    tried: tuple[tuple[Rung, J], ...]  # every attempt that failed, in order


class _Attempts(Generic[J]):
    """Each rung is attempted once."""

    def __init__(self, attempt: Callable[[Rung], J]) -> None:
        self.attempt = attempt
        self.done: dict[Rung, J] = {}

    def passes(self, rung: Rung) -> bool:
        if rung not in self.done:
            self.done[rung] = self.attempt(rung)
        return self.done[rung].failure is None

    def ended(self, rung: Rung) -> Descent[J]:
        failed = tuple((tried, judged) for tried, judged in self.done.items() if judged.failure is not None)
        return Descent(rung, self.done[rung], failed)


def descend(
    attempt: Callable[[Rung], J], *, fp16: bool, blocks: int, most_probes: int, note: Callable[[str], None]
) -> Descent[J]:
    """Try one rung after the other until an engine is right; say in a line each why the one before was not.

    Raises:
        EngineError: even fp32 is wrong.
    """
    attempts = _Attempts(attempt)

    def failed(rung: Rung, then: str) -> None:
        note(f"{rung} {attempts.done[rung].failure}; trying {then}")

    plain, norms, full = Rung("fp16"), Rung("fp16", norms=True), Rung("fp32")
    if fp16:
        if attempts.passes(plain):
            return attempts.ended(plain)
        failed(plain, str(norms))
        if attempts.passes(norms):
            return attempts.ended(norms)
        failed(norms, "single blocks in fp32")

        def with_blocks(chosen: Sequence[int]) -> Rung:
            return Rung("fp16", norms=True, blocks=tuple(chosen))

        def passes(chosen: tuple[int, ...]) -> bool:
            rung = with_blocks(chosen)
            right = attempts.passes(rung)
            note(f"{rung} is right" if right else f"{rung} {attempts.done[rung].failure}")
            return right

        if needed := smallest_set(range(blocks), passes, most_probes):
            return attempts.ended(with_blocks(needed))
        note(f"not even {with_blocks(range(blocks))} is right; trying fp32")
    if attempts.passes(full):
        return attempts.ended(full)
    raise EngineError(
        f"no engine is right: {full} {attempts.done[full].failure}; TensorRT itself is wrong there: try another JetPack"
    )
