"""From real-valued widths to dimensions that hardware likes and that land just under a budget.

`fused` (default): QK = VO in each block, so that NVIDIA's compiler fuses the attention; multiples of 8, at least 16;
FFN a multiple of 8, 16, 32 or 64, and the embedding of 16 where a method narrows it, or of another of these. `fused4`:
all that it fuses, some with more copies: multiples of 4, at least 12. `paper`: QK and VO on their own, multiples of 8,
at least 8, as Vulcan's released code. `free`: any width. Heads of a block always share one width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any

from edgevit.derivation.allocate.budget import Budget
from edgevit.errors import BudgetError, OptionError, UnknownNameError
from edgevit.network.anatomy import Axis, BlockDims
from edgevit.network.cost import Geometry, UnitCosts

MULTIPLES = (1, 8, 16, 32, 64)  # of FFN widths and of the embedding


@dataclass(frozen=True)
class Policy:
    """Which dimensions a block may have."""

    name: str
    head_step: int
    head_minimum: int
    ffn_step: int
    equal: bool  # QK and VO share one width
    embed_step: int = 16  # of the embedding: what tensor cores take at once, of fp16 and of int8

    @property
    def ffn_minimum(self) -> int:
        return self.ffn_step

    @property
    def least_heads(self) -> int:
        """Two where widths are equal so that attention is fused: TensorRT fuses none of one head."""
        return 2 if self.equal else 1


POLICIES = {
    "fused": Policy("fused", head_step=8, head_minimum=16, ffn_step=8, equal=True),
    "fused4": Policy("fused4", head_step=4, head_minimum=12, ffn_step=8, equal=True),
    "paper": Policy("paper", head_step=8, head_minimum=8, ffn_step=8, equal=False, embed_step=8),
    "free": Policy("free", head_step=1, head_minimum=1, ffn_step=1, equal=False, embed_step=1),
}


def make_policy(name: str, ffn_multiple: int | None = None, embed_multiple: int | None = None) -> Policy:
    """Look up a shape policy, with another multiple for the FFN or for the embedding if asked.

    Raises:
        UnknownNameError: no such policy.
        OptionError: no such multiple.
    """
    if name not in POLICIES:
        raise UnknownNameError("shape policy", name, POLICIES)
    for what, multiple in (("FFN", ffn_multiple), ("embedding", embed_multiple)):
        if multiple not in (None, *MULTIPLES):
            raise OptionError(f"{what} multiple {multiple} is not one of {', '.join(map(str, MULTIPLES))}")
    own = POLICIES[name]
    return replace(own, ffn_step=ffn_multiple or own.ffn_step, embed_step=embed_multiple or own.embed_step)


@dataclass(frozen=True)
class Widths:
    """Real-valued widths that a method wishes for one block."""

    qk: float
    vo: float
    ffn: float


@dataclass(frozen=True)
class _Knob:
    """One number that can be turned in steps: the head width (QK, VO or both) or the FFN width of one block."""

    block: int
    fields: tuple[str, ...]
    minimum: int
    maximum: int
    step: int
    unit_cost: int
    wish: float

    def clamp(self, width: float) -> int:
        """Round down to a step from zero, within the limits."""
        return min(max(floor(width / self.step + 1e-9) * self.step, self.minimum), self.maximum)


def _limits(base: int, minimum: int, step: int) -> tuple[int, int]:
    """Smallest and largest width; a base that is itself no multiple, or below the minimum, may stay as it is."""
    if base <= minimum:
        return base, base
    return minimum, floor(base / step) * step


def limits(
    dims: BlockDims, policy: Policy, frozen: Collection[Axis] = (), at_least: BlockDims | None = None
) -> dict[str, tuple[int, int]]:
    """Smallest and largest QK, VO and FFN width of a block. What is frozen stays, and so does what is tied to it.

    `at_least`: widths below which none may be.
    """
    qk, vo = (_limits(width, policy.head_minimum, policy.head_step) for width in (dims.qk, dims.vo))
    if policy.equal:
        qk = vo = _limits(min(dims.qk, dims.vo), policy.head_minimum, policy.head_step)
    if "qk" in frozen or (policy.equal and "vo" in frozen):
        qk = dims.qk, dims.qk
    if "vo" in frozen or (policy.equal and "qk" in frozen):
        vo = dims.vo, dims.vo
    ffn = _limits(dims.ffn, policy.ffn_minimum, policy.ffn_step)
    found = {"qk": qk, "vo": vo, "ffn": (dims.ffn, dims.ffn) if "neurons" in frozen else ffn}
    if at_least is None:
        return found
    return {name: (max(low, getattr(at_least, name)), high) for name, (low, high) in found.items()}


def _knobs(
    base: Sequence[BlockDims], wishes: Sequence[Widths], geometry: Geometry, budget: Budget, policy: Policy
) -> list[_Knob]:
    knobs = []
    reaching = geometry.reaching(base)
    for i, (dims, wish) in enumerate(zip(base, wishes, strict=True)):
        # By a table a unit has no cost of its own, and `_fit_by_table` asks for none.
        unit = UnitCosts(0, 0, 0) if budget.prices else geometry.at(reaching[i]).unit_costs(dims.heads, budget.linear)
        ends = limits(dims, policy, geometry.frozen(i), (budget.at_least or {}).get(i))
        if policy.equal and ends["qk"] == ends["vo"]:
            both = (wish.qk + wish.vo) / 2
            knobs.append(_Knob(i, ("qk", "vo"), *ends["qk"], policy.head_step, unit.qk + unit.vo, both))
        else:
            for name, cost in (("qk", unit.qk), ("vo", unit.vo)):
                knobs.append(_Knob(i, (name,), *ends[name], policy.head_step, cost, getattr(wish, name)))
        knobs.append(_Knob(i, ("ffn",), *ends["ffn"], policy.ffn_step, unit.ffn, wish.ffn))
    return knobs


def smallest(
    base: Sequence[BlockDims], policy: Policy, geometry: Geometry, at_least: Mapping[int, BlockDims] | None = None
) -> tuple[BlockDims, ...]:
    """The smallest dimensions that a policy and a model's frozen axes allow; `at_least`: as of a budget."""
    ends = [limits(dims, policy, geometry.frozen(i), (at_least or {}).get(i)) for i, dims in enumerate(base)]
    return tuple(
        replace(dims, qk=low["qk"][0], vo=low["vo"][0], ffn=low["ffn"][0]) for dims, low in zip(base, ends, strict=True)
    )


def check_policy_reaches(base: Sequence[BlockDims], geometry: Geometry, budget: Budget, policy: Policy) -> None:
    """Raise BudgetError, with the reachable minimum, if the policy allows nothing as small as the budget."""
    blocks = smallest(base, policy, geometry, budget.at_least)
    least = budget.cost(blocks, geometry)
    if not budget.holds(least):
        made_of = budget.made_of(blocks, geometry)
        raise BudgetError(
            f"{budget.asked} leaves {budget.told(budget.limit)}, but shape {policy.name!r} reaches no less than "
            f"{budget.told(least)} (rate {1 - least / budget.base:.3f}{made_of and f': {made_of}'}); raise the budget, "
            "or try another --shape",
            least=least,
            made_of=made_of,
        )


def _settle(knobs: Sequence[_Knob], widths: list[int], slack: float) -> None:
    """Turn knobs in place: down while over the budget, then up until nothing fits, furthest from its wish first."""

    def excess(k: int) -> float:
        return (widths[k] - knobs[k].wish) / knobs[k].step

    while slack < 0:
        k = max((k for k in range(len(knobs)) if widths[k] > knobs[k].minimum), key=excess)
        step = min(knobs[k].step, widths[k] - knobs[k].minimum)
        widths[k] -= step
        slack += step * knobs[k].unit_cost
    while True:
        fitting = [
            k
            for k, knob in enumerate(knobs)
            if widths[k] + knob.step <= knob.maximum and knob.step * knob.unit_cost <= slack
        ]
        if not fitting:
            return
        k = min(fitting, key=excess)
        widths[k] += knobs[k].step
        slack -= knobs[k].step * knobs[k].unit_cost


def fit(
    wishes_at: Callable[[float], Sequence[Widths]],
    base: Sequence[BlockDims],
    geometry: Geometry,
    budget: Budget,
    policy: Policy,
) -> tuple[BlockDims, ...]:
    """Find dimensions at or just under the budget that follow a method's wishes.

    `wishes_at(r)` gives the widths wished for when a share r of the prunable part is to go, falling in r. The r at
    which the wishes cost the budget is found by bisection; then widths are rounded down and the slack handed back, one
    step at a time, to whichever is furthest below its wish.

    Raises:
        BudgetError: the policy allows nothing as small as the budget; the message has the reachable minimum.
    """
    check_policy_reaches(base, geometry, budget, policy)

    def knobs_at(rate: float) -> list[_Knob]:
        return _knobs(base, wishes_at(rate), geometry, budget, policy)

    if budget.prices is not None:
        return _fit_by_table(knobs_at, base, geometry, budget)
    fixed = geometry.fixed_in(base, budget.linear)

    def real_cost(knobs: Sequence[_Knob]) -> float:
        return fixed + sum(min(max(k.wish, k.minimum), k.maximum) * k.unit_cost for k in knobs)

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if real_cost(knobs_at(middle)) > budget.limit else (low, middle)
    knobs = knobs_at(high)
    widths = [knob.clamp(knob.wish) for knob in knobs]
    cost = fixed + sum(w * k.unit_cost for w, k in zip(widths, knobs, strict=True))
    _settle(knobs, widths, budget.limit - cost)
    return _turned(base, knobs, widths)


def _turned(base: Sequence[BlockDims], knobs: Sequence[_Knob], widths: Sequence[int]) -> tuple[BlockDims, ...]:
    """The base with its knobs at these widths."""
    dims = list(base)
    for knob, width in zip(knobs, widths, strict=True):
        dims[knob.block] = replace(dims[knob.block], **dict[str, Any](dict.fromkeys(knob.fields, width)))
    return tuple(dims)


def _fit_by_table(
    knobs_at: Callable[[float], list[_Knob]], base: Sequence[BlockDims], geometry: Geometry, budget: Budget
) -> tuple[BlockDims, ...]:
    """As `fit`, where costs are of any form: the lowest rate whose widths, rounded down, are within the budget."""

    def holds(knobs: Sequence[_Knob], widths: Sequence[int]) -> bool:
        return budget.holds(budget.cost(_turned(base, knobs, widths), geometry))

    def rounded(knobs: Sequence[_Knob]) -> list[int]:
        return [knob.clamp(knob.wish) for knob in knobs]

    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        knobs = knobs_at(middle)
        low, high = (low, middle) if holds(knobs, rounded(knobs)) else (middle, high)
    knobs = knobs_at(high)
    widths = rounded(knobs)

    def excess(k: int) -> float:
        return (widths[k] - knobs[k].wish) / knobs[k].step

    while not holds(knobs, widths):  # at a rate of 1 a method may still wish for more
        k = max((k for k in range(len(knobs)) if widths[k] > knobs[k].minimum), key=excess)
        widths[k] = max(widths[k] - knobs[k].step, knobs[k].minimum)
    open_ = set(range(len(knobs)))  # that may yet be given a step
    while open_:
        k = min(open_, key=excess)
        wider = [width + knobs[k].step * (i == k) for i, width in enumerate(widths)]
        if wider[k] <= knobs[k].maximum and holds(knobs, wider):
            widths = wider
        else:
            open_.remove(k)
    return _turned(base, knobs, widths)


def uniform(base: Sequence[BlockDims]) -> Callable[[float], list[Widths]]:
    """Wishes that prune every dimension of every block by the same share."""
    return lambda rate: [Widths(d.qk * (1 - rate), d.vo * (1 - rate), d.ffn * (1 - rate)) for d in base]
