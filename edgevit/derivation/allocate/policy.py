"""Round real-valued widths to dimensions that hardware runs fast and that are just under a budget.

`fused` (default): QK = VO in each block, a multiple of 8 and at least 16, so that NVIDIA's compiler fuses the
attention; FFN a multiple of 8 (or 16, 32, 64), and the embedding of 16 (or another of these). `fused4`: all sizes that
it fuses, some with more copies: multiples of 4, at least 12. `paper`: QK and VO apart, multiples of 8, at least 8, as
in Vulcan's released code. `free`: any width. All heads of a block have one width. Numbers of tokens fill tiles under
every policy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor

from edgevit.derivation.allocate.budget import Budget
from edgevit.errors import BudgetError, OptionError, UnknownNameError
from edgevit.network.anatomy import Axis, BlockDims, SizeAxis
from edgevit.network.cost import Geometry
from edgevit.records.model import HEAD_WIDTHS, WIDTHS

_MULTIPLES = (1, 8, 16, 32, 64)  # allowed multiples of FFN widths and of the embedding
# Pairs of a least number of tokens, and the multiple that a matrix unit takes at once from it on.
_TILES = ((128, 64), (32, 16), (0, 8))


@dataclass(frozen=True)
class Policy:
    """Which sizes a block may have: along each axis but the heads, multiples of a step from a minimum."""

    name: str
    head_step: int
    head_minimum: int
    ffn_step: int
    equal: bool  # whether QK and VO share one width
    embed_step: int = 16  # step of the embedding's width; 16 is the tile of tensor cores for fp16 and int8

    def step(self, axis: SizeAxis) -> int:
        return self.ffn_step if axis == "ffn" else self.head_step

    def minimum(self, axis: SizeAxis) -> int:
        return self.ffn_step if axis == "ffn" else self.head_minimum

    @property
    def tied(self) -> tuple[SizeAxis, ...]:
        """The axes that share one size."""
        return HEAD_WIDTHS if self.equal else ()

    @property
    def least_heads(self) -> int:
        """The least number of heads: two for fused attention, since TensorRT does not fuse a single head."""
        return 2 if self.equal else 1


POLICIES = {
    "fused": Policy("fused", head_step=8, head_minimum=16, ffn_step=8, equal=True),
    "fused4": Policy("fused4", head_step=4, head_minimum=12, ffn_step=8, equal=True),
    "paper": Policy("paper", head_step=8, head_minimum=8, ffn_step=8, equal=False, embed_step=8),
    "free": Policy("free", head_step=1, head_minimum=1, ffn_step=1, equal=False, embed_step=1),
}


def make_policy(name: str, ffn_multiple: int | None = None, embed_multiple: int | None = None) -> Policy:
    """Look up a shape policy, optionally with another multiple for the FFN or the embedding.

    Raises:
        UnknownNameError: no such policy.
        OptionError: no such multiple.
    """
    if name not in POLICIES:
        raise UnknownNameError("shape policy", name, POLICIES)
    for dimension, multiple in (("FFN", ffn_multiple), ("embedding", embed_multiple)):
        if multiple not in (None, *_MULTIPLES):
            raise OptionError(f"{dimension} multiple {multiple} is not one of {', '.join(map(str, _MULTIPLES))}")
    policy = POLICIES[name]
    return replace(policy, ffn_step=ffn_multiple or policy.ffn_step, embed_step=embed_multiple or policy.embed_step)


def tile_counts(geometry: Geometry) -> list[int]:
    """List the numbers of tokens below a network's own that fill tiles, rising; at least one patch stays."""
    tile = next(tile for least, tile in _TILES if geometry.tokens >= least)
    return [n for n in range(tile, geometry.tokens, tile) if n > geometry.tokens - geometry.patches]


Widths = Mapping[SizeAxis, float]  # real-valued widths that a method requests for one block, by axis


@dataclass(frozen=True)
class _Knob:
    """A width that changes in steps: along one axis of one block, or along those that are tied to one size."""

    block: int
    axes: tuple[SizeAxis, ...]
    minimum: int
    maximum: int
    step: int
    unit_cost: int
    wish: float

    def clamp(self, width: float) -> int:
        """Round down to a multiple of the step, within the limits."""
        return min(max(floor(width / self.step + 1e-9) * self.step, self.minimum), self.maximum)


def _limits(base: int, minimum: int, step: int) -> tuple[int, int]:
    """Return the smallest and the largest width; a base below the minimum keeps its width."""
    if base <= minimum:
        return base, base
    return minimum, floor(base / step) * step


def limits(
    dims: BlockDims, policy: Policy, frozen: Collection[Axis] = (), at_least: BlockDims | None = None
) -> dict[SizeAxis, tuple[int, int]]:
    """Return the smallest and the largest width of a block along each axis; frozen axes and tied ones are fixed.

    Args:
        at_least: the minimum widths.
    """
    ranges: dict[SizeAxis, tuple[int, int]] = {}
    for axis in WIDTHS:
        tied = policy.tied if axis in policy.tied else (axis,)
        size = min(dims[other] for other in tied)
        fixed = any(other in frozen for other in tied)
        ranges[axis] = (dims[axis],) * 2 if fixed else _limits(size, policy.minimum(axis), policy.step(axis))
    if at_least is None:
        return ranges
    return {axis: (max(low, at_least[axis]), high) for axis, (low, high) in ranges.items()}


def _knobs(
    base: Sequence[BlockDims], wishes: Sequence[Widths], geometry: Geometry, budget: Budget, policy: Policy
) -> list[_Knob]:
    knobs = []
    for i, (placed, wish) in enumerate(zip(geometry.placed(base), wishes, strict=True)):
        ends = limits(placed.dims, policy, geometry.frozen(i), (budget.at_least or {}).get(i))
        tied = policy.tied if len({ends[axis] for axis in policy.tied}) == 1 else ()
        for axes in dict.fromkeys(tied if axis in tied else (axis,) for axis in WIDTHS):
            # With a table a unit has no cost, and `_fit_by_table` needs none.
            cost = 0 if budget.prices else sum(placed.unit_cost(axis, budget.linear) for axis in axes)
            request = sum(wish[axis] for axis in axes) / len(axes)
            knobs.append(_Knob(i, axes, *ends[axes[0]], policy.step(axes[0]), cost, request))
    return knobs


def smallest(
    base: Sequence[BlockDims], policy: Policy, geometry: Geometry, at_least: Mapping[int, BlockDims] | None = None
) -> tuple[BlockDims, ...]:
    """Return the smallest dimensions that a policy, a model's frozen axes and a budget's `at_least` allow."""
    ends = [limits(dims, policy, geometry.frozen(i), (at_least or {}).get(i)) for i, dims in enumerate(base)]
    return tuple(
        dims.with_sizes({axis: least for axis, (least, _) in ranges.items()})
        for dims, ranges in zip(base, ends, strict=True)
    )


def check_policy_reaches(base: Sequence[BlockDims], geometry: Geometry, budget: Budget, policy: Policy) -> None:
    """Raise BudgetError, with the reachable minimum, if the policy cannot meet the budget."""
    blocks = smallest(base, policy, geometry, budget.at_least)
    least = budget.cost(blocks, geometry)
    if not budget.allows(least):
        breakdown = budget.breakdown(blocks, geometry)
        raise BudgetError(
            f"{budget.option} leaves {budget.text(budget.limit)}, but shape {policy.name!r} reaches no less than "
            f"{budget.text(least)} (rate {1 - least / budget.base:.3f}{breakdown and f': {breakdown}'}); raise the "
            "budget, or try another --shape",
            least=least,
            breakdown=breakdown,
        )


def _settle(knobs: Sequence[_Knob], widths: list[int], slack: float) -> None:
    """Change widths in place: down while over the budget, then up; the one furthest from its wish first."""

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
    """Find dimensions at or just under the budget, from the widths that a method requests.

    `wishes_at(r)` returns the requested widths if a share r of the prunable part is removed; they fall with r.
    Bisection finds the r at which they cost the budget. Then widths are rounded down, and the slack is spent one step
    at a time on the width that is furthest below its request.

    Raises:
        BudgetError: the policy cannot meet the budget; the message has the reachable minimum.
    """
    check_policy_reaches(base, geometry, budget, policy)

    def knobs_at(rate: float) -> list[_Knob]:
        return _knobs(base, wishes_at(rate), geometry, budget, policy)

    if budget.prices is not None:
        return _fit_by_table(knobs_at, base, geometry, budget)
    fixed = geometry.fixed(base, budget.linear)

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        cost = fixed + sum(min(max(k.wish, k.minimum), k.maximum) * k.unit_cost for k in knobs_at(middle))
        low, high = (middle, high) if cost > budget.limit else (low, middle)
    knobs = knobs_at(high)
    widths = [knob.clamp(knob.wish) for knob in knobs]
    cost = fixed + sum(w * k.unit_cost for w, k in zip(widths, knobs, strict=True))
    _settle(knobs, widths, budget.limit - cost)
    return _turned(base, knobs, widths)


def _turned(base: Sequence[BlockDims], knobs: Sequence[_Knob], widths: Sequence[int]) -> tuple[BlockDims, ...]:
    """Set the knobs of the base to these widths."""
    dims = list(base)
    for knob, width in zip(knobs, widths, strict=True):
        dims[knob.block] = dims[knob.block].with_sizes(dict.fromkeys(knob.axes, width))
    return tuple(dims)


def _fit_by_table(
    knobs_at: Callable[[float], list[_Knob]], base: Sequence[BlockDims], geometry: Geometry, budget: Budget
) -> tuple[BlockDims, ...]:
    """Fit to costs of any form: the lowest rate whose widths, rounded down, are within the budget."""

    def fits(knobs: Sequence[_Knob], widths: Sequence[int]) -> bool:
        return budget.allows(budget.cost(_turned(base, knobs, widths), geometry))

    def rounded(knobs: Sequence[_Knob]) -> list[int]:
        return [knob.clamp(knob.wish) for knob in knobs]

    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        knobs = knobs_at(middle)
        low, high = (low, middle) if fits(knobs, rounded(knobs)) else (middle, high)
    knobs = knobs_at(high)
    widths = rounded(knobs)

    def excess(k: int) -> float:
        return (widths[k] - knobs[k].wish) / knobs[k].step

    while not fits(knobs, widths):  # even at a rate of 1 a method may request more than fits
        k = max((k for k in range(len(knobs)) if widths[k] > knobs[k].minimum), key=excess)
        widths[k] = max(widths[k] - knobs[k].step, knobs[k].minimum)
    open_ = set(range(len(knobs)))  # knobs that may still be widened
    while open_:
        k = min(open_, key=excess)
        wider = [width + knobs[k].step * (i == k) for i, width in enumerate(widths)]
        if wider[k] <= knobs[k].maximum and fits(knobs, wider):
            widths = wider
        else:
            open_.remove(k)
    return _turned(base, knobs, widths)


def uniform(base: Sequence[BlockDims]) -> Callable[[float], list[Widths]]:
    """Request the same share of every dimension of every block."""
    return lambda rate: [{axis: d[axis] * (1 - rate) for axis in WIDTHS} for d in base]
