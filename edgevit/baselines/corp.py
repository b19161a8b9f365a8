"""CORP (arXiv 2602.05243): leave units out, and make up for them by ridge regression on what stays; nothing trained.

1. Units are ranked by the energy of what they add, over calibration tokens: a neuron by E[h_j^2] |W_2,j|^2, a QK
   dimension by E[q_i^2] var(k_i), a VO dimension by var(v_i) |W_O,i|^2. The same share goes in every block.
2. Neurons that go are an affine function of those that stay, h_P = B h_S + c; W_2' = W_2,S + W_2,P B and c goes into
   the output bias. B is the ridge regression over the tokens.
3. Attention in the same way. With S the dimensions that stay, P those that go, and x the attention's normalised input:

    values   v_P = B v_S + c,  B = C_PS (C_SS + lift)^-1 of their covariance C;  W_O' = W_O,S + W_O,P B,  c into b_O
    logits   q_P . k_P = [q_S 1] M k_S,  where M solves  A M K_SS + lift M = A_P K_PS  with A the second moment of
             [q_S 1], A_P that of [q_S 1] with q_P, and K the covariance of keys;  W_Q' = (1 + M)^T W_Q,S

   Keys are centred on their mean, since softmax ignores what all keys of a query share. The query and key of a pair of
   tokens are assumed independent, so that both moments follow from the moment of the inputs. A lift is `ridge` times
   the mean square of the term that it is added to.

From its public description, which has no code. Where that is silent: how units are ranked, as above; that values are
cut as well as queries and keys, since the budget counts all MACs; that tokens of a pair are independent. Heads and the
embedding stay. No label and no gradient is looked at. Training after it is for comparisons (`--steps`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor, nn

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores
from edgevit.baselines.common.ranking import Grouping, Units, rank, top
from edgevit.derivation.algebra.factorise import one_thread
from edgevit.derivation.algebra.least_squares import refit
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
_TINY = torch.finfo(torch.float64).tiny


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


# -- attention that makes up for the dimensions it loses --------------------------------------------------------------


def rest(kept: Tensor, width: int) -> Tensor:
    """The indices below `width` that are not kept, ascending. Shape: kept [r] int64."""
    stays = torch.zeros(width, dtype=torch.bool)
    stays[kept.cpu()] = True
    return (~stays).nonzero().flatten()


def query_second_moment(part: Attention, moment: Tensor) -> Tensor:
    """E[[q 1][q 1]^T] per head over the tokens of the moment of [x 1], [d + 1, d + 1]: [H, q + 1, q + 1] in fp64."""
    wq = part.wq.detach().double()
    bias = wq.new_zeros(part.heads, part.qk) if part.bq is None else part.bq.detach().double()
    affine = torch.cat([wq, bias.unsqueeze(-1)], dim=-1)
    one = torch.zeros(part.heads, 1, affine.shape[-1], dtype=affine.dtype, device=affine.device)
    one[..., -1] = 1
    affine = torch.cat([affine, one], dim=1)
    return affine @ moment.to(affine) @ affine.mT


def covariances(weight: Tensor, moment: Tensor) -> Tensor:
    """Covariance of W x per head over the tokens of the moment: [H, w, w] in fp64, from W [H, w, d]."""
    w, m = weight.detach().double(), moment.to(weight.device).double()
    return w @ (m[:-1, :-1] - torch.outer(m[:-1, -1], m[:-1, -1])) @ w.mT


def fitted_logits(queries: Tensor, keys: Tensor, kept: Tensor, ridge: float, *, constant: bool) -> Tensor:
    """M of one head, [r + 1, r], or [r, r] without the constant.

    Shapes: queries [q + 1, q + 1], second moment of [q 1]; keys [q, q], covariance; kept [r] int64.
    """
    gone = rest(kept, len(keys)).to(keys.device)
    given = torch.cat([kept, kept.new_tensor([len(keys)])]) if constant else kept
    right = queries[given][:, gone] @ keys[gone][:, kept]
    with one_thread():
        a, left = torch.linalg.eigh(queries[given][:, given])
        b, turn = torch.linalg.eigh(keys[kept][:, kept])
        lift = (ridge * a.clamp_min(0).mean() * b.clamp_min(0).mean()).clamp_min(_TINY)
        scaled = (left.mT @ right @ turn) / (torch.outer(a.clamp_min(0), b.clamp_min(0)) + lift)
        solved: Tensor = left @ scaled @ turn.mT
        return solved


@torch.no_grad()
def compensated(part: Attention, qk: Tensor, vo: Tensor, moment: Tensor, ridge: float) -> Attention:
    """All heads with these of their dimensions, the others made up for.

    Shapes: qk [H, q'] and vo [H, v'] int64; moment [d + 1, d + 1] of [x 1], fp64.
    """
    device = part.wq.device
    qk, vo = qk.to(device), vo.to(device)
    slim = part.keep(range(part.heads), qk, vo)
    wq, bq = _queries(part, slim, qk, moment, ridge)
    wo, bo = _outputs(part, vo, moment, ridge)
    return replace(slim, wq=wq, bq=bq, wo=wo, bo=bo)


def _queries(
    part: Attention, slim: Attention, kept: Tensor, moment: Tensor, ridge: float
) -> tuple[Tensor, Tensor | None]:
    """W_Q and b_Q that make up for the logits of the dimensions that go."""
    queries, keys = query_second_moment(part, moment), covariances(part.wk, moment)
    gain = part.query_gain(kept.shape[1])
    weights, biases = [], []
    for head, own in enumerate(kept):
        fit = fitted_logits(queries[head], keys[head], own, ridge, constant=slim.bq is not None)
        turn = torch.eye(len(own), dtype=fit.dtype, device=fit.device) + fit[: len(own)]
        weights.append((turn.mT @ slim.wq[head].double()).to(slim.wq))
        if slim.bq is not None:
            biases.append((turn.mT @ slim.bq[head].double() + gain * fit[-1]).to(slim.bq))
    return torch.stack(weights), torch.stack(biases) if biases else None


def _outputs(part: Attention, kept: Tensor, moment: Tensor, ridge: float) -> tuple[Tensor, Tensor | None]:
    """W_O and b_O that make up for the values that go; without an output bias, about zero instead of the mean."""
    moment = moment.to(part.wv.device)
    values = covariances(part.wv, moment)
    mean = part.wv.detach().double() @ moment[:-1, -1].double()
    if part.bv is not None:
        mean = mean + part.bv.detach().double()
    if part.bo is None:
        values, mean = values + mean.unsqueeze(2) * mean.unsqueeze(1), torch.zeros_like(mean)
    bias = None if part.bo is None else part.bo.detach().double()
    weights = []
    for head, own in enumerate(kept):
        gone, wo = rest(own, part.vo).to(own.device), part.wo[head].detach().double()
        gram = values[head][own][:, own]
        lift = (ridge * gram.diagonal().mean()).clamp_min(_TINY)
        with one_thread():
            fit = torch.linalg.solve(gram + lift * torch.eye(len(own)).to(gram), values[head][own][:, gone]).mT
        weights.append((wo[:, own] + wo[:, gone] @ fit).to(part.wo))
        if bias is not None:
            bias = bias + wo[:, gone] @ (mean[head][gone] - fit @ mean[head][own])
    return torch.stack(weights), None if bias is None else bias.to(part.wo)


METHOD = Method(Config, no_steps, derive, check_options=check_options, gentle=True, cuts_half_blocks=True)
