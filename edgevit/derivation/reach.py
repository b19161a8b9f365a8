"""Refuse a budget below the smallest network that a method can make, before anything is measured.

A method says what it may take away (`Cuts`). Of all that it could make, the cheapest in the budget's own quantity is
worked out from sizes alone; a budget below it is refused with what most of that model is, at which size that ends, and
which of the method's options would let more go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.menus import least_heads
from edgevit.derivation.allocate.policy import Policy, smallest
from edgevit.derivation.embedding import geometry_at, why_it_stays
from edgevit.derivation.problem import Problem
from edgevit.errors import BudgetError, OptionError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.families import family_of


@dataclass(frozen=True)
class Cuts:
    """What a method may take away from a network, with the options that it was given."""

    widths: bool = True  # QK, VO and FFN widths, as far as the shape policy allows
    head_widths: bool = True  # if widths: those of QK and VO, too, and not of FFNs alone
    neurons: bool = True  # if widths: those of FFNs, too
    heads: bool = False  # whole heads
    blocks: bool = False  # whole blocks, all but the first
    sites: bool = False  # the attention or the FFN of a block
    embed: int = 0  # the narrowest embedding that it gives; 0: the embedding stays
    # By how many training images it finds the directions that stay of the embedding; 0: it looks for none.
    images: int = 0
    # How many tokens each block may pass on (0: all that it is given): each a way to cut.
    ladders: Sequence[tuple[int, ...]] = ()
    # Options that would let more go, each with the value that does.
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> bool:
        """Whether tokens may leave behind some block."""
        return any(map(any, self.ladders))


@dataclass(frozen=True)
class Asked:
    """A budget, and what is to be cut until it is met."""

    network: nn.Module
    budget: Budget
    policy: Policy
    images: int  # for training


def check_embed_width(owner: str, width: int, asked: Asked, calibration_images: int) -> None:
    """Refuse a width that the method `owner` was asked for (0: none) of an embedding that cannot be narrowed.

    Raises:
        OptionError: it cannot be; the message says why.
    """
    images = min(asked.images, calibration_images)
    if width and (reason := why_it_stays(asked.network, asked.budget, images)) is not None:
        raise OptionError(f"{owner}.embed_width={width}: the embedding cannot be narrowed: {reason}")


def asked_of(problem: Problem) -> Asked:
    return Asked(problem.network, problem.budget, problem.policy, len(problem.task.train))


@dataclass(frozen=True)
class Least:
    """The cheapest of all that a method could make."""

    cost: float
    blocks: tuple[BlockDims, ...]
    kept: tuple[int, ...]
    geometry: Geometry

    def made_of(self, budget: Budget) -> str:
        """Say what the cost is made of: with a cost table, what each part takes.

        Without one, say which part (attention, FFN, or what lies outside the blocks) takes most of it, and at what size
        that part ends.
        """
        if budget.prices is not None:
            return budget.made_of(self.blocks, self.geometry, self.kept)
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


def check_reachable(asked: Asked, owner: str, cuts_of: Callable[[Any], Cuts], config: Any) -> None:
    """Refuse a budget below the cheapest model that a method could make.

    Args:
        owner: the method's name.
        cuts_of: what it may take away with a config.

    Raises:
        BudgetError: with the minimum, what it is made of, and what would let more go.
    """
    budget, policy, cuts = asked.budget, asked.policy, cuts_of(config)
    least = least_of(asked, cuts)
    if budget.holds(least.cost):
        return
    options = ", ".join(f"{owner}.{name}={written(value)}" for name, value in _more(asked, cuts_of, config, least))
    mend = [f"let more go ({options})"] if options else []
    if not cuts.widths and budget.prices is None:
        mend.append("cut widths with another method first, and derive from its folder")
    if policy.name != "free":
        mend.append("try another --shape")
    family = family_of(asked.network)
    whole = [block.dims for block in family.read(asked.network)]
    said: dict[str, Any] = {"least": least.cost}
    if budget.prices is not None:
        said["made_of"] = least.made_of(budget)
    if least.cost >= budget.cost(whole, family.geometry(asked.network)):
        raise BudgetError(
            f"{budget.asked} asks for less than the base, and {owner} may cut nothing of it in shape {policy.name!r} "
            f"with the options as they are; {_either(mend) or 'give it as it is, with `edgevit base`'}",
            **said,
        )
    raise BudgetError(
        f"{budget.asked} leaves {budget.told(budget.limit)}, but {owner} in shape {policy.name!r} reaches no less than "
        f"{budget.told(least.cost)} (rate {1 - least.cost / budget.base:.3f}): {least.made_of(budget)}; "
        f"{_either(['raise the budget', *mend])}",
        **said,
    )


def written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _either(ways: Sequence[str]) -> str:
    return ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])}, or {ways[-1]}" if ways else ""


def _more(asked: Asked, cuts_of: Callable[[Any], Cuts], config: Any, least: Least) -> list[tuple[str, Any]]:
    """The options by which the cheapest model would be cheaper, each alone."""
    found = []
    for name, value in cuts_of(config).more.items():
        if getattr(config, name) == value:
            continue
        try:
            other = replace(config, **{name: value})
        except OptionError:  # it needs another option, which is told by itself
            continue
        if least_of(asked, cuts_of(other)).cost < least.cost:
            found.append((name, value))
    return found


def least_of(asked: Asked, cuts: Cuts) -> Least:
    """The cheapest model, by a ladder of tokens where some may leave."""
    network, budget = asked.network, asked.budget
    family = family_of(network)
    geometry, dims = family.geometry(network), [b.dims for b in family.read(network)]
    images = min(cuts.images, asked.images)
    stays = why_it_stays(network, budget, images) if cuts.images else None
    if cuts.embed and stays is None:
        geometry = geometry_at(network, min(max(cuts.embed, budget.least_embed), geometry.embed))
    every = [dims]
    if budget.prices is None or budget.prices.fewer:
        every += [[replace(d, tokens=n) for d, n in zip(dims, ladder, strict=True)] for ladder in cuts.ladders]
    return min((_least(asked, cuts, geometry, passing) for passing in every), key=lambda least: least.cost)


def _least(asked: Asked, cuts: Cuts, geometry: Geometry, dims: Sequence[BlockDims]) -> Least:
    budget, policy = asked.budget, asked.policy
    stay = budget.at_least or {}

    def needed(i: int, d: BlockDims) -> bool:
        if budget.at_least is not None and cuts.blocks:
            return i in stay
        return i == 0 or not cuts.blocks or "block" in geometry.frozen(i) or d.tokens > 0

    kept = tuple(i for i, d in enumerate(dims) if needed(i, d))
    narrow = smallest(dims, policy, geometry, stay) if cuts.widths else dims
    fewest = []
    for i in kept:
        may_go = cuts.heads and "heads" not in geometry.frozen(i)
        least = replace(narrow[i], heads=least_heads(dims[i], policy, drop_heads=may_go))
        if not cuts.head_widths:
            least = replace(least, qk=dims[i].qk, vo=dims[i].vo)
        if not cuts.neurons:
            least = replace(least, ffn=dims[i].ffn)
        if (floor := stay.get(i)) is not None:
            least = _with_sites(replace(least, heads=max(least.heads, floor.heads)), floor)
        elif cuts.sites and not least.tokens:
            least = _smaller(budget, geometry, i, least)
        fewest.append(least)
    return Least(budget.cost(fewest, geometry, kept), tuple(fewest), kept, geometry)


def _with_sites(dims: BlockDims, of: BlockDims) -> BlockDims:
    """These sizes with no other sites than `of` has."""
    if not of.has_ffn:
        return replace(dims, ffn=0)
    return dims if of.has_attention else replace(dims, heads=0, qk=0, vo=0)


def _smaller(budget: Budget, geometry: Geometry, block: int, dims: BlockDims) -> BlockDims:
    """The cheaper of a block's sites alone, if both are there and either may go."""
    if "site" in geometry.frozen(block) or not (dims.has_attention and dims.has_ffn):
        return dims
    alone = [replace(dims, ffn=0), replace(dims, heads=0, qk=0, vo=0)]
    return min(alone, key=lambda d: budget.cost([d], geometry, [block]))
