"""CORP (arXiv 2602.05243): remove units and compensate by ridge regression on the remaining ones; train nothing.

1. Units are ranked by the energy of their contribution, over calibration tokens: a neuron by E[h_j^2] |W_2,j|^2, a QK
   dimension by E[q_i^2] var(k_i), a VO dimension by var(v_i) |W_O,i|^2. Every block loses the same share.
2. Removed neurons are predicted by an affine function of the remaining ones, h_P = B h_S + c, with B from ridge
   regression over the tokens. W_2' = W_2,S + W_2,P B, and c is added to the output bias.
3. Attention is treated in the same way. With S the remaining and P the removed dimensions, and x the normalised input:

    values   v_P = B v_S + c,  B = C_PS (C_SS + lift)^-1 of their covariance C;  W_O' = W_O,S + W_O,P B,  c into b_O
    logits   q_P . k_P = [q_S 1] M k_S,  where M solves  A M K_SS + lift M = A_P K_PS  with A the second moment of
             [q_S 1], A_P that of [q_S 1] with q_P, and K the covariance of keys;  W_Q' = (1 + M)^T W_Q,S

   Keys are centred on their mean, since softmax ignores what all keys of a query share. The query and key of a pair of
   tokens are assumed independent, so that both moments follow from the moment of the inputs. A lift is `ridge` times
   the mean square of the term that it is added to.

This follows the public description, which has no code. It does not say how units are ranked; that values are cut as
well as queries and keys, since the budget counts all MACs; and that tokens of a pair are independent. Heads and the
embedding are kept. Neither labels nor gradients are used. Training after it is for comparisons (`--steps`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores, unit_scores
from edgevit.baselines.common.ranked import Grouping, Units, rank, top
from edgevit.derivation.feasibility import Target
from edgevit.derivation.measure.statistics import BlockStatistics, calibrate, check_enough
from edgevit.derivation.method import Method, no_steps
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.solve.factorise import one_thread
from edgevit.derivation.solve.least_squares import refit
from edgevit.errors import OptionError
from edgevit.network.anatomy import Attention, Block, BlockDims, Ffn
from edgevit.network.network import Network
from edgevit.numbers import COUNT, check_number
from edgevit.records.model import HEAD_WIDTHS

_TINY = torch.finfo(torch.float64).tiny

NEEDS_LABELS = False


@dataclass(frozen=True)
class Config:
    # Which units are ranked together: those of one kind in one block, so that all is cut alike (uniform, the source),
    # those of one kind in all blocks (isomorphic), or all units, by score per MAC (global).
    grouping: Grouping = "uniform"
    compensate: bool = True  # Whether the remaining units compensate; else units are only removed.
    # The damping of the regressions, in units of the mean square of the remaining units.
    ridge: float = 1e-3
    calibration_images: int = 256  # The number of training images for the statistics.

    def __post_init__(self) -> None:
        check_number("corp.calibration_images", self.calibration_images, COUNT)
        if not 0 < self.ridge < inf:
            raise OptionError(f"corp.ridge={self.ridge:g} is not a number above 0; try 1e-3")


def check_options(target: Target, config: Config) -> None:
    check_enough(config.calibration_images, target.images, target.network, "corp.calibration_images")


def energies(block: Block, moments: BlockStatistics) -> UnitScores:
    """Score the units of one block by the energy of their contribution."""
    dimensions = list[Tensor]()
    neurons = torch.empty(0, dtype=torch.float64)
    if (attention := block.attention) is not None:
        assert moments.moment is not None
        queries = query_second_moment(attention, moments.moment).diagonal(dim1=1, dim2=2)[:, :-1]
        keys, values = (covariances(w, moments.moment).diagonal(dim1=1, dim2=2) for w in (attention.wk, attention.wv))
        dimensions = [queries * keys, values * attention.wo.detach().double().square().sum(1)]
    if block.ffn is not None:
        assert moments.hidden is not None
        neurons = moments.hidden.diagonal().cpu() * block.ffn.w2.detach().double().square().sum(0).cpu()
    return unit_scores(dimensions, neurons)


@torch.no_grad()
def _plan(problem: Problem, config: Config, network: Network, statistics: list[BlockStatistics]) -> Plan:
    blocks, geometry = network.read(), network.geometry
    of_blocks = [energies(block, moments) for block, moments in zip(blocks, statistics, strict=True)]
    scores = Scores(of_blocks, torch.ones(geometry.embed, dtype=torch.float64))
    dims, units = [block.dims for block in blocks], Units(config.grouping, "widths", False)
    chosen = rank(scores, dims, lambda _: geometry, geometry.embed, problem.budget, problem.policy, units)
    plans = []
    rows = zip(blocks, statistics, scores.blocks, chosen.heads, chosen.dims, strict=True)
    for i, (block, moments, of, heads, new) in enumerate(rows):
        attention = None if block.attention is None else _attention(config, block.attention, moments, of, heads, new)
        ffn = None if block.ffn is None else _ffn(config, block.ffn, moments, top(of["ffn"], new.ffn))
        plans.append(BlockPlan(i, attention, ffn, block.tokens, block.merged))
    return Plan(tuple(plans))


def _attention(
    config: Config, part: Attention, moments: BlockStatistics, of: UnitScores, heads: tuple[int, ...], new: BlockDims
) -> AttentionPlan:
    of_queries, of_values = (top(of[axis], new[axis]) for axis in HEAD_WIDTHS)
    assert moments.moment is not None
    slim = part.keep(heads, of_queries, of_values)
    if config.compensate:
        slim = compensated(part, of_queries, of_values, moments.moment, config.ridge)
    return AttentionPlan.of(new, heads, weights=slim)


def _ffn(config: Config, part: Ffn, moments: BlockStatistics, neurons: Tensor) -> FfnPlan:
    assert moments.hidden is not None
    if config.compensate:
        return FfnPlan(neurons, weights=refit(part, neurons, moments.hidden, moments.mean, "compensate", config.ridge))
    return FfnPlan(neurons, weights=part.keep(neurons.to(part.w1.device)))


def derive(problem: Problem, config: Config) -> Derived:
    network, images = problem.network, problem.task.train.subset(config.calibration_images)
    with problem.stopwatch.stage("statistics"):
        network.to(problem.compute.device).eval()
        statistics = calibrate(network, images, problem.passes, factorisation="activations", hidden=True)
    with problem.stopwatch.stage("closed_form"):
        plan = _plan(problem, config, network, statistics)
    return ranked.finish(problem, plan)


# -- attention that makes up for the dimensions it loses --------------------------------------------------------------


def complement(indices: Tensor, width: int) -> Tensor:
    """Return the other indices below `width`, ascending. Shape: indices [r] int64."""
    mask = torch.zeros(width, dtype=torch.bool)
    mask[indices.cpu()] = True
    return (~mask).nonzero().flatten()


def query_second_moment(part: Attention, moment: Tensor) -> Tensor:
    """Compute E[[q 1][q 1]^T] per head from the moment of [x 1], [d + 1, d + 1]: [H, q + 1, q + 1] in fp64."""
    wq = part.wq.detach().double()
    bias = wq.new_zeros(wq.shape[:2]) if part.bq is None else part.bq.detach().double()
    affine = torch.cat([wq, bias.unsqueeze(-1)], dim=-1)
    constant_row = torch.zeros(part.heads, 1, affine.shape[-1], dtype=affine.dtype, device=affine.device)
    constant_row[..., -1] = 1
    affine = torch.cat([affine, constant_row], dim=1)
    return affine @ moment.to(affine) @ affine.mT


def covariances(weight: Tensor, moment: Tensor) -> Tensor:
    """Compute the covariance of W x per head from the moment of [x 1]: [H, w, w] in fp64, for W [H, w, d]."""
    w, m = weight.detach().double(), moment.to(weight.device).double()
    return w @ (m[:-1, :-1] - torch.outer(m[:-1, -1], m[:-1, -1])) @ w.mT


def fitted_logits(queries: Tensor, keys: Tensor, remaining: Tensor, ridge: float, *, constant: bool) -> Tensor:
    """Solve M of one head: [r + 1, r], or [r, r] without the constant.

    Shapes: queries [q + 1, q + 1], second moment of [q 1]; keys [q, q], covariance; remaining [r] int64.
    """
    removed = complement(remaining, len(keys)).to(keys.device)
    inputs = torch.cat([remaining, remaining.new_tensor([len(keys)])]) if constant else remaining
    right = queries[inputs][:, removed] @ keys[removed][:, remaining]
    with one_thread():
        a, query_vectors = torch.linalg.eigh(queries[inputs][:, inputs])
        b, key_vectors = torch.linalg.eigh(keys[remaining][:, remaining])
        lift = (ridge * a.clamp_min(0).mean() * b.clamp_min(0).mean()).clamp_min(_TINY)
        scaled = (query_vectors.mT @ right @ key_vectors) / (torch.outer(a.clamp_min(0), b.clamp_min(0)) + lift)
        solved: Tensor = query_vectors @ scaled @ key_vectors.mT
        return solved


@torch.no_grad()
def compensated(part: Attention, of_queries: Tensor, of_values: Tensor, moment: Tensor, ridge: float) -> Attention:
    """Keep these dimensions of all heads, and compensate for the others.

    Shapes: of_queries [H, q'] and of_values [H, v'] int64; moment [d + 1, d + 1] of [x 1], fp64.
    """
    device = part.wq.device
    of_queries, of_values = of_queries.to(device), of_values.to(device)
    slim = part.keep(range(part.heads), of_queries, of_values)
    wq, bq = _queries(part, slim, of_queries, moment, ridge)
    wo, bo = _outputs(part, of_values, moment, ridge)
    return replace(slim, wq=wq, bq=bq, wo=wo, bo=bo)


def _queries(
    part: Attention, slim: Attention, indices: Tensor, moment: Tensor, ridge: float
) -> tuple[Tensor, Tensor | None]:
    """Solve W_Q and b_Q, which compensate for the logits of the removed dimensions."""
    queries, keys = query_second_moment(part, moment), covariances(part.wk, moment)
    gain = part.query_gain(indices.shape[1])
    weights, biases = [], []
    for head, remaining in enumerate(indices):
        fit = fitted_logits(queries[head], keys[head], remaining, ridge, constant=slim.bq is not None)
        turn = torch.eye(len(remaining), dtype=fit.dtype, device=fit.device) + fit[: len(remaining)]
        weights.append((turn.mT @ slim.wq[head].double()).to(slim.wq))
        if slim.bq is not None:
            biases.append((turn.mT @ slim.bq[head].double() + gain * fit[-1]).to(slim.bq))
    return torch.stack(weights), torch.stack(biases) if biases else None


def _outputs(part: Attention, indices: Tensor, moment: Tensor, ridge: float) -> tuple[Tensor, Tensor | None]:
    """Solve W_O and b_O, which compensate for the removed values; without an output bias, about zero, not the mean."""
    moment = moment.to(part.wv.device)
    values = covariances(part.wv, moment)
    mean = part.wv.detach().double() @ moment[:-1, -1].double()
    if part.bv is not None:
        mean = mean + part.bv.detach().double()
    if part.bo is None:
        values, mean = values + mean.unsqueeze(2) * mean.unsqueeze(1), torch.zeros_like(mean)
    bias = None if part.bo is None else part.bo.detach().double()
    weights = []
    for head, remaining in enumerate(indices):
        removed, wo = complement(remaining, part.vo).to(remaining.device), part.wo[head].detach().double()
        gram = values[head][remaining][:, remaining]
        lift = (ridge * gram.diagonal().mean()).clamp_min(_TINY)
        with one_thread():
            fit = torch.linalg.solve(
                gram + lift * torch.eye(len(remaining)).to(gram), values[head][remaining][:, removed]
            ).mT
        weights.append((wo[:, remaining] + wo[:, removed] @ fit).to(part.wo))
        if bias is not None:
            bias = bias + wo[:, removed] @ (mean[head][removed] - fit @ mean[head][remaining])
    return torch.stack(weights), None if bias is None else bias.to(part.wo)


METHOD = Method(Config, no_steps, derive, check_options=check_options, gentle=True, cuts_half_blocks=True)
