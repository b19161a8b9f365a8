"""The menu of a block: each way to shrink it, with its cost in the budget's quantity and its predicted loss."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import inf

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
class Removable:
    """The parts of a block that may be removed."""

    heads: bool
    block: bool
    sites: bool  # one site alone


@dataclass(frozen=True)
class ModuleCosts:
    """The costs of one block's modules in the budget's quantity."""

    attention: Callable[[int, Tensor, Tensor], Tensor]  # of a number of heads with each pair of widths qk and vo
    ffn: Callable[[int], float]
    # The additional cost of a site without the other: with both, the block's fixed cost is part of `attention`.
    attention_alone: float
    ffn_alone: float


def block_costs(budget: Budget, geometry: Geometry, block: int, passed: int = 0) -> ModuleCosts:
    """Return the costs of a block that passes on this number of tokens; 0: all that it gets."""
    prices = budget.prices_at(geometry)
    if prices is not None:
        cut = prices.cut(passed)  # the ranking of tokens, which needs the block's attention

        def listed(heads: int, qk: Tensor, vo: Tensor) -> Tensor:
            pairs = zip(qk.tolist(), vo.tolist(), strict=True)
            costs = [prices.together + prices.attention(heads, *pair) + cut for pair in pairs]
            return torch.tensor(costs, dtype=torch.float64)

        return ModuleCosts(listed, prices.ffn, -prices.together, 0.0)
    # The fixed cost of a block is counted with its attention.
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
    curves: BlockCurves,
    policy: Policy,
    costs: ModuleCosts,
    removable: Removable,
    frozen: Collection[Axis],
    at_least: BlockDims | None = None,
) -> BlockMenu:
    """List the choices for one block. With `at_least` it keeps those sites, and no size falls below these."""
    attention, ffn = [], []
    if dims.has_attention:
        attention = attention_menu(
            dims, curves.sensitivity, policy, costs.attention, drop_heads=removable.heads, frozen=frozen,
            at_least=at_least,
        )  # fmt: skip
    if dims.has_ffn:
        ffn = ffn_menu(curves.ffn_losses, policy, costs.ffn, frozen, 0 if at_least is None else at_least.ffn)
    loss = float(curves.block_loss)
    menu = BlockMenu(attention, ffn, loss if removable.block and loss < inf and "block" not in frozen else None)
    without_attention, without_ffn = curves.site_losses.tolist()
    menu = with_single_site(menu, costs)
    if attention and ffn and removable.sites and "site" not in frozen:
        menu = replace(
            menu,
            attention_alone=[_moved(choice, costs.attention_alone, without_ffn) for choice in attention],
            ffn_alone=[_moved(choice, costs.ffn_alone, without_attention) for choice in ffn],
        )
    return menu if at_least is None else _with_sites(menu, at_least)


def with_single_site(menu: BlockMenu, costs: ModuleCosts) -> BlockMenu:
    """Let a block that has one site only, which loses nothing by the other, keep that site; return others unchanged."""
    if menu.attention and menu.ffn:
        return menu
    return replace(
        menu,
        attention_alone=[_moved(choice, costs.attention_alone, 0.0) for choice in menu.attention],
        ffn_alone=[_moved(choice, costs.ffn_alone, 0.0) for choice in menu.ffn],
    )


def _with_sites(menu: BlockMenu, dims: BlockDims) -> BlockMenu:
    """Keep only the choices with exactly the sites that these sizes have."""
    if not dims.has_ffn:
        return BlockMenu((), (), None, attention_alone=menu.attention_alone)
    if not dims.has_attention:
        return BlockMenu((), (), None, ffn_alone=menu.ffn_alone)
    return BlockMenu(menu.attention, menu.ffn, None)


def _moved(choice: Choice, cost: float, loss: float) -> Choice:
    """Return a choice with an additional cost, added as decimal numbers, and an additional loss."""
    return Choice(round(choice.cost + cost, DECIMALS), choice.loss + loss, choice.value)
