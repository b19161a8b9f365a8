"""List the cost and the predicted loss of every width of every module: the menus for `knapsack.allocate`.

Losses are in nats per image (`measure.sensitivity`). For QK and VO it is the sum over the removed directions, in the
order of the factorisation. For FFNs it is half the trace of the Gauss-Newton metric times the error's second moment, in
the order of optimal brain surgeon's elimination; since errors of different tokens are not independent, the curve is
scaled to the loss that is measured at one width. A removed head loses its whole output, except its mean if an output
bias replaces that, as for VO.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.knapsack import BlockMenu, Choice
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.allocate.prices import DECIMALS
from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.derivation.plan import AttentionPlan
from edgevit.network.anatomy import Axis, BlockDims, SizeAxis
from edgevit.network.cost import Geometry, PlacedBlock
from edgevit.records.model import SITE_AXES


@dataclass(frozen=True)
class SiteCosts:
    """The costs of one block's sites in the budget's quantity; the block's fixed cost is part of `attention`."""

    # Costs of an attention from its number of heads and each pair of QK and VO widths.
    attention: Callable[[int, Tensor, Tensor], Tensor]
    ffn: Callable[[int], float]  # cost of an FFN from its number of neurons
    # The additional cost of a site without the other.
    attention_alone: float
    ffn_alone: float


def site_costs(budget: Budget, geometry: Geometry, block: PlacedBlock) -> SiteCosts:
    """Return the costs of a block's sites at other sizes; it passes on as many tokens as its own sizes say."""
    prices = budget.prices_at(geometry, block.dims.stage, block.tokens)
    if prices is not None:
        cut = prices.cut(block.dims.tokens)  # the ranking of tokens, which needs the block's attention

        def listed(heads: int, qk: Tensor, vo: Tensor) -> Tensor:
            pairs = zip(qk.tolist(), vo.tolist(), strict=True)
            costs = [prices.together + prices.attention(heads, *pair) + cut for pair in pairs]
            return torch.tensor(costs, dtype=torch.float64)

        return SiteCosts(listed, prices.ffn, -prices.together, 0.0)
    quantity = budget.linear
    of_attention, of_ffn = (block.fixed_cost(kind, quantity) for kind in SITE_AXES)

    def attention(heads: int, qk: Tensor, vo: Tensor) -> Tensor:
        sized = replace(block, dims=replace(block.dims, heads=heads))
        units = (sized.unit_cost(axis, quantity) * width for axis, width in (("qk", qk), ("vo", vo)))
        return sum(units, torch.tensor(of_attention + of_ffn))

    unit = block.unit_cost("ffn", quantity)
    return SiteCosts(attention, lambda width: unit * width, -of_ffn, of_ffn)


def tails(losses: Tensor) -> Tensor:
    """Sum losses of single directions [H, w] to losses at each width [H, w + 1]: those of all later directions."""
    sums = losses.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([sums, torch.zeros_like(sums[:, :1])], dim=1)


def widths(width: int, minimum: int, step: int) -> list[int]:
    """List the widths that a policy allows: multiples of the step from the minimum, or if there are none the base's."""
    return list(range(minimum, width + 1, step)) or [width]


def least_heads(dims: BlockDims, policy: Policy, *, drop_heads: bool) -> int:
    """Return the least number of heads of a block."""
    return min(policy.least_heads, dims.heads) if drop_heads else dims.heads


def attention_menu(
    dims: BlockDims,
    sensitivity: Sensitivity,
    policy: Policy,
    cost: Callable[[int, Tensor, Tensor], Tensor],
    *,
    drop_heads: bool,
    frozen: Collection[Axis] = (),
    at_least: BlockDims | None = None,
) -> list[Choice]:
    """List the Pareto-optimal sizes of an attention, in cost and loss, the cheapest first.

    Args:
        cost: computes the costs [P] of a number of heads with all pairs of widths qk [P] and vo [P].
        drop_heads: whether whole heads may be removed.
        frozen: axes that may not change; axes that the policy ties to them may not either.
        at_least: the minimum sizes.
    """
    qk_tails, vo_tails = tails(sensitivity.qk), tails(sensitivity.vo)
    # `saved` [H, q + 1, v + 1]: the loss that head h saves at widths q and v, compared with its removal.
    # It is sorted over the heads: at any widths, the heads that save most are kept.
    narrow_loss = qk_tails.unsqueeze(2) + vo_tails.unsqueeze(1)
    saved, heads_first = (sensitivity.heads[:, None, None] - narrow_loss).sort(dim=0, descending=True)
    least = least_heads(dims, policy, drop_heads=drop_heads and "heads" not in frozen)
    loss_without = sensitivity.heads.sum() - saved.cumsum(0)
    pairs = _head_widths(dims, policy, frozen)
    if at_least is not None:
        least = max(least, at_least.heads)
        pairs = [(q, v) for q, v in pairs if q >= at_least.qk and v >= at_least.vo]
    qk, vo = torch.tensor(pairs).unbind(1)
    counts = range(least, dims.heads + 1)
    costs = torch.cat([cost(count, qk, vo) for count in counts])
    losses = torch.cat([loss_without[count - 1, qk, vo].clamp_min(0) for count in counts])
    menu = []
    for at in _front(costs, losses).tolist():
        count, (q, v) = counts[at // len(pairs)], pairs[at % len(pairs)]
        heads = tuple(sorted(heads_first[:count, q, v].tolist()))
        menu.append(Choice(costs[at].item(), losses[at].item(), AttentionPlan(heads, (q, v))))
    return menu


def _head_widths(dims: BlockDims, policy: Policy, frozen: Collection[Axis]) -> list[tuple[int, int]]:
    """List the pairs of QK and VO width that the policy allows."""

    def allowed(axis: SizeAxis, width: int) -> list[int]:
        return [width] if axis in frozen else widths(width, policy.minimum(axis), policy.step(axis))

    if policy.tied:
        if any(axis in frozen for axis in policy.tied):
            return [(dims.qk, dims.vo)]
        return [(w, w) for w in allowed("qk", min(dims.qk, dims.vo))]
    return [(q, v) for q in allowed("qk", dims.qk) for v in allowed("vo", dims.vo)]


def _front(costs: Tensor, losses: Tensor) -> Tensor:
    """Find the indices of the Pareto front, the cheapest first. Shapes: [C] and [C]."""
    by_loss = losses.argsort(stable=True)
    order = by_loss[costs[by_loss].argsort(stable=True)]
    least = losses[order].cummin(0).values
    better = torch.ones(len(order), dtype=torch.bool)
    better[1:] = losses[order][1:] < least[:-1]
    return order[better]


def ffn_menu(
    losses: Tensor, policy: Policy, cost: Callable[[int], float], frozen: Collection[Axis] = (), at_least: int = 0
) -> list[Choice]:
    """List all widths of one FFN. Shape: losses [e], the loss that each removal adds, in the order of removal."""
    at_width = tails(losses.flip(0).unsqueeze(0))[0]
    count = len(losses)
    allowed = [count] if "ffn" in frozen else widths(count, policy.minimum("ffn"), policy.step("ffn"))
    return [Choice(cost(w), max(float(at_width[w]), 0.0), w) for w in allowed if w >= at_least]


def with_single_site(menu: BlockMenu, costs: SiteCosts) -> BlockMenu:
    """Let a block that has one site only, which loses nothing by the other, keep that site; return others unchanged."""
    if menu.attention and menu.ffn:
        return menu
    return replace(
        menu,
        attention_alone=[moved(choice, costs.attention_alone, 0.0) for choice in menu.attention],
        ffn_alone=[moved(choice, costs.ffn_alone, 0.0) for choice in menu.ffn],
    )


def moved(choice: Choice, cost: float, loss: float) -> Choice:
    """Return a choice with an additional cost, added as decimal numbers, and an additional loss."""
    return Choice(round(choice.cost + cost, DECIMALS), choice.loss + loss, choice.value)
