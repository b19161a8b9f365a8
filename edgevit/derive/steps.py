"""Methods in a row: what cuts the base before the method that is asked for, as `--first nuwa:0.5,vulcan:0.7`.

Each step is given the network that the one before it made, and its rate counts from the first base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from edgevit.derive.methods import method_names
from edgevit.derive.options import describe, read_options
from edgevit.errors import OptionError, UnknownNameError
from edgevit.numbers import check_number


@dataclass(frozen=True)
class Step:
    """One method that cuts before the last one does."""

    method: str
    rate: float  # share of the first base's MACs that is gone after it
    options: Mapping[str, Any] = field(default_factory=dict)


def read_steps(text: str) -> tuple[Step, ...]:
    """Read `nuwa:0.5,vulcan:0.7`.

    Raises:
        OptionError: it is not of this form.
    """
    steps = []
    for part in text.split(","):
        method, _, rate = part.partition(":")
        try:
            steps.append(Step(method.strip(), float(rate)))
        except ValueError:
            raise OptionError(f"--first {text}: {part!r} is not METHOD:RATE; try --first nuwa:0.5") from None
    return tuple(steps)


def check_steps(steps: Sequence[Step], method: str, rate: float | None, *, measured: str | None) -> None:
    """Refuse steps that cannot stand in a row.

    Args:
        measured: the budget that counts what was measured, if it is such a one: ms, mj or fps.

    Raises:
        UnknownNameError: there is no such method, or option of it.
        OptionError: one cannot come where it stands; the message says in which order they can.
    """
    if not steps:
        return
    for step in steps:
        if step.method not in method_names():
            raise UnknownNameError("method", step.method, method_names())
        check_number(f"--first {step.method}", step.rate, "(0, 1)", "try 0.5")
        read_options(step.method, step.options)
    for name in (*(step.method for step in steps), method):
        if describe(name).slices:
            raise OptionError(
                f"--first: {name} cuts a super-network, which no other method makes, and cannot stand in a row; write "
                f"the slice with edgevit derive --method {name}, then derive from its folder"
            )
    if measured:
        raise OptionError(
            f"--first counts rates in MACs, and --{measured} what was measured; give --rate, or leave --first out"
        )
    rates = [(step.method, step.rate) for step in steps] + ([(method, rate)] if rate is not None else [])
    for (one, less), (other, more) in pairwise(rates):
        if less >= more:
            raise OptionError(
                f"--first: {other} is to leave {1 - more:.0%} of the base after {one} has left {1 - less:.0%}; each "
                f"step cuts more than the one before it: put {other} before {one}, or raise its rate"
            )
