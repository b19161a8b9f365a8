"""The limit of MACs, parameters, milliseconds or millijoules of a derived model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Literal

from edgevit.errors import OptionError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry, Quantity
from edgevit.numbers import parse_count
from edgevit.records.derivation import BudgetRecord
from edgevit.text import format_count

if TYPE_CHECKING:
    from edgevit.derivation.allocate.cost_table import CostTable
    from edgevit.derivation.allocate.prices import Measured, Prices

_NAMES = {"macs": "MACs", "params": "parameters", "ms": "ms", "mj": "mJ"}
MEASURED = ("ms", "mj")  # quantities that a cost table counts
MeasuredBudget = Literal["ms", "mj", "fps"]
MEASURED_BUDGETS: tuple[MeasuredBudget, ...] = ("ms", "mj", "fps")  # options; fps is converted to ms
_USE_BASE = "use `edgevit base`"
_ROUNDING = 1e-9  # relative error of sums of measured costs; MACs and parameters are whole numbers


@dataclass(frozen=True)
class Budget:
    """At most `limit` MACs, parameters, milliseconds of one inference or millijoules of one image."""

    quantity: Quantity | Measured
    limit: float
    base: float  # the base's cost in the same quantity
    option: str  # the budget as the user gave it, for messages and records
    # The cost table of a budget in milliseconds or millijoules; None: MACs and parameters are counted.
    table: CostTable | None = None
    # The minimum sizes of the blocks that must be kept, by number; all others must be removed. None: any block may be
    # removed, and be as small as the method and the shape allow.
    at_least: Mapping[int, BlockDims] | None = None
    at_least_embed: int = 0  # the minimum width of the embedding; 0: any width

    @property
    def rate(self) -> float:
        """The share of the base that must be removed: the papers' R."""
        return 1 - self.limit / self.base

    @property
    def linear(self) -> Quantity:
        """MACs or parameters, which are linear in every width; not for a budget by a cost table."""
        assert self.quantity == "macs" or self.quantity == "params", "a cost table has no linear costs: see `prices`"
        return self.quantity

    @cached_property
    def prices(self) -> Prices | None:
        """The table in this quantity; None for MACs and parameters."""
        if self.table is None or self.quantity == "macs" or self.quantity == "params":
            return None
        return self.table.in_quantity(self.quantity)

    @property
    def least_embed(self) -> int:
        """The narrowest embedding, of the last stage, that is allowed and that the table lists; 0: any."""
        return max(self.at_least_embed, 0 if self.prices is None else self.prices.of_stages[-1].embeds[0])

    def prices_at(self, geometry: Geometry, stage: int = 0, tokens: int | None = None) -> Prices | None:
        """Look up the table in this quantity, for the embedding of a stage and for blocks that get so many tokens.

        None: all tokens of the stage.

        Raises:
            CostTableError: the table lists no embedding as narrow, or no costs of fewer tokens.
        """
        if self.prices is None:
            return None
        of_stage = geometry.stages[stage]
        return self.prices.of_stages[stage].at(of_stage.embed, tokens or of_stage.tokens)

    def cost(self, blocks: Sequence[BlockDims], geometry: Geometry) -> float:
        """Return the cost of a network in this quantity."""
        if (prices := self.prices_at(geometry)) is not None:
            return prices.cost(blocks)
        return geometry.cost(blocks, self.linear)

    def allows(self, cost: float) -> bool:
        """Tell whether a model of this cost is within the limit."""
        return cost <= self.limit * (1 + _ROUNDING if self.quantity in MEASURED else 1)

    def text(self, cost: float) -> str:
        """Format a cost: 1.25 G MACs, 4.2 ms."""
        number = f"{cost:.4g}" if self.quantity in MEASURED else format_count(cost)
        return f"{number} {_NAMES[self.quantity]}"

    def breakdown(self, blocks: Sequence[BlockDims], geometry: Geometry) -> str:
        """What a model's cost by the table is made of, the largest part first; empty for MACs and parameters."""
        prices = self.prices_at(geometry)
        return "" if prices is None else prices.breakdown(blocks)

    def record(self, reached: float | None = None) -> BudgetRecord:
        """Make the record for derivation.json, with the cost of the derived model."""
        table = None if self.table is None else self.table.record()
        minimum = None if self.at_least is None else {str(i): dims for i, dims in self.at_least.items()}
        embed = self.at_least_embed or None
        return BudgetRecord(self.quantity, self.limit, self.base, self.option, reached, table, minimum, embed)


def remainder(base: int, rate: float) -> int:
    """Subtract a share of `base`, exactly as the share is written, and round down.

    1000 * (1 - 0.9) is 99.99999999999997, and a model of 100 must be within the budget.
    """
    return int(base * (1 - Fraction(repr(float(rate)))))


def make_budget(
    base_macs: int,
    base_params: int,
    uncut_macs: int = 0,
    /,
    *,
    rate: float | None = None,
    macs: str | float | None = None,
    params: str | float | None = None,
    ms: float | None = None,
    mj: float | None = None,
    fps: float | None = None,
    table: CostTable | None = None,
) -> Budget:
    """Make a budget of exactly one of these; milliseconds, millijoules and images per second need a table.

    Args:
        uncut_macs: MACs that stay and are not among those of the base, of which a rate or MACs are to be, too.

    Raises:
        OptionError: none or several are given, or the budget is not below the base.
        CostTableError: the table has no millijoules.
    """
    options = {"rate": rate, "macs": macs, "params": params, "ms": ms, "mj": mj, "fps": fps}
    names = [name for name, value in options.items() if value is not None]
    if len(names) != 1:
        text = " and ".join(f"--{name}" for name in names) or "none"
        raise OptionError(
            f"a budget is one of --rate, --macs, --params, --ms, --mj and --fps, not {text}; try --rate 0.6"
        )
    (name,) = names
    if name in MEASURED_BUDGETS:
        number = ms if ms is not None else mj if mj is not None else fps
        assert number is not None
        return _measured(name, number, table)
    if table is not None:
        raise OptionError(f"--cost-table is for --ms, --mj and --fps, not --{name}; leave it out, or give --ms instead")
    if rate is not None:
        if not 0 < rate < 1:
            hint = f"to leave the base as it is, {_USE_BASE}" if rate == 0 else "0.6 leaves 40 % of the base's MACs"
            raise OptionError(f"--rate {rate:g} is not between 0 and 1; {hint}")
        return _without(
            uncut_macs, Budget("macs", remainder(base_macs + uncut_macs, rate), base_macs, f"rate {rate:g}")
        )
    quantity: Quantity = "macs" if macs is not None else "params"
    count = macs if macs is not None else params
    assert count is not None
    limit, base = parse_count(count, quantity), base_macs + uncut_macs if quantity == "macs" else base_params
    if limit >= base:
        name = _NAMES[quantity]
        raise OptionError(
            f"--{quantity} {count} is not below the base's {format_count(base)} {name}; give less, or {_USE_BASE}"
        )
    return _without(uncut_macs, Budget(quantity, limit, base_macs if uncut_macs else base, f"{quantity} {count}"))


def _without(uncut_macs: int, budget: Budget) -> Budget:
    """The budget of what can be cut, of one that counts a rest, too.

    Raises:
        OptionError: the rest alone is above it.
    """
    if not uncut_macs:
        return budget
    option = f"{budget.option} of the whole"
    if budget.limit <= uncut_macs:
        rate = 0.9 * budget.base / (budget.base + uncut_macs)
        raise OptionError(
            f"{option} leaves {format_count(budget.limit)} MACs, and what reads the pyramid has "
            f"{format_count(uncut_macs)}: try --rate {rate:.2g}, or --budget-of pyramid"
        )
    return replace(budget, limit=budget.limit - uncut_macs, option=option)


def _measured(name: str, number: float, table: CostTable | None) -> Budget:
    """Make a budget of milliseconds, millijoules, or images per second."""
    if table is None:
        raise OptionError(
            f"--{name} {number:g} needs --cost-table FILE, the cost of each size; edgevit.meet and `edgevit derive` "
            "measure it themselves"
        )
    if not 0 < number < inf:
        units = {"ms": "milliseconds; try 5.0", "mj": "millijoules; try 40", "fps": "images per second; try 30"}
        raise OptionError(f"--{name} {number:g} is not a positive number of {units[name]}")
    quantity: Measured = "mj" if name == "mj" else "ms"
    limit, base = 1000 * table.batch / number if name == "fps" else number, table.in_quantity(quantity).base
    if limit >= base:
        unit = _NAMES[quantity]
        option = f"--{name} {number:g}" if name != "fps" else f"--fps {number:g}, {limit:.4g} ms for {table.batch},"
        less = "more" if name == "fps" else "less"
        raise OptionError(
            f"{option} is not below the base's {base:.4g} {unit} by the cost table; give {less}, or {_USE_BASE}"
        )
    return Budget(quantity, limit, base, f"{name} {number:g}", table)


def quantity_name(quantity: Quantity) -> str:
    return _NAMES[quantity]
