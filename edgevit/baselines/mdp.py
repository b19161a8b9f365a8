"""MDP (CVPR 2025): one choice of embedding, heads, QK, VO and FFN widths, the most importance within the budget.

A unit is worth the squared change of the loss without it, as for `nvit`: (sum of w dL/dw)^2 over its weights, the mean
over groups of images. Over the embedding width d and each block's heads H, widths q and v, and FFN width e,

    max  sum of the importance of all units that stay    subject to    cost(d, H, q, v, e) <= budget,

a mixed-integer program that is not linear, as costs multiply d by all others. Here it is solved width by width of the
embedding: for each a knapsack over all blocks, and the best of them is taken. Widths are those of a ladder of at most
eleven, about a twelfth of the embedding apart (`derivation.embedding`), and not every one. For each width on it the
choice is exact where all costs are whole numbers of at most 20,000 bins; else a bin is a 20,000th of what there is to
spend beyond the cheapest sizes, and the choice gives up no more than the best one within a budget that is one bin per
attention and FFN lower (`derivation.allocate.knapsack`).

The source counts latency by a table measured beforehand, as `--ms` does here; MACs and parameters are counted, too. It
drops whole blocks, too, in its convolutional form; here every block stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores, squared_changes
from edgevit.baselines.common.ranking import Ranked
from edgevit.derivation import embedding
from edgevit.derivation.allocate.knapsack import BlockMenu, Choice, allocate
from edgevit.derivation.allocate.menus import Heads, attention_menu, ffn_menu
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.derivation.method import Method
from edgevit.derivation.methods.forge.menus import as_it_stands, block_costs
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.reach import Cuts
from edgevit.network.anatomy import BlockDims, check_all_pass
from edgevit.network.cost import Geometry
from edgevit.network.families import family_of
from edgevit.train.distil import TeacherOptions

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(TeacherOptions):
    drop_heads: bool = True  # Whether whole heads may go; those of a block that stay have one width.
    cut_embedding: bool = True  # Whether channels of the embedding go, too.
    calibration_images: int = 256  # The number of training images whose loss is differentiated.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("calibration_images")


def cuts(network: nn.Module, config: Config, policy: Policy) -> Cuts:
    """What it may take away."""
    embed = embedding.narrowest(network, policy, 0, "mdp") if config.cut_embedding else 0
    return Cuts(heads=config.drop_heads, embed=embed, more={"cut_embedding": True, "drop_heads": True})


def _descending(scores: Tensor) -> Tensor:
    return scores.sort(dim=-1, descending=True).values


def _menu(
    problem: Problem, config: Config, of: UnitScores, dims: BlockDims, geometry: Geometry, block: int
) -> BlockMenu:
    """Every way to make a block, with the importance that it gives up."""
    none = torch.empty(0)
    lost = Sensitivity(_descending(of.qk), _descending(of.vo), of.heads, none, none, none)
    costs, frozen, policy = block_costs(problem.budget, geometry, block), geometry.frozen(block), problem.policy
    stays = (problem.budget.at_least or {}).get(block)
    attention, neurons = list[Choice](), list[Choice]()
    if dims.has_attention:
        attention = attention_menu(
            dims, lost, policy, costs.attention, drop_heads=config.drop_heads, frozen=frozen, at_least=stays
        )
    if dims.has_ffn:
        neurons = ffn_menu(of.ffn.sort().values, policy, costs.ffn, frozen, 0 if stays is None else stays.ffn)
    return as_it_stands(BlockMenu(attention, neurons, None), costs)


def best(problem: Problem, config: Config, scores: Scores) -> tuple[Ranked, float]:
    """The sizes that keep the most importance within the budget, and how much is given up.

    Raises:
        BudgetError: it is not within reach.
    """
    network, budget = problem.network, problem.budget
    family = family_of(network)
    dims, whole = [block.dims for block in family.read(network)], family.geometry(network)
    narrow = config.cut_embedding and whole.fixed_embed is None
    least_first = scores.embed.sort().values

    def solve(width: int) -> tuple[Sequence[tuple[Choice | None, Choice | None]], float]:
        geometry = embedding.geometry_at(network, width)
        tokens = geometry.reaching(dims)
        menus = [
            _menu(problem, config, of, d, geometry.at(n), i)
            for i, (of, d, n) in enumerate(zip(scores.blocks, dims, tokens, strict=True))
        ]
        prices = budget.prices_at(geometry)
        found = allocate(menus, budget.limit - (geometry.fixed(0, budget.linear) if prices is None else prices.fixed))
        pairs = [pair for pair in found if pair is not None]
        return pairs, sum(sum(choice.loss for choice in pair if choice is not None) for pair in pairs)

    least = budget.least_embed if narrow else whole.embed
    widths = embedding.embed_widths(network, problem.policy, least=least)

    @cache
    def given_up(width: int) -> float:
        return float(least_first[: whole.embed - width].sum())

    rung = embedding.climb(widths, solve, given_up)[0]
    kept: list[Heads] = [Heads((), 0, 0) if attention is None else attention.value for attention, _ in rung.shape]
    neurons = [0 if ffn is None else ffn.value for _, ffn in rung.shape]
    sizes = [BlockDims(len(heads.heads), heads.qk, heads.vo, n) for heads, n in zip(kept, neurons, strict=True)]
    return Ranked([heads.heads for heads in kept], sizes, rung.width), rung.nats


def derive(problem: Problem, config: Config) -> Derived:
    network = problem.network.to(problem.compute.device).eval()
    check_all_pass(family_of(network).read(network), "mdp")
    images = problem.task.train.subset(config.calibration_images)
    with problem.stopwatch.stage("gradients"):
        scores = squared_changes(network, images, problem.columns, problem.passes)
    with problem.stopwatch.stage("allocation"):
        chosen, lost = best(problem, config, scores)
    return ranked.finish(problem, config, ranked.plan_of(network, scores, chosen), importance_given_up=lost)


METHOD = Method(Config, ranked.default_steps, derive, cuts=cuts, needs_all_tokens=True, cuts_half_blocks=True)
