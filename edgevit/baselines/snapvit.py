"""SnapViT (NeurIPS 2025): remove heads and neurons by local curvature times a factor of their site, without labels.

The score of a unit is c_s * sum of w^2 (dL/dw)^2 over its weights, with s its site (a block's attention or FFN). The
squared gradients are the diagonal of the loss's Hessian. The factors c stand for the correlations between sites that
the diagonal lacks. Exponential natural evolution strategies (xNES, Glasmachers et al., GECCO 2010) search for log c: a
candidate is worth the mean cosine similarity of the outputs without its units of lowest score to the whole network's,
over several shares of MACs removed. One ranking serves all budgets. Nothing is trained, if `--steps 0` says so.

With `correct`, the source's optional step, the output weights of what remains are solved again, site by site. The
source takes SparseGPT's update: of all weights with zeros in the removed columns it is the one of least squared error
of the layer's outputs. That is the regression on the remaining inputs which edgevit computes.

Differences from the source, of which this follows the description: the curvature is that of the divergence of the
outputs, where the source compares crops of an image by DINO's loss; outputs are compared as they are, where the source
takes principal components of embeddings. Units are ranked by score per MAC, as for all methods that rank units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import log, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, group_sums, squared_products
from edgevit.baselines.common.ranked import AttentionUnits, Grouping, RankOptions
from edgevit.data.task import Split
from edgevit.derivation.measure.divergence import network_outputs
from edgevit.derivation.method import Method
from edgevit.derivation.methods.forge.sequential import Slim, solve_in_sequence
from edgevit.derivation.problem import Derived, Problem
from edgevit.network.anatomy import SizeAxis
from edgevit.network.network import Network
from edgevit.numbers import COUNT, check_number
from edgevit.train.products import multiplies_bf16

NEEDS_LABELS = False
_SHARES = (0.2, 0.4, 0.6)  # shares of the units' MACs at which a candidate is judged
_UNITS: tuple[SizeAxis, SizeAxis] = ("heads", "ffn")
_SPREAD = 0.5  # standard deviation of log c in the first generation


@dataclass(frozen=True)
class Config(RankOptions):
    # Which units are ranked together: those of one kind in one block, so that all is cut alike (uniform), those of
    # one kind in all blocks (isomorphic), or all units, by score per MAC (global, the source).
    grouping: Grouping = "global"
    # Which units of attention are removed: dimensions of every head (widths), whole heads (heads, the source), or both.
    attention: AttentionUnits = "heads"
    calibration_images: int = 32  # The number of training images that curvature and candidates are measured on.
    generations: int = 20  # The number of generations of the evolution; 0 leaves all factors at 1.
    correct: bool = False  # Whether output weights are solved again, for the inputs that remain.
    correction_images: int = 512  # The number of training images from which they are solved.

    def __post_init__(self) -> None:
        for name in ("calibration_images", "correction_images"):
            check_number(f"snapvit.{name}", getattr(self, name), COUNT)
        check_number("snapvit.generations", self.generations, "[0, 2**31)")


def evolve(worth: Callable[[Tensor], float], size: int, generations: int, seed: int) -> Tensor:
    """Maximise `worth` over vectors [size] by xNES, from zero; return the mean of the last generation, fp64.

    With samples x = m + A z, z normal, and utilities u by rank, m moves by A sum(u z) and A is multiplied by
    exp(eta / 2 * sum(u (z z^T - 1))).
    """
    generator = torch.Generator().manual_seed(seed)
    mean, root = torch.zeros(size, dtype=torch.float64), _SPREAD * torch.eye(size, dtype=torch.float64)
    count, rate = 4 + int(3 * log(size)), (9 + 3 * log(size)) / (5 * size * sqrt(size))
    utilities = (log(count / 2 + 1) - torch.arange(1, count + 1, dtype=torch.float64).log()).clamp_min(0)
    utilities = utilities / utilities.sum() - 1 / count
    for _ in range(generations):
        z = torch.randn(count, size, generator=generator, dtype=torch.float64)
        values = torch.tensor([worth(x) for x in mean + z @ root.mT], dtype=torch.float64)
        z = z[values.argsort(descending=True, stable=True)]
        weighted = utilities[:, None] * z
        mean = mean + root @ weighted.sum(0)
        root = root @ torch.matrix_exp(rate / 2 * (weighted.mT @ z))  # utilities sum to 0, so -1 falls out
    return mean


def scaled(scores: Scores, log_factors: Tensor) -> Scores:
    """Multiply the scores of each site by its factor. Shape: log_factors [2 * blocks], of attention, FFN in turn."""
    factors = log_factors.exp().reshape(-1, 2)
    blocks = [
        {axis: values * (of_ffn if axis == "ffn" else of_attention) for axis, values in block.items()}
        for block, (of_attention, of_ffn) in zip(scores.blocks, factors, strict=True)
    ]
    return Scores(blocks, scores.embed)


class _Candidates:
    """Judges factors by the outputs of the network without its heads and neurons of lowest score."""

    def __init__(self, problem: Problem, images: Split, scores: Scores) -> None:
        self.problem, self.images, self.scores = problem, images, scores
        self.reference = self._outputs()
        network = problem.network
        placed = network.geometry.placed(list(network.dims))
        sites = [(p.dims[axis], p, axis) for p in placed for axis in _UNITS]
        macs = [macs for count, p, axis in sites if count for macs in [p.unit_cost(axis, "macs")] * count]
        self.macs = torch.tensor(macs, dtype=torch.float64)

    def _outputs(self) -> Tensor:
        problem = self.problem
        return network_outputs(problem.network, self.images, problem.passes, quick=multiplies_bf16()).flatten(1)

    def worth(self, log_factors: Tensor) -> float:
        """The mean cosine similarity to the whole network's outputs, over the shares of MACs removed."""
        blocks = scaled(self.scores, log_factors).blocks
        order = (torch.cat([v for b in blocks for v in map(b.__getitem__, _UNITS)]) / self.macs).argsort(stable=True)
        spent = self.macs[order].cumsum(0) / self.macs.sum()
        return sum(self._similarity(order[spent <= share]) for share in _SHARES) / len(_SHARES)

    def _similarity(self, removed: Tensor) -> float:
        network = self.problem.network
        mask = torch.ones(len(self.macs), device=self.problem.compute.device)
        mask[removed] = 0
        parts = iter(torch.split(mask, [n for d in network.dims for n in map(d.__getitem__, _UNITS)]))
        with ExitStack() as stack:
            for attention, ffn in zip(network.attention_outputs, network.ffn_outputs, strict=True):
                for layer in (attention, ffn):
                    remaining = next(parts)
                    if layer is not None:
                        hook = layer.register_forward_pre_hook(partial(_masked, remaining))
                        stack.callback(hook.remove)
            outputs = self._outputs()
        return float(F.cosine_similarity(outputs, self.reference, dim=1).mean())


def _masked(kept: Tensor, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Zero the units that are not kept; a head has several of the inputs."""
    return (inputs[0] * kept.repeat_interleave(inputs[0].shape[-1] // len(kept)).to(inputs[0]), *inputs[1:])


def derive(problem: Problem, config: Config) -> Derived:
    images, network = problem.calibration(config.calibration_images), problem.network
    network.to(problem.compute.device).eval()
    with problem.stopwatch.stage("gradients"):
        scores = group_sums(squared_products(network, images, problem.passes, seed=problem.training.seed))
    with problem.stopwatch.stage("evolution"):
        worth = _Candidates(problem, images, scores).worth
        log_factors = evolve(worth, 2 * len(scores.blocks), config.generations, problem.training.seed)
    scores = scaled(scores, log_factors)
    plan = ranked.plan_of(network, scores, ranked.choose_units(problem, config, scores))
    corrected = partial(_correct, problem, problem.calibration(config.correction_images), plan.kept_blocks)
    return ranked.finish(problem, plan, change=corrected if config.correct else None)


def _correct(problem: Problem, images: Split, kept_blocks: Sequence[int], slim: Network) -> None:
    tokens = [problem.network.geometry.stages[dims.stage].tokens for dims in problem.network.dims]
    alike = [(torch.ones(count, dtype=torch.float64),) * 2 for count in tokens]
    with problem.stopwatch.stage("correction"):
        solve_in_sequence(problem.network, [Slim(slim, kept_blocks)], images, alike, problem.passes)


METHOD = Method(Config, ranked.default_steps, derive, search_space=ranked.search_space, cuts_half_blocks=True)
