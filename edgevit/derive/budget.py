"""How large the derived model may be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

from edgevit.errors import OptionError
from edgevit.models.macs import Quantity

_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_NAMES = {"macs": "MACs", "params": "parameters"}


@dataclass(frozen=True)
class Budget:
    """At most `limit` MACs or parameters."""

    quantity: Quantity
    limit: int
    base: int  # the base's own, in the same quantity
    asked: str  # in the user's words, for messages and records

    @property
    def rate(self) -> float:
        """Share of the base that must go: the papers' R."""
        return 1 - self.limit / self.base


def readable(count: float) -> str:
    """1.25 G, 86.6 M, 512."""
    for suffix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {suffix}"
    return f"{count:.0f}"


def parse_count(text: str | float, name: str) -> int:
    """Read 6.8G, 34M, 3.4e7.

    Raises:
        OptionError: it is not a positive number.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([kmgt]?)\s*", str(text).lower())
    try:
        value = float(match[1]) * _SUFFIX[match[2]] if match else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise OptionError(f"--{name} {text} is not a positive count; try 6.8G or 34M")
    return round(value)


def make_budget(
    base_macs: int,
    base_params: int,
    *,
    rate: float | None = None,
    macs: str | float | None = None,
    params: str | float | None = None,
) -> Budget:
    """Turn exactly one of rate, MACs and parameters into a budget.

    Raises:
        OptionError: none or several are given, or it asks for nothing to be pruned.
    """
    given = [name for name, value in (("rate", rate), ("macs", macs), ("params", params)) if value is not None]
    if len(given) != 1:
        seen = " and ".join(f"--{name}" for name in given) or "none"
        raise OptionError(f"a budget is one of --rate, --macs and --params, not {seen}; try --rate 0.6")
    if rate is not None:
        if not 0 < rate < 1:
            raise OptionError(f"--rate {rate:g} is not between 0 and 1; 0.6 leaves 40 % of the base's MACs")
        return Budget("macs", int(base_macs * (1 - rate)), base_macs, f"rate {rate:g}")
    quantity: Quantity = "macs" if macs is not None else "params"
    asked = macs if macs is not None else params
    assert asked is not None
    limit, base = parse_count(asked, quantity), base_macs if quantity == "macs" else base_params
    if limit >= base:
        name = _NAMES[quantity]
        raise OptionError(
            f"--{quantity} {asked} is not below the base's {readable(base)} {name}; give less, or use the base as it is"
        )
    return Budget(quantity, limit, base, f"{quantity} {asked}")


def quantity_name(quantity: Quantity) -> str:
    return _NAMES[quantity]
