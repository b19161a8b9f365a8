"""CORP (arXiv 2602.05243): leave units out, and make up for them by ridge regression on what stays; nothing trained.

1. Units are ranked by the energy of what they add, over calibration tokens: a neuron by E[h_j^2] |W_2,j|^2, a QK
   dimension by E[q_i^2] var(k_i), a VO dimension by var(v_i) |W_O,i|^2. The same share goes in every block.
2. Neurons that go are an affine function of those that stay, h_P = B h_S + c; W_2' = W_2,S + W_2,P B and c goes into
   the output bias. B is the ridge regression over the tokens.
3. QK dimensions that go add logits that are an affine function of what stays, folded into W_Q; VO dimensions as
   neurons, folded into W_O (`algebra.compensation` has the equations).

From its public description, which has no code. Where that is silent: how units are ranked, as above; that values are
cut beside queries and keys, as a budget of all MACs asks for; tokens of a pair are taken as independent for the logits.
Heads and the embedding stay. No label and no gradient is looked at. Training after it is for comparisons (`--steps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn

from edgevit.derivation import ranked
from edgevit.derivation.algebra.compensation import compensated, covariances, query_second_moment
from edgevit.derivation.algebra.least_squares import refit
from edgevit.derivation.allocate.ranking import Grouping, Units, rank, top
from edgevit.derivation.measure.importance import Scores, UnitScores
from edgevit.derivation.measure.statistics import BlockStatistics, calibrate, check_enough
from edgevit.derivation.method import Method, no_steps
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.reach import Asked
from edgevit.errors import OptionError
from edgevit.network.anatomy import Attention, Block, BlockDims, Ffn
from edgevit.network.families import family_of
from edgevit.train.distil import TeacherOptions

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(TeacherOptions):
    # How far scores are compared: nowhere, so that all is cut alike (uniform, the source), within a kind of unit over
    # all blocks (isomorphic), or all with all, by score per MAC (global).
    grouping: Grouping = "uniform"
    compensate: bool = True  # Whether what stays makes up for what goes; without it units are only left out.
    # How strongly the regressions are damped, in units of the mean square of what stays.
    ridge: float = 1e-3
    calibration_images: int = 256  # The number of training images from which all is computed.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("calibration_images")
        if not 0 < self.ridge < inf:
            raise OptionError(f"corp.ridge={self.ridge:g} is not a number above 0; try 1e-3")


def check_options(asked: Asked, config: Config) -> None:
    check_enough(config.calibration_images, asked.images, asked.network, "corp.calibration_images")


def energies(block: Block, known: BlockStatistics) -> UnitScores:
    """What the units of one block add, over the tokens of its statistics."""
    qk = vo = torch.empty(0, 0, dtype=torch.float64)
    neurons = torch.empty(0, dtype=torch.float64)
    if (attention := block.attention) is not None:
        assert known.moment is not None
        queries = query_second_moment(attention, known.moment).diagonal(dim1=1, dim2=2)[:, :-1]
        keys, values = (covariances(w, known.moment).diagonal(dim1=1, dim2=2) for w in (attention.wk, attention.wv))
        qk = (queries * keys).cpu()
        vo = (values * attention.wo.detach().double().square().sum(1)).cpu()
    if block.ffn is not None:
        assert known.hidden is not None
        neurons = known.hidden.diagonal().cpu() * block.ffn.w2.detach().double().square().sum(0).cpu()
    return UnitScores(qk, vo, vo.sum(1), neurons)


@torch.no_grad()
def _plan(problem: Problem, config: Config, network: nn.Module, statistics: list[BlockStatistics]) -> Plan:
    family = family_of(network)
    blocks, geometry = family.read(network), family.geometry(network)
    of_blocks = [energies(block, known) for block, known in zip(blocks, statistics, strict=True)]
    scores = Scores(of_blocks, torch.ones(geometry.embed, dtype=torch.float64))
    dims, units = [block.dims for block in blocks], Units(config.grouping, "widths", False)
    chosen = rank(scores, dims, lambda _: geometry, geometry.embed, problem.budget, problem.policy, units)
    plans = []
    rows = zip(blocks, statistics, scores.blocks, chosen.heads, chosen.dims, strict=True)
    for i, (block, known, of, heads, new) in enumerate(rows):
        attention = None if block.attention is None else _attention(config, block.attention, known, of, heads, new)
        ffn = None if block.ffn is None else _ffn(config, block.ffn, known, top(of.ffn, new.ffn))
        plans.append(BlockPlan(i, attention, ffn, block.tokens, block.merged))
    return Plan(tuple(plans))


def _attention(
    config: Config, part: Attention, known: BlockStatistics, of: UnitScores, heads: tuple[int, ...], new: BlockDims
) -> AttentionPlan:
    qk, vo = top(of.qk, new.qk), top(of.vo, new.vo)
    assert known.moment is not None
    slim = compensated(part, qk, vo, known.moment, config.ridge) if config.compensate else part.keep(heads, qk, vo)
    return AttentionPlan(heads, new.qk, new.vo, weights=slim)


def _ffn(config: Config, part: Ffn, known: BlockStatistics, neurons: Tensor) -> FfnPlan:
    assert known.hidden is not None
    if config.compensate:
        return FfnPlan(neurons, weights=refit(part, neurons, known.hidden, known.mean, "compensate", config.ridge))
    return FfnPlan(neurons, weights=part.keep(neurons.to(part.w1.device)))


def derive(problem: Problem, config: Config) -> Derived:
    network, images = problem.network, problem.task.train.subset(config.calibration_images)
    with problem.stopwatch.stage("statistics"):
        network.to(problem.compute.device).eval()
        statistics = calibrate(network, images, problem.passes, factorisation="activations", hidden=True)
    with problem.stopwatch.stage("closed_form"):
        plan = _plan(problem, config, network, statistics)
    return ranked.finish(problem, config, plan)


METHOD = Method(Config, no_steps, derive, check_options=check_options, gentle=True, cuts_half_blocks=True)
