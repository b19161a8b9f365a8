"""Refuse a budget below the smallest network that a method can make, before anything is measured.

A method states what it may remove (`SearchSpace`). The cheapest network in that space follows from sizes alone. A
budget below it is refused; the message says what that minimum is made of, which axis ends it, and which options of the
method would allow less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.embedding import why_it_stays
from edgevit.derivation.allocate.menus import least_heads
from edgevit.derivation.allocate.policy import Policy, smallest
from edgevit.errors import BudgetError, OptionError
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.network import Network
from edgevit.records.model import HEAD_WIDTHS, SITE_AXES


@dataclass(frozen=True)
class SearchSpace:
    """What a method may remove from a network, with the options of its config."""

    widths: bool = True  # whether QK, VO and FFN widths may shrink, as far as the shape policy allows
    head_widths: bool = True  # if widths: whether QK and VO widths may shrink, and not only FFNs
    neurons: bool = True  # if widths: whether FFN widths may shrink
    heads: bool = False  # whether whole heads may be removed
    blocks: bool = False  # whether whole blocks may be removed, all but the first
    sites: bool = False  # whether the attention or the FFN of a block may be removed without the other
    embed: int = 0  # minimum width of the embedding; 0: the embedding keeps its width
    # Training images that determine the remaining directions of the embedding; 0: the method needs none.
    images: int = 0
    # Token schedules: how many tokens each block may pass on (0: all that reach it).
    token_schedules: Sequence[tuple[int, ...]] = ()
    # Options that would allow less, each with the value that does.
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> bool:
        """Whether some block may pass on fewer tokens."""
        return any(map(any, self.token_schedules))


@dataclass(frozen=True)
class Target:
    """A network to cut, the budget to meet and the widths that are allowed."""

    network: Network
    budget: Budget
    policy: Policy
    images: int  # number of images for training


@dataclass(frozen=True)
class Minimum:
    """The cheapest network in a search space."""

    cost: float
    blocks: tuple[BlockDims, ...]
    geometry: Geometry

    def breakdown(self, budget: Budget) -> str:
        """Say what the cost is made of: with a cost table, what each part takes.

        Without one, say which part (attention, FFN, or what lies outside the blocks) takes most of it, and at what size
        that part ends.
        """
        if budget.prices is not None:
            return budget.breakdown(self.blocks, self.geometry)
        geometry, quantity = self.geometry, budget.linear
        placed = geometry.placed(self.blocks)
        costs = {kind: sum(block.site_cost(kind, quantity) for block in placed) for kind in SITE_AXES}
        outside = geometry.outside(quantity)
        total, most = outside + sum(costs.values()), max(costs, key=lambda kind: costs[kind])
        if outside >= costs[most]:
            share = f"{outside / total:.0%} of it"
            why = "" if geometry.fixed_embed is None else f" ({geometry.fixed_embed})"
            return f"{share} lies outside the blocks, and the embedding ends at {geometry.embed} channels{why}"
        count = f"{len(self.blocks)} block{'s' * (len(self.blocks) > 1)}"
        smallest = next(dims for dims in self.blocks if dims.has(most))
        site = "attention" if most == "attention" else "the FFN"
        return f"{costs[most] / total:.0%} of it is {site}, which ends at {smallest.size_text(most)} in {count}"


def check_reachable(target: Target, owner: str, space_of: Callable[[Any], SearchSpace], config: Any) -> None:
    """Refuse a budget below the cheapest model that a method can make.

    Args:
        owner: the method's name.
        space_of: its search space with a config.

    Raises:
        BudgetError: with the minimum, what it is made of, and what would allow less.
    """
    budget, policy, space = target.budget, target.policy, space_of(config)
    minimum = cheapest(target, space)
    if budget.allows(minimum.cost):
        return
    options = ", ".join(
        f"{owner}.{name}={_option_text(value)}" for name, value in _wider_options(target, space_of, config, minimum)
    )
    hints = [f"let more go ({options})"] if options else []
    if not space.widths and budget.prices is None:
        hints.append("cut widths with another method first, and derive from its folder")
    if policy.name != "free":
        hints.append("try another --shape")
    if any(stage.restores for stage in target.network.geometry.stages):
        hints.append("derive from the network that this base was made of, whose embedding can be narrowed")
    whole = list(target.network.dims)
    breakdown = minimum.breakdown(budget)
    facts: dict[str, Any] = {"least": minimum.cost} | ({} if budget.prices is None else {"breakdown": breakdown})
    if minimum.cost >= budget.cost(whole, target.network.geometry):
        raise BudgetError(
            f"{budget.option} asks for less than the base, and {owner} may cut nothing of it in shape {policy.name!r} "
            f"with the options as they are; {_alternatives(hints) or 'give it as it is, with `edgevit base`'}",
            **facts,
        )
    raise BudgetError(
        f"{budget.option} leaves {budget.text(budget.limit)}, but {owner} in shape {policy.name!r} reaches no less "
        f"than {budget.text(minimum.cost)} (rate {1 - minimum.cost / budget.base:.3f}): {breakdown}; "
        f"{_alternatives(['raise the budget', *hints])}",
        **facts,
    )


def _option_text(value: Any) -> str:
    """Write an option's value as a user types it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _alternatives(hints: Sequence[str]) -> str:
    return hints[0] if len(hints) == 1 else f"{', '.join(hints[:-1])}, or {hints[-1]}" if hints else ""


def _wider_options(
    target: Target, space_of: Callable[[Any], SearchSpace], config: Any, minimum: Minimum
) -> list[tuple[str, Any]]:
    """The options by which the minimum would be cheaper, each by itself."""
    options = []
    for name, value in space_of(config).more.items():
        if getattr(config, name) == value:
            continue
        try:
            changed = replace(config, **{name: value})
        except OptionError:  # it requires another option, which is reported by itself
            continue
        if cheapest(target, space_of(changed)).cost < minimum.cost:
            options.append((name, value))
    return options


def cheapest(target: Target, space: SearchSpace) -> Minimum:
    """The cheapest network of a search space, over all of its token schedules."""
    network, budget = target.network, target.budget
    geometry, dims = network.geometry, list(network.dims)
    images = min(space.images, target.images)
    reason = why_it_stays(network, budget, images) if space.images else None
    if space.embed and reason is None:
        geometry = network.geometry_at(min(max(space.embed, budget.least_embed), geometry.embed))
    schedules = [dims]
    if budget.prices is None or len(budget.prices.token_counts) > 1:
        schedules += [
            [replace(d, tokens=n) for d, n in zip(dims, tokens, strict=True)] for tokens in space.token_schedules
        ]
    return min(
        (_with_schedule(target, space, geometry, scheduled) for scheduled in schedules),
        key=lambda minimum: minimum.cost,
    )


def _with_schedule(target: Target, space: SearchSpace, geometry: Geometry, dims: Sequence[BlockDims]) -> Minimum:
    """The cheapest network whose blocks pass on as many tokens as `dims` says."""
    budget, policy = target.budget, target.policy
    floors = budget.at_least or {}

    def needed(i: int, d: BlockDims) -> bool:
        if budget.at_least is not None and space.blocks:
            return i in floors
        return i == 0 or not space.blocks or "block" in geometry.frozen(i) or d.tokens > 0

    narrow = smallest(dims, policy, geometry, floors) if space.widths else dims
    blocks = []
    for i in (i for i, d in enumerate(dims) if needed(i, d)):
        may_drop = space.heads and "heads" not in geometry.frozen(i)
        block = replace(narrow[i], heads=least_heads(dims[i], policy, drop_heads=may_drop))
        fixed = [*(() if space.head_widths else HEAD_WIDTHS), *(() if space.neurons else SITE_AXES["ffn"])]
        block = block.with_sizes({axis: dims[i][axis] for axis in fixed})
        if (floor := floors.get(i)) is not None:
            block = _with_sites(replace(block, heads=max(block.heads, floor.heads)), floor)
        elif space.sites and not block.tokens:
            block = _cheaper_site(budget, geometry, i, block)
        blocks.append(block)
    return Minimum(budget.cost(blocks, geometry), tuple(blocks), geometry)


def _with_sites(dims: BlockDims, floor: BlockDims) -> BlockDims:
    """These sizes without the sites that `floor` lacks."""
    for kind in SITE_AXES:
        dims = dims if floor.has(kind) else dims.without(kind)
    return dims


def _cheaper_site(budget: Budget, geometry: Geometry, block: int, dims: BlockDims) -> BlockDims:
    """The cheaper of a block's two sites alone, where it has both and either may be removed."""
    if "site" in geometry.frozen(block) or len(dims.sites) < 2:
        return dims
    return min((dims.without(kind) for kind in ("ffn", "attention")), key=lambda d: budget.cost([d], geometry))
