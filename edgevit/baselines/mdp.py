"""MDP (CVPR 2025): choose embedding, heads, QK, VO and FFN widths together, for the most importance in the budget.

The score of a unit is the squared change of the loss without it, as for `nvit`: (sum of w dL/dw)^2 over its weights,
the mean over groups of images. Over the embedding width d and each block's heads H, widths q and v, and FFN width e,

    max  sum of the importance of all units that stay    subject to    cost(d, H, q, v, e) <= budget,

a mixed-integer program that is not linear, since costs multiply d by all others. It is solved by one knapsack over all
blocks for each width of the embedding, of which the best is chosen. At most eleven widths are tried, about a twelfth of
the embedding apart (`derivation.embedding`). For each, the choice is exact if all costs are whole numbers of at most
20,000 bins. Else a bin is a 20,000th of the budget beyond the cheapest sizes, and the choice loses no more than the
best one within a budget that is one bin per attention and FFN lower (`derivation.allocate.knapsack`).

The source counts latency by a table measured beforehand, as `--ms` does; here MACs and parameters can be counted, too.
Its convolutional form drops whole blocks; here every block is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores, squared_changes
from edgevit.baselines.common.ranked import Ranked
from edgevit.derivation.allocate import embedding
from edgevit.derivation.allocate.knapsack import BlockMenu, Choice, allocate
from edgevit.derivation.allocate.menus import attention_menu, ffn_menu, site_costs, with_single_site
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace
from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.derivation.method import Method
from edgevit.derivation.plan import AttentionPlan
from edgevit.derivation.problem import Derived, Problem
from edgevit.network.anatomy import BlockDims, check_all_pass
from edgevit.network.cost import Geometry, PlacedBlock
from edgevit.network.network import Network
from edgevit.numbers import COUNT, check_number
from edgevit.records.model import HEAD_WIDTHS


@dataclass(frozen=True)
class Config:
    drop_heads: bool = True  # Whether whole heads may be removed; the remaining heads of a block have one width.
    cut_embedding: bool = True  # Whether channels of the embedding are removed, too.
    calibration_images: int = 256  # The number of training images whose loss is differentiated.

    def __post_init__(self) -> None:
        check_number("mdp.calibration_images", self.calibration_images, COUNT)


def search_space(network: Network, config: Config, policy: Policy) -> SearchSpace:
    """Say what the method may remove from a network."""
    narrows = config.cut_embedding and network.geometry.fixed_channels is None
    embed = embedding.narrowest(network, policy) if narrows else 0
    return SearchSpace(heads=config.drop_heads, embed=embed, more={"cut_embedding": True, "drop_heads": True})


def _menu(
    problem: Problem, config: Config, of: UnitScores, placed: PlacedBlock, geometry: Geometry, block: int
) -> BlockMenu:
    """List every size of a block, with the importance that it loses."""
    none = torch.empty(0)
    of_queries, of_values = (of[axis].sort(dim=-1, descending=True).values for axis in HEAD_WIDTHS)
    lost = Sensitivity(of_queries, of_values, of["heads"], none, none, none)
    costs, frozen, policy = site_costs(problem.budget, geometry, placed), geometry.frozen(block), problem.policy
    dims = placed.dims
    minimum = (problem.budget.at_least or {}).get(block)
    attention, neurons = list[Choice](), list[Choice]()
    if dims.has("attention"):
        attention = attention_menu(
            dims, lost, policy, costs.attention, drop_heads=config.drop_heads, frozen=frozen, at_least=minimum
        )
    if dims.has("ffn"):
        neurons = ffn_menu(of["ffn"].sort().values, policy, costs.ffn, frozen, 0 if minimum is None else minimum.ffn)
    return with_single_site(BlockMenu(attention, neurons, None), costs)


def choose_sizes(problem: Problem, config: Config, scores: Scores) -> tuple[Ranked, float]:
    """Choose the sizes that keep the most importance within the budget; also return the importance that is lost.

    Raises:
        BudgetError: the budget cannot be met.
    """
    network, budget = problem.network, problem.budget
    dims, whole = list(network.dims), network.geometry
    narrow = config.cut_embedding and whole.fixed_channels is None
    least_first = scores.embed.sort().values

    def solve(width: int) -> tuple[Sequence[tuple[Choice | None, Choice | None]], float]:
        geometry = network.geometry_at(width)
        menus = [
            _menu(problem, config, of, placed, geometry, i)
            for i, (of, placed) in enumerate(zip(scores.blocks, geometry.placed(dims), strict=True))
        ]
        prices = budget.prices_at(geometry)
        choices = allocate(menus, budget.limit - (geometry.outside(budget.linear) if prices is None else prices.fixed))
        pairs = [pair for pair in choices if pair is not None]
        return pairs, sum(sum(choice.loss for choice in pair if choice is not None) for pair in pairs)

    least = budget.least_embed if narrow else whole.embed
    widths = embedding.embed_widths(network, problem.policy, least=least)

    @cache
    def embedding_loss(width: int) -> float:
        return float(least_first[: whole.embed - width].sum())

    candidate = embedding.climb(widths, solve, embedding_loss)[0]
    sizes, heads = [], list[tuple[int, ...]]()
    for attention, ffn in candidate.shape:
        attended: AttentionPlan = AttentionPlan((), (0, 0)) if attention is None else attention.value
        sizes.append(BlockDims(0, 0, 0, 0 if ffn is None else ffn.value).with_sizes(attended.sizes))
        heads.append(attended.heads)
    return Ranked(heads, sizes, candidate.width), candidate.nats


def derive(problem: Problem, config: Config) -> Derived:
    network = problem.network.to(problem.compute.device).eval()
    check_all_pass(network.read(), "mdp")
    images = problem.task.train.subset(config.calibration_images)
    with problem.stopwatch.stage("gradients"):
        scores = squared_changes(network, images, problem.passes)
    with problem.stopwatch.stage("allocation"):
        chosen, lost = choose_sizes(problem, config, scores)
    return ranked.finish(problem, ranked.plan_of(network, scores, chosen), importance_given_up=lost)


METHOD = Method(
    Config, ranked.default_steps, derive, search_space=search_space, needs_all_tokens=True, cuts_half_blocks=True
)
