"""DC-ViT (CVPR 2024): remove the whole attention of a few blocks, and neurons of their FFNs at random.

Blocks are ranked by how much the answers change without their attention. The first k blocks lose it, and their FFNs
lose the same number of neurons, drawn at random. k is the least number that meets the budget; the FFNs are then as wide
as it allows. The network is trained after the cut.

Differences from the source: the description that this follows (Vulcan, Appendix I) does not give its measure of a
block, which is here the divergence KL(p || p without the block's attention) of the answers to calibration images, one
pass per block. The source trains features on few images; this uses the training that all methods share.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgevit.baselines.common import ranked
from edgevit.data.task import Split
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import Policy, limits
from edgevit.derivation.feasibility import SearchSpace
from edgevit.derivation.measure.divergence import divergence, network_outputs
from edgevit.derivation.method import Method
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.derivation.problem import Derived, Problem
from edgevit.errors import BudgetError
from edgevit.network.anatomy import Block, BlockDims, check_all_pass
from edgevit.network.cost import Geometry
from edgevit.network.network import Network
from edgevit.numbers import COUNT, check_number
from edgevit.train.passes import Passes

NEEDS_LABELS = False


@dataclass(frozen=True)
class Config:
    calibration_images: int = 128  # The number of training images that rank the blocks.

    def __post_init__(self) -> None:
        check_number("dcvit.calibration_images", self.calibration_images, COUNT)


def search_space(network: Network, config: Config, policy: Policy) -> SearchSpace:
    """Say what the method may remove from a network."""
    return SearchSpace(head_widths=False, sites=True)


def losses(network: Network, images: Split, passes: Passes) -> list[float]:
    """Measure how much the answers change without each block's attention, in nats per image, by one pass per block."""
    original, losses_by_block = network_outputs(network, images, passes), []
    for attention, _ in network.layers:
        if attention is None:
            losses_by_block.append(0.0)  # the block has none, and is cut first
            continue
        # The last module before the addition to the tokens: a norm after the attention is removed with it.
        *_, last = attention.output, *attention.after
        hook = last.register_forward_hook(lambda _, __, out: torch.zeros_like(out))
        try:
            losses_by_block.append(divergence(network.output, original, network_outputs(network, images, passes)))
        finally:
            hook.remove()
    return losses_by_block


def choose_blocks(
    dims: Sequence[BlockDims], order: Sequence[int], geometry: Geometry, budget: Budget, policy: Policy
) -> list[BlockDims]:
    """Cut as few blocks as the budget allows, in the given order, with FFNs of one width.

    Raises:
        BudgetError: cutting all blocks does not meet the budget.
    """
    minimum = budget.at_least or {}
    removable = [
        i
        for i in order
        if "site" not in geometry.frozen(i)
        and dims[i].has("ffn")
        and not (i in minimum and minimum[i].has("attention"))
    ]
    ends = {i: limits(dims[i], policy, geometry.frozen(i), minimum.get(i))["ffn"] for i in removable}
    widths = range(0, max((high for _, high in ends.values()), default=0) + 1, policy.step("ffn"))

    def cut(count: int, width: int) -> list[BlockDims]:
        """Remove the attention of the first `count` blocks, and give their FFNs this width where they allow it."""
        chosen = list(dims)
        for i in removable[:count]:
            low, high = ends[i]
            chosen[i] = replace(dims[i].without("attention"), ffn=min(max(width, low), high))
        return chosen

    def fits(count: int, width: int) -> bool:
        return budget.allows(budget.cost(cut(count, width), geometry))

    for count in range(1, len(removable) + 1):
        if fits(count, 0):
            too_wide = bisect(widths, False, key=lambda width: not fits(count, width))  # called at once
            return cut(count, widths[too_wide - 1])
    least = budget.cost(cut(len(removable), 0), geometry)
    raise BudgetError(
        f"{budget.option} leaves {budget.text(budget.limit)}, but dcvit in shape {policy.name!r} reaches no less than "
        f"{budget.text(least)}, with the attention of {len(removable)} of {len(dims)} blocks gone; raise the "
        "budget, or try another method",
        least=least,
    )


def plan_of(blocks: Sequence[Block], chosen: Sequence[BlockDims], seed: int) -> Plan:
    """Plan these sizes, with neurons drawn at random; a remaining attention keeps its weights."""
    generator, plans = torch.Generator().manual_seed(seed), []
    for i, (block, new) in enumerate(zip(blocks, chosen, strict=True)):
        attention = AttentionPlan.of(new, weights=block.attention) if new.has("attention") else None
        neurons: Tensor = torch.randperm(block.dims.ffn, generator=generator)[: new.ffn].sort().values
        plans.append(BlockPlan(i, attention, FfnPlan(neurons) if new.has("ffn") else None))
    return Plan(tuple(plans))


def derive(problem: Problem, config: Config) -> Derived:
    network = problem.network
    blocks = network.read()
    check_all_pass(blocks, "dcvit")
    images = problem.task.train.subset(config.calibration_images)
    with problem.stopwatch.stage("ranking"):
        lost = losses(network, images, problem.passes)
    order = sorted(range(len(lost)), key=lambda i: lost[i])
    dims = [block.dims for block in blocks]
    with problem.stopwatch.stage("allocation"):
        chosen = choose_blocks(dims, order, network.geometry, problem.budget, problem.policy)
    plan = plan_of(blocks, chosen, problem.training.seed)
    cut = [i for i, (old, new) in enumerate(zip(dims, chosen, strict=True)) if new != old]
    return ranked.finish(problem, plan, lost_without_attention_nats=lost, blocks_cut=cut)


METHOD = Method(
    Config, ranked.default_steps, derive, search_space=search_space, needs_all_tokens=True, cuts_half_blocks=True
)
