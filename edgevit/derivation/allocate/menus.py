"""What every width of every module costs and what it is predicted to lose: the menus that `knapsack.allocate` reads.

Losses are in nats per image (`measure.sensitivity`). QK and VO: the sum over the directions that go, which are ordered
by the factorisation. FFN: half the trace of the Gauss-Newton metric times the error's second moment, along the order of
optimal brain surgeon's elimination; as errors at different tokens are not independent, the curve is scaled to the loss
measured at one width. Heads that go lose what their whole output is worth, but for its mean where an output bias takes
that over, as with VO.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from edgevit.derivation.allocate.knapsack import Choice
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.network.anatomy import Axis, BlockDims


@dataclass(frozen=True)
class Heads:
    """An attention as it could be: which heads stay, and how wide all of them are."""

    heads: tuple[int, ...]
    qk: int
    vo: int


def tails(losses: Tensor) -> Tensor:
    """[H, w] losses of single directions to [H, w + 1] losses at each width: all that come after it."""
    sums = losses.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([sums, torch.zeros_like(sums[:, :1])], dim=1)


def widths(width: int, minimum: int, step: int) -> list[int]:
    """The widths that a policy allows: multiples of the step from the minimum, and the base's own if none is left."""
    return list(range(minimum, width + 1, step)) or [width]


def least_heads(dims: BlockDims, policy: Policy, *, drop_heads: bool) -> int:
    """How many heads of a block stay at the least."""
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
    """The ways to narrow the attention of one block that no other beats in both cost and loss, the cheapest first.

    Args:
        cost: of a number of heads with all pairs of widths qk [P] and vo [P]: [P].
        drop_heads: whole heads may go.
        frozen: axes that stay as they are, and with them what the policy ties to them.
        at_least: sizes below which none may be.
    """
    qk_tails, vo_tails = tails(sensitivity.qk), tails(sensitivity.vo)
    # `saved` [H, q + 1, v + 1]: what the loss of head h falls by if it stays, q and v wide, instead of being dropped.
    # Sorted over the heads: at any widths, the heads that save most stay and the others are dropped.
    kept_loss = qk_tails.unsqueeze(2) + vo_tails.unsqueeze(1)
    saved, heads_first = (sensitivity.heads[:, None, None] - kept_loss).sort(dim=0, descending=True)
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
        stay = tuple(sorted(heads_first[:count, q, v].tolist()))
        menu.append(Choice(costs[at].item(), losses[at].item(), Heads(stay, q, v)))
    return menu


def _head_widths(dims: BlockDims, policy: Policy, frozen: Collection[Axis]) -> list[tuple[int, int]]:
    """The pairs of QK and VO width that may be chosen."""

    def allowed(width: int, is_frozen: bool) -> list[int]:
        return [width] if is_frozen else widths(width, policy.head_minimum, policy.head_step)

    fixed = {"qk", "vo"} & set(frozen)
    if policy.equal:
        return [(dims.qk, dims.vo)] if fixed else [(w, w) for w in allowed(min(dims.qk, dims.vo), False)]
    return [(q, v) for q in allowed(dims.qk, "qk" in fixed) for v in allowed(dims.vo, "vo" in fixed)]


def _front(costs: Tensor, losses: Tensor) -> Tensor:
    """Indices of those that none beats or equals in both, the cheapest first. Shapes: [C] and [C]."""
    by_loss = losses.argsort(stable=True)
    order = by_loss[costs[by_loss].argsort(stable=True)]
    least = losses[order].cummin(0).values
    better = torch.ones(len(order), dtype=torch.bool)
    better[1:] = losses[order][1:] < least[:-1]
    return order[better]


def ffn_menu(
    losses: Tensor, policy: Policy, cost: Callable[[int], float], frozen: Collection[Axis] = (), at_least: int = 0
) -> list[Choice]:
    """All widths of one FFN. Shape: losses [e], what each neuron adds as it goes, the first to go first."""
    at_width = tails(losses.flip(0).unsqueeze(0))[0]
    count = len(losses)
    allowed = [count] if "neurons" in frozen else widths(count, policy.ffn_minimum, policy.ffn_step)
    return [Choice(cost(w), max(float(at_width[w]), 0.0), w) for w in allowed if w >= at_least]
