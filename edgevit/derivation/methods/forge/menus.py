"""The menu of a block: each way to shrink it, with its cost in the budget's quantity and its predicted loss."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf

from edgevit.derivation.allocate.knapsack import BlockMenu
from edgevit.derivation.allocate.menus import SiteCosts, attention_menu, ffn_menu, moved, with_single_site
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.methods.forge.curves import BlockCurves
from edgevit.network.anatomy import Axis, BlockDims


@dataclass(frozen=True)
class Removable:
    """The parts of a block that may be removed."""

    heads: bool
    block: bool
    sites: bool  # whether one of the block's sites may be removed without the other


def block_menu(
    dims: BlockDims,
    curves: BlockCurves,
    policy: Policy,
    costs: SiteCosts,
    removable: Removable,
    frozen: Collection[Axis],
    at_least: BlockDims | None = None,
) -> BlockMenu:
    """List the choices for one block. With `at_least` it keeps those sites, and no size falls below these."""
    attention, ffn = [], []
    if dims.has("attention"):
        attention = attention_menu(
            dims, curves.sensitivity, policy, costs.attention, drop_heads=removable.heads, frozen=frozen,
            at_least=at_least,
        )  # fmt: skip
    if dims.has("ffn"):
        ffn = ffn_menu(curves.ffn_losses, policy, costs.ffn, frozen, 0 if at_least is None else at_least.ffn)
    loss = float(curves.block_loss)
    menu = BlockMenu(attention, ffn, loss if removable.block and loss < inf and "block" not in frozen else None)
    without_attention, without_ffn = curves.site_losses.tolist()
    menu = with_single_site(menu, costs)
    if attention and ffn and removable.sites and "site" not in frozen:
        menu = replace(
            menu,
            attention_alone=[moved(choice, costs.attention_alone, without_ffn) for choice in attention],
            ffn_alone=[moved(choice, costs.ffn_alone, without_attention) for choice in ffn],
        )
    return menu if at_least is None else _with_sites(menu, at_least)


def _with_sites(menu: BlockMenu, dims: BlockDims) -> BlockMenu:
    """Keep only the choices with exactly the sites that these sizes have."""
    if not dims.has("ffn"):
        return BlockMenu((), (), None, attention_alone=menu.attention_alone)
    if not dims.has("attention"):
        return BlockMenu((), (), None, ffn_alone=menu.ffn_alone)
    return BlockMenu(menu.attention, menu.ffn, None)
