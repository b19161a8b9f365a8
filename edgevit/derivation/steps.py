"""Methods in a row: what cuts the base before the method that is asked for, as `--first nuwa:0.5,vulcan:0.7`.

In a file it may be a list, too, of such texts or of mappings that have a step's options with it:

    first:
    - nuwa:0.5
    - {method: vulcan, rate: 0.7, options: {teacher: none}}

Each step is given the network that the one before it made, and its rate counts from the first base.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from edgevit.derivation.methods import method_names
from edgevit.derivation.options import describe, read_options
from edgevit.errors import OptionError, UnknownNameError
from edgevit.numbers import check_number
from edgevit.request import nearest

FORM = "METHOD:RATE; try --first nuwa:0.5, or in a file {method: nuwa, rate: 0.5, options: {purification: none}}"


@dataclass(frozen=True)
class Step:
    """One method that cuts before the last one does."""

    method: str
    rate: float  # share of the first base's MACs that is gone after it
    options: Mapping[str, Any] = field(default_factory=dict)


def read_steps(text: str) -> tuple[Step, ...]:
    """Read `nuwa:0.5,vulcan:0.7`, or a list as JSON has it.

    Raises:
        OptionError: it is not of this form.
    """
    if not text.lstrip().startswith("["):
        return steps_of(text.split(","))
    try:
        return steps_of(json.loads(text))
    except ValueError as error:
        raise OptionError(f"--first {text} is no JSON: {error}; try --first nuwa:0.5") from None


def steps_of(listed: object) -> tuple[Step, ...]:
    """The steps of a list, each as a text or as a mapping, as a file has them; or they themselves.

    Raises:
        OptionError: one is neither, or has a key that a step has not.
    """
    if not isinstance(listed, (list, tuple)):
        raise OptionError(f"--first: {listed!r} is not {FORM}")
    return tuple(_step(one) for one in listed)


def _step(one: object) -> Step:
    if isinstance(one, Step):
        return one
    told = one
    if isinstance(one, str):
        method, _, rate = one.partition(":")
        one = {"method": method.strip(), "rate": rate}
    if not isinstance(one, Mapping):
        raise OptionError(f"--first: {one!r} is not {FORM}")
    known = [field.name for field in fields(Step)]
    if unknown := [key for key in one if key not in known]:
        raise OptionError(f"--first: a step has the unknown key {unknown[0]!r}; {nearest(str(unknown[0]), known)}")
    options = one.get("options") or {}
    if not isinstance(options, Mapping):
        raise OptionError(f"--first: options {options!r} of a step are no mapping of an option to its value")
    try:
        return Step(str(one["method"]), float(one["rate"]), dict(options))
    except (KeyError, TypeError, ValueError):
        raise OptionError(f"--first: {told!r} is not {FORM}") from None


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
