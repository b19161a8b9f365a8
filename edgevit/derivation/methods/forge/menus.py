"""Every way to make a block, with what it costs in the budget's quantity and what it is predicted to lose."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.knapsack import BlockMenu, Choice
from edgevit.derivation.allocate.menus import attention_menu, ffn_menu
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.allocate.prices import DECIMALS
from edgevit.derivation.methods.forge.curves import BlockCurves
from edgevit.network.anatomy import Axis, BlockDims
from edgevit.network.cost import Geometry


@dataclass(frozen=True)
class Goes:
    """What of a block may go."""

    heads: bool
    block: bool
    sites: bool


@dataclass(frozen=True)
class ModuleCosts:
    """What one block's modules cost in the budget's quantity."""

    attention: Callable[[int, Tensor, Tensor], Tensor]  # of a number of heads with each pair of widths qk and vo
    ffn: Callable[[int], float]
    # What either costs more without the other: with both, what a block costs at any width is part of `attention`.
    attention_alone: float
    ffn_alone: float


def block_costs(budget: Budget, geometry: Geometry, block: int, passed: int = 0) -> ModuleCosts:
    """Of a block that passes on so many tokens; 0: all that it is given."""
    prices = budget.prices_at(geometry)
    if prices is not None:
        cut = prices.cut(passed)  # needs the block's attention

        def listed(heads: int, qk: Tensor, vo: Tensor) -> Tensor:
            pairs = zip(qk.tolist(), vo.tolist(), strict=True)
            costs = [prices.together(block) + prices.attention(block, heads, *pair) + cut for pair in pairs]
            return torch.tensor(costs, dtype=torch.float64)

        return ModuleCosts(listed, partial(prices.ffn, block), -prices.together(block), 0.0)
    # What a block costs whatever its widths goes with its attention: it goes with the block.
    itself = geometry.fixed(1, budget.linear) - geometry.fixed(0, budget.linear)
    of_ffn = geometry.site_fixed("ffn", budget.linear)

    def attention(heads: int, qk: Tensor, vo: Tensor) -> Tensor:
        unit = geometry.unit_costs(heads, budget.linear)
        return itself + unit.qk * qk + unit.vo * vo

    def ffn(width: int) -> float:
        return geometry.block_cost(BlockDims(0, 0, 0, width), budget.linear)

    return ModuleCosts(attention, ffn, -of_ffn, of_ffn)


def block_menu(
    dims: BlockDims,
    known: BlockCurves,
    policy: Policy,
    costs: ModuleCosts,
    goes: Goes,
    frozen: Collection[Axis],
    at_least: BlockDims | None = None,
) -> BlockMenu:
    """The choices for one block. With `at_least` it keeps those sites, and no size is below these."""
    how: dict[str, Any] = {"drop_heads": goes.heads, "frozen": frozen, "at_least": at_least}
    attention = attention_menu(dims, known.felt, policy, costs.attention, **how) if dims.has_attention else []
    least = 0 if at_least is None else at_least.ffn
    ffn = ffn_menu(known.ffn_losses, policy, costs.ffn, frozen, least) if dims.has_ffn else []
    dropped = float(known.block_loss)
    menu = BlockMenu(attention, ffn, dropped if goes.block and dropped < inf and "block" not in frozen else None)
    without_attention, without_ffn = known.site_losses.tolist()
    menu = as_it_stands(menu, costs)
    if attention and ffn and goes.sites and "site" not in frozen:
        menu = replace(
            menu,
            attention_alone=[_moved(choice, costs.attention_alone, without_ffn) for choice in attention],
            ffn_alone=[_moved(choice, costs.ffn_alone, without_attention) for choice in ffn],
        )
    return menu if at_least is None else _with_sites(menu, at_least)


def as_it_stands(menu: BlockMenu, costs: ModuleCosts) -> BlockMenu:
    """The menu of a block whose base has lost a site already, which loses nothing more by that; any other as it is."""
    if menu.attention and menu.ffn:
        return menu
    return replace(
        menu,
        attention_alone=[_moved(choice, costs.attention_alone, 0.0) for choice in menu.attention],
        ffn_alone=[_moved(choice, costs.ffn_alone, 0.0) for choice in menu.ffn],
    )


def _with_sites(menu: BlockMenu, dims: BlockDims) -> BlockMenu:
    """Only the choices that leave exactly the sites that these sizes have."""
    if not dims.has_ffn:
        return BlockMenu((), (), None, attention_alone=menu.attention_alone)
    if not dims.has_attention:
        return BlockMenu((), (), None, ffn_alone=menu.ffn_alone)
    return BlockMenu(menu.attention, menu.ffn, None)


def _moved(choice: Choice, cost: float, loss: float) -> Choice:
    """The same at another cost and with more loss: costs are added as decimal numbers."""
    return Choice(round(choice.cost + cost, DECIMALS), choice.loss + loss, choice.value)
