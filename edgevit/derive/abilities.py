"""What a method cannot be asked for, said before any work, with the methods that can."""

from __future__ import annotations

from typing import Any

from edgevit.derive.methods import method_names
from edgevit.derive.options import describe
from edgevit.errors import OptionError

TOKENS = "heart"  # the method by which tokens leave


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
        can = [n for n in method_names() if "teacher" in {option.name for option in describe(n).options}]
        told = f"--set {method}.teacher=restricted" if method in can else f"--method {' or '.join(can)} with a teacher"
        raise OptionError(f"unlabelled images need a teacher, and {method} has none as asked for; try {told}")
    if steps == 0:
        raise OptionError("unlabelled images are for training, and 0 steps train not at all; leave them out")


def refuse_after_tokens(method: str, config: Any) -> None:
    """Refuse a method, as it was asked for, to cut a network that tokens leave.

    Raises:
        OptionError: it cannot; the message says in which order it can.
    """
    order = f"let tokens leave last (--first {method}:RATE --method {TOKENS})"
    if method == TOKENS:
        raise OptionError(f"{TOKENS}: tokens leave this model already; give its base, and the rate of both together")
    if getattr(config, "sequential", False):
        raise OptionError(
            f"{method}.sequential=true compares the model with its base token by token, and tokens leave this one; "
            f"{order}, or --set {method}.sequential=false"
        )
    if getattr(config, "sensitivity", "fisher") == "none":
        raise OptionError(f"{method}.sensitivity=none weighs all tokens of the base alike, and tokens leave; {order}")
