"""What a method cannot be asked for, said before any work, with the methods that can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgevit.derive.methods import method_names
from edgevit.derive.options import describe, methods_with
from edgevit.errors import CostTableError, OptionError

if TYPE_CHECKING:
    from edgevit.derive.allocate.prices import Prices
    from edgevit.derive.method import Method


def refuse_linear(method: str, budget: str) -> None:
    """Raise OptionError, naming those that can, if a method cannot meet a budget by a cost table: ms, mj or fps.

    Methods that count on a cost linear in the widths cannot; the others have "ms" and "mj" among their QUANTITIES.
    """
    quantity = "mj" if budget == "mj" else "ms"
    able = [name for name in method_names() if quantity in describe(name).quantities]
    if method not in able:
        names = "".join(f"--method {name}, " for name in able)
        raise OptionError(
            f"--{budget}: method {method!r} cannot allocate by a cost table; try {names}--macs or --params"
        )


def refuse_untaught(method: str, config: Any, steps: int | None) -> None:
    """Refuse unlabelled images where nobody would tell the network what they show.

    Raises:
        OptionError: the method has no teacher as it was asked for, or does not train.
    """
    if getattr(config, "teacher", "none") == "none":
        can = methods_with("teacher")
        told = f"--set {method}.teacher=restricted" if method in can else f"--method {' or '.join(can)} with a teacher"
        raise OptionError(f"unlabelled images need a teacher, and {method} has none as asked for; try {told}")
    if steps == 0:
        raise OptionError("unlabelled images are for training, and 0 steps train not at all; leave them out")


def refuse_silent(method: Method, config: Any, prices: Prices | None) -> None:
    """Refuse a cost table that says nothing of fewer tokens to a method that lets them leave.

    Raises:
        CostTableError: it says nothing.
    """
    if method.thins_tokens(config) and prices is not None and not prices.fewer:
        raise CostTableError(
            f"cost table: it says nothing of blocks that are given fewer tokens, and {method.name} is to let tokens "
            "leave; measure one that does with `edgevit cost --tokens`"
        )


def refuse_after_tokens(method: Method, config: Any) -> None:
    """Refuse a method, as it was asked for, to cut a network that tokens leave.

    Raises:
        OptionError: it cannot; the message says in which order it can.
    """
    from edgevit.derive.method import find_method

    if method.thins_tokens(config):
        raise OptionError(
            f"{method.name}: tokens leave this model already; give its base, and the rate of both together"
        )
    others = [other.name for other in map(find_method, method_names()) if other.thins_tokens(other.make_config({}))]
    order = f"let tokens leave last (--first {method.name}:RATE --method {' or '.join(others)})"
    if getattr(config, "sequential", False):
        raise OptionError(
            f"{method.name}.sequential=true compares the model with its base token by token, and tokens leave "
            f"this one; {order}, or --set {method.name}.sequential=false"
        )
    if getattr(config, "sensitivity", "fisher") == "none":
        raise OptionError(
            f"{method.name}.sensitivity=none weighs all tokens of the base alike, and tokens leave; {order}"
        )
