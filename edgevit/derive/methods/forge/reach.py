"""How small forge can make a network: said before anything is measured, with the axis that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgevit.derive.allocate.budget import Budget
from edgevit.derive.allocate.menus import least_heads
from edgevit.derive.allocate.policy import check_reachable as check_widths
from edgevit.derive.allocate.policy import smallest
from edgevit.derive.embedding import geometry_at, reason_against, widths
from edgevit.derive.methods.forge.ladders import Ladder, ladders, passing
from edgevit.derive.methods.forge.ladders import reason_against as no_tokens
from edgevit.derive.problem import Problem
from edgevit.errors import BudgetError
from edgevit.models.anatomy import BlockDims
from edgevit.models.cost import Geometry
from edgevit.models.families import family_of

SWITCHES = ("cut_embedding", "drop_blocks", "drop_heads", "drop_sites", "cut_tokens")  # each lets more go


@dataclass(frozen=True)
class Least:
    """The cheapest of all allocations."""

    cost: float
    blocks: tuple[BlockDims, ...]
    kept: tuple[int, ...]
    geometry: Geometry

    def ends_at(self, budget: Budget) -> str:
        """The axis that most of it is left of, at its minimum."""
        if budget.prices is not None:
            return ""
        geometry, costs = self.geometry, {"": float(self.geometry.fixed(0, budget.linear))}
        for d, n in zip(self.blocks, geometry.reaching(self.blocks), strict=True):
            at = geometry.at(n)
            unit = at.unit_costs(d.heads, budget.linear)
            attention = at.site_fixed("attention", budget.linear) + unit.qk * d.qk + unit.vo * d.vo
            ffn = at.site_fixed("ffn", budget.linear) + unit.ffn * d.ffn
            for kind, cost in (("attention", attention * d.has_attention), ("ffn", ffn * d.has_ffn)):
                costs[kind] = costs.get(kind, 0.0) + cost
        most = max(costs, key=lambda kind: costs[kind])
        share = f"{costs[most] / sum(costs.values()):.0%} of it"
        count = f"{len(self.blocks)} block{'s' * (len(self.blocks) > 1)}"
        if most == "attention":
            d = next(b for b in self.blocks if b.has_attention)
            return f"{share} is attention, which ends at {d.heads} heads of {d.qk} and {d.vo} in {count}"
        if most == "ffn":
            d = next(b for b in self.blocks if b.has_ffn)
            return f"{share} is the FFN, which ends at {d.ffn} neurons in {count}"
        return f"{share} lies outside the blocks, and the embedding ends at {geometry.embed} channels"


def check_reachable(problem: Problem, config: Any) -> None:
    """Raise BudgetError before anything is measured if even the cheapest of all allocations costs more.

    Args:
        config: forge's.
    """
    budget, policy = problem.budget, problem.policy
    if config.allocation != "joint":
        network = problem.network
        dims = [b.dims for b in family_of(network).read(network)]
        check_widths(dims, family_of(network).geometry(network), budget, policy)
        return
    least = least_of(problem, config)
    if budget.holds(least.cost):
        return
    made_of = budget.made_of(least.blocks, least.geometry, least.kept)
    why = made_of or least.ends_at(budget)
    off = [name for name in SWITCHES if not getattr(config, name)]
    options = {n: replace(config, **{n: True}) for n in off if n != "cut_tokens" or config.cuts_embedding}
    more = [f"forge.{n}=true" for n, other in options.items() if least_of(problem, other).cost < least.cost]
    allow = f", let more go ({', '.join(more)})" if more else ""
    family = family_of(problem.network)
    whole = [block.dims for block in family.read(problem.network)]
    if least.cost >= budget.cost(whole, family.geometry(problem.network)):
        raise BudgetError(
            f"{budget.asked} asks for less than the base, and nothing of it may be cut in shape {policy.name!r} with "
            f"the options as they are; {allow.removeprefix(', ') or 'try another --shape'}",
            least=least.cost,
            made_of=made_of,
        )
    raise BudgetError(
        f"{budget.asked} is less than forge reaches in shape {policy.name!r}: {budget.told(least.cost)} at the least"
        f"{why and f' ({why})'}; raise the budget{allow}, or try another --shape",
        least=least.cost,
        made_of=made_of,
    )


def least_of(problem: Problem, config: Any) -> Least:
    """The cheapest allocation, by a ladder of tokens where some may leave."""
    network, budget = problem.network, problem.budget
    geometry = family_of(network).geometry(network)
    dims = [b.dims for b in family_of(network).read(network)]
    cuts = config.cut_embedding and config.by_loss
    if cuts and reason_against(problem, config.calibration_images) is None:
        narrowest = widths(network, problem.policy, config.embed_width, "forge", budget.least_embed)[-1]
        geometry = geometry_at(network, narrowest)
    every: Sequence[Ladder | None] = [None]
    if config.cut_tokens and cuts and no_tokens(problem) is None:
        every = ladders(geometry, len(dims))
    return min((_least(problem, config, geometry, dims, ladder) for ladder in every), key=lambda least: least.cost)


def _least(
    problem: Problem, config: Any, geometry: Geometry, dims: Sequence[BlockDims], ladder: Ladder | None
) -> Least:
    budget, policy = problem.budget, problem.policy
    dims = dims if ladder is None else passing(dims, ladder)
    may_go = config.drop_blocks and config.by_loss
    needed = [i == 0 or not may_go or "block" in geometry.frozen(i) or d.tokens > 0 for i, d in enumerate(dims)]
    kept = tuple(i for i, stays in enumerate(needed) if stays)
    smallest_dims = smallest(dims, policy, geometry)
    drops = [config.drop_heads and "heads" not in geometry.frozen(i) for i in range(len(dims))]
    fewest = [replace(smallest_dims[i], heads=least_heads(dims[i], policy, drop_heads=drops[i])) for i in kept]
    if config.drop_sites and config.by_loss:
        fewest = [d if d.tokens else _smaller(budget, geometry, i, d) for i, d in zip(kept, fewest, strict=True)]
    return Least(budget.cost(fewest, geometry, kept), tuple(fewest), kept, geometry)


def _smaller(budget: Budget, geometry: Geometry, block: int, dims: BlockDims) -> BlockDims:
    """The cheaper of a block's sites alone, if either may go."""
    if "site" in geometry.frozen(block):
        return dims
    alone = [replace(dims, ffn=0), replace(dims, heads=0, qk=0, vo=0)]
    return min(alone, key=lambda d: budget.cost([d], geometry, [block]))
