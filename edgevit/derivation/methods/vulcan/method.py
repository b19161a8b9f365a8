"""Vulcan (ICLR 2026): make the base redundant where it will be cut, while training it on the target classes; then cut.

FFN neurons are drawn to the anchor of their cluster, the tails of the QK and VO spectra to zero, under an augmented
Lagrangian (Eq. 8); once both hold, merging and truncating changes nothing. Where the paper's text and its released code
disagree, both are options; benchmarks/papers/README.md has the measurement behind each default.

Differences from both: [W_Q b_Q] instead of W_Q in the rank term, because the query bias is factorised with it; rates
above what a block can lose are handed to the other blocks; the widths follow a shape policy and land on the budget.
Weights train whole, or by low-rank updates (`lora_rank`, Table 17): `lora.py` has what trains then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edgevit.derivation.allocate import embedding
from edgevit.derivation.allocate.embedding import Slices, check_width, embed_widths
from edgevit.derivation.allocate.policy import Policy, fit
from edgevit.derivation.allocate.widths import HeadAllocation, Normalisation, SizeWeight, adaptive
from edgevit.derivation.feasibility import SearchSpace, Target, check_embed_width
from edgevit.derivation.measure.statistics import BlockStatistics, Factorisation, calibrate, token_sum
from edgevit.derivation.method import Method
from edgevit.derivation.methods.vulcan.collapse import (
    Clusters,
    activation_collapse,
    cluster_neurons,
    largest_members,
    make_clusters,
    to_device,
    weight_collapse,
)
from edgevit.derivation.methods.vulcan.lora import low_rank_updates, smallest_side
from edgevit.derivation.methods.vulcan.rank import tail_sums
from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan, load_plan, save_plan
from edgevit.derivation.problem import Derived, Problem, distillation_for, train_for
from edgevit.derivation.realise import narrow_embedding, realise
from edgevit.derivation.solve.attention import query_matrix
from edgevit.errors import OptionError
from edgevit.network.anatomy import Block, BlockDims, attentions, ffns
from edgevit.network.families import family_of
from edgevit.train.compute import Compute
from edgevit.train.distil import TeacherOptions
from edgevit.train.passes import observed
from edgevit.train.settings import Training

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(TeacherOptions):
    # What of a neuron is drawn to its anchor (Eq. 4): its weights, its activation, or nothing (none).
    collapse: Literal["weight", "activation", "none"] = "weight"
    rank: bool = True  # Whether the tails of the QK and VO spectra are drawn to zero (Eq. 7).
    # Which member of a cluster is its anchor: the most active one (activation), or any (random).
    anchor: Literal["activation", "random"] = "activation"
    # When anchors are chosen anew: from each batch, from a running mean (ema), or never (fixed).
    anchor_update: Literal["batch", "ema", "fixed"] = "fixed"
    ema_decay: float = 0.99  # How much of the activations' running mean is kept at each step, with anchor_update=ema.
    # How the multipliers rise: as in the paper's Algorithm 1 (ascent), or as the released code's optimiser does (adam).
    multiplier_update: Literal["ascent", "adam"] = "adam"
    rho: float = 1.0  # The penalty parameter, which is the multipliers' learning rate.
    # What sums are divided by: the collapsing clusters and the heads (released), or K(l) and 1 (paper).
    reduction: Literal["released", "paper"] = "released"
    # How activations are made comparable between blocks before the global threshold of Eq. 3.
    ffn_normalisation: Normalisation = "zscore"
    # How QK and VO widths are shared out: by effective rank (Eq. 5, 6), or all alike (uniform).
    head_allocation: HeadAllocation = "effective_rank"
    # How blocks of different size count: attentions by their parameters (Eq. 30); FFNs and attentions by the logarithm
    # of these (log_parameters, as released); or FFNs by the logarithm (Eq. 29) and attentions by the number (both).
    size_weight: SizeWeight = "parameters"
    # What attention is factorised for: its weights, the task's tokens (activations), or these weighted by what the loss
    # would lose with them (tokens).
    factorisation: Factorisation = "weights"
    # How many steps are trained: 6250 R^2 + 1250 R at rate R (published), or as many passes over the data as that was
    # there (data).
    steps_rule: Literal["published", "data"] = "published"
    calibration_images: int = 1024  # The number of training images from which activations and moments are taken.
    # The embedding's width, which it is given by a change of basis before anything collapses; 0: it stays as it is. By
    # a cost table it may be as narrow as that lists.
    embed_width: int = 0
    # The rank of the updates that are trained in place of whole weights, to save memory (LoRA; the paper has 256, for a
    # width of 768, and a learning rate of 1e-3); 0: weights are trained whole.
    lora_rank: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width("vulcan", self.embed_width)
        if self.calibration_images < 1:
            raise OptionError(f"vulcan.calibration_images={self.calibration_images} is less than 1; try 1024")
        if not 0 <= self.ema_decay < 1:
            raise OptionError(f"vulcan.ema_decay={self.ema_decay:g} is not in [0, 1); the default is 0.99")
        if not 0 <= self.rho < inf:
            raise OptionError(f"vulcan.rho={self.rho:g} is not a number of at least 0; the default is 1")
        if self.lora_rank < 0:
            raise OptionError(f"vulcan.lora_rank={self.lora_rank} is negative; 0 trains whole weights")


PUBLISHED_BATCH, PUBLISHED_IMAGES = 256, 32_500  # the rule was made at this batch size, for 25 ImageNet classes


def search_space(network: nn.Module, config: Config, policy: Policy) -> SearchSpace:
    """What it may take away: the embedding is as wide as it was asked for."""
    embed = embedding.narrowest(network, policy, config.embed_width, "vulcan") if config.embed_width else 0
    narrower = embedding.narrowest(network, policy, 0, "vulcan")
    return SearchSpace(embed=embed, images=config.calibration_images, more={"embed_width": narrower})


def check_training(config: Config, training: Training) -> None:
    if config.collapse == "activation" and training.grad_accum > 1:
        raise OptionError(
            "vulcan.collapse=activation compares neurons over all images of a step, and --grad-accum "
            f"{training.grad_accum} computes them in parts; leave it at 1, or add --set vulcan.collapse=weight"
        )


def check_options(target: Target, config: Config) -> None:
    check_embed_width("vulcan", config.embed_width, target, config.calibration_images)
    side = smallest_side(target.network)
    if config.embed_width:
        side = min(side, config.embed_width)
    if config.lora_rank >= side:
        raise OptionError(
            f"vulcan.lora_rank={config.lora_rank} is no low rank: the smallest side of a layer that it updates is "
            f"{side}; try {max(side // 3, 1)}, the paper's share of the width"
        )


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Table 8: 6250 R^2 + 1250 R steps; with `steps_rule=data`, as many passes over the data as that was there."""
    published = 6250 * rate**2 + 1250 * rate
    if config.steps_rule == "data":
        published *= PUBLISHED_BATCH / PUBLISHED_IMAGES * images / batch_size
    return max(round(published), 1)


# -- plan --------------------------------------------------------------------------------------------------------------


def choose_dims(problem: Problem, config: Config, statistics: list[BlockStatistics]) -> tuple[BlockDims, ...]:
    """Widths of every block, from activations and effective ranks, fitted to the budget."""
    family = family_of(problem.network)
    blocks = family.read(problem.network)
    wishes_at = adaptive(
        blocks,
        [s.activation for s in statistics],
        problem.policy,
        normalisation=config.ffn_normalisation,
        heads=config.head_allocation,
        size_weight=config.size_weight,
    )
    dims = [b.dims for b in blocks]
    return fit(wishes_at, dims, family.geometry(problem.network), problem.budget, problem.policy)


def _scores(statistics: BlockStatistics, config: Config, generator: torch.Generator) -> Tensor:
    if config.anchor == "random":
        return torch.rand(len(statistics.activation), generator=generator)
    return statistics.activation


def make_plan(problem: Problem, config: Config) -> Plan:
    """Decide widths, clusters and anchors; the statistics are taken by all processes, the rest by the first.

    The blocks of the plan are in terms of the network with the plan's embedding, which is narrowed first: what is
    trained until it can be cut is that network.
    """
    embed = _narrower(problem, config) if config.embed_width else None
    problem = replace(problem, network=_with(problem.network, embed))
    images = problem.task.train.subset(config.calibration_images)
    with problem.stopwatch.stage("statistics"):
        how: Any = {"factorisation": config.factorisation, "columns": problem.columns}
        statistics = calibrate(problem.network, images, problem.passes, **how)
    if problem.compute.is_main:
        with problem.stopwatch.stage("clustering"):
            decided = replace(_decide(problem, config, statistics), embed=embed)
            save_plan(decided, "vulcan", problem.folder)
    problem.compute.wait()
    plan = load_plan(problem.folder)
    assert plan is not None
    return plan


def _narrower(problem: Problem, config: Config) -> EmbedPlan | None:
    (width,) = embed_widths(problem.network, problem.policy, config.embed_width, "vulcan")
    return Slices(problem, config.calibration_images, config.calibration_images, owner="vulcan").plan(width)


def _with(network: nn.Module, embed: EmbedPlan | None) -> nn.Module:
    return network if embed is None else narrow_embedding(network, embed)


def _decide(problem: Problem, config: Config, statistics: list[BlockStatistics]) -> Plan:
    dims = choose_dims(problem, config, statistics)
    generator = torch.Generator().manual_seed(problem.training.seed)
    plans = []
    blocks = ffns(family_of(problem.network).read(problem.network))
    with problem.progress.stage("clusters of neurons", len(blocks), "block") as stage:
        for i, (part, new, s) in enumerate(zip(blocks, dims, statistics, strict=True)):
            labels = cluster_neurons(part, new.ffn, problem.training.seed)
            clusters = make_clusters(labels, _scores(s, config, generator))
            attention = AttentionPlan(tuple(range(new.heads)), new.qk, new.vo, s.moment)
            plans.append(BlockPlan(i, attention, FfnPlan(clusters.anchors, clusters.labels)))
            stage.update(i + 1)
    return Plan(tuple(plans))


# -- training ----------------------------------------------------------------------------------------------------------


class Redundancy:
    """The two redundancy constraints and their multipliers: Eq. 4, 7 and 8 as a `train.constraint.Constraint`."""

    def __init__(self, network: nn.Module, plan: Plan, config: Config, compute: Compute) -> None:
        self.network, self.plan, self.config, self.compute = network, plan, config, compute
        self.family = family_of(network)
        planned = [block.ffn for block in plan.blocks]
        clusters = [Clusters(f.labels, f.neurons) for f in planned if f is not None and f.labels is not None]
        self.clusters = [to_device(c, compute.device) for c in clusters]
        released = config.reduction == "released"
        self.divisors = [max(c.collapsing, 1) if released else len(c.anchors) for c in clusters]
        self.multipliers = torch.zeros(2, dtype=torch.float64)  # lambda_1 of absolutes, lambda_2 of squares
        self.adam = torch.zeros(2, 2, dtype=torch.float64)  # first and second moment of their gradients
        self.updates = 0
        self.violation = torch.zeros(2, dtype=torch.float64)  # dL/dlambda of the last step
        self.live: list[Tensor] = []  # [e] per block, of the last forward pass, differentiable
        self.seen: list[Tensor] = []  # [e] per block, summed over the micro-batches of a step
        self.micro_batches = 0
        self.mean: list[Tensor] = []  # [e] per block, running

    # -- activations -----------------------------------------------------------------------------------------------

    @property
    def _needs_activations(self) -> bool:
        return self.config.collapse == "activation" or self._moves_anchors

    @property
    def _moves_anchors(self) -> bool:
        return self.config.anchor_update != "fixed" and self.config.anchor == "activation"

    @contextmanager
    def watch(self) -> Iterator[None]:
        modules = self.family.ffn_outputs(self.network)
        with observed(modules, self._see) if self._needs_activations else nullcontext():
            yield

    def _see(self, index: int, inputs: Any, output: Tensor) -> None:
        if not self.network.training:
            return  # an evaluation between two steps
        if index == 0:
            self.live = []
            self.micro_batches += 1
        summed = token_sum(inputs[0].float())
        self.live.append(summed)
        if len(self.seen) <= index:
            self.seen.append(summed.detach())
        else:
            self.seen[index] = self.seen[index] + summed.detach()

    def _move_anchors(self) -> None:
        now = [self.compute.mean(s / self.micro_batches) for s in self.seen]
        if self.config.anchor_update == "ema" and self.mean:
            decay = self.config.ema_decay
            now = [decay * old + (1 - decay) * new for old, new in zip(self.mean, now, strict=True)]
        self.mean = now
        self.clusters = [
            Clusters(c.labels, largest_members(c.labels, a, len(c.anchors)))
            for c, a in zip(self.clusters, now, strict=True)
        ]

    # -- penalty ---------------------------------------------------------------------------------------------------

    def _violation(self) -> Tensor:
        """What collapse and rank leave to be done: [2, 2], of each the sum of absolutes and that of squares."""
        numbers = range(len(self.plan.blocks))
        if self.config.lora_rank == 0:
            found = self._of_weights(self.family.read(self.network), numbers)
        else:
            # Weights with updates are worked out to be read: of one block at a time, and again for the backward pass,
            # as those of all blocks would take the memory that updates save.
            found = torch.zeros(2, 2, device=self.compute.device)
            for i in numbers:
                found = found + checkpoint(self._of_block, i, use_reentrant=False, preserve_rng_state=False)
        if self.config.collapse != "activation":
            return found
        pairs = [activation_collapse(self._of_all(e), c) for e, c in zip(self.live, self.clusters, strict=True)]
        collapse = sum((torch.stack(p) / d for p, d in zip(pairs, self.divisors, strict=True)), found.new_zeros(2))
        return torch.stack([collapse, found[1]])

    def _of_block(self, number: int) -> Tensor:
        return self._of_weights([self.family.read_block(self.network, number)], [number])

    def _of_weights(self, blocks: Sequence[Block], numbers: Sequence[int]) -> Tensor:
        zero = torch.zeros(2, device=self.compute.device)
        collapse = self._collapse(blocks, numbers) if self.config.collapse == "weight" else zero
        return torch.stack([collapse, self._tails(blocks, numbers) if self.config.rank else zero])

    def _collapse(self, blocks: Sequence[Block], numbers: Sequence[int]) -> Tensor:
        total = torch.zeros(2, device=self.compute.device)
        for i, part in zip(numbers, ffns(blocks), strict=True):
            total = total + torch.stack(weight_collapse(part, self.clusters[i])) / self.divisors[i]
        return total

    def _of_all(self, own: Tensor) -> Tensor:
        """The mean over the processes; its gradient is this one's share, as training averages theirs."""
        return own + (self.compute.mean(own.detach()) - own.detach())

    def _tails(self, blocks: Sequence[Block], numbers: Sequence[int]) -> Tensor:
        parts, kept = attentions(blocks), [self.plan.dims[i] for i in numbers]
        matrices = [query_matrix(a) for a in parts] + [a.wv for a in parts]
        sums = torch.stack(tail_sums(matrices, [d.qk for d in kept] + [d.vo for d in kept]))
        return sums / sum(d.heads for d in self.plan.dims) if self.config.reduction == "released" else sums

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        if self._moves_anchors:
            self._move_anchors()
        self.seen, self.micro_batches = [], 0
        collapse, tails = self._violation()  # [2] each
        self.live = []
        violation = collapse + tails
        self.violation = violation.detach().double().cpu()
        multipliers = self.multipliers.to(violation)
        figures = {
            "loss_collapse": float(collapse[0].detach()),
            "loss_rank": float(tails[0].detach()),
            "lambda_1": float(self.multipliers[0]),
            "lambda_2": float(self.multipliers[1]),
        }
        return (multipliers * violation).sum(), figures

    def after_step(self) -> None:
        """Raise the multipliers: by rho times the violation, or as Adam without weight decay would at the rate -rho."""
        self.updates += 1
        if self.config.multiplier_update == "ascent":
            self.multipliers = self.multipliers + self.config.rho * self.violation
            return
        decay = torch.tensor([[0.9], [0.999]], dtype=torch.float64)
        self.adam = decay * self.adam + (1 - decay) * torch.stack([self.violation, self.violation**2])
        first, second = self.adam / (1 - decay**self.updates)
        self.multipliers = self.multipliers + self.config.rho * first / (second.sqrt() + 1e-8)

    # -- result and state ------------------------------------------------------------------------------------------

    def current_plan(self) -> Plan:
        ffns_now = [FfnPlan(c.anchors.cpu(), c.labels.cpu()) for c in self.clusters]
        pairs = zip(self.plan.blocks, ffns_now, strict=True)
        return Plan(tuple(replace(block, ffn=ffn) for block, ffn in pairs))

    def pruned(self) -> nn.Module:
        return realise(self.network, self.current_plan())

    def state(self) -> dict[str, Tensor]:
        tensors = {"multipliers": self.multipliers, "adam": self.adam, "updates": torch.tensor(self.updates)}
        tensors |= {f"anchors.{i}": c.anchors.cpu() for i, c in enumerate(self.clusters)}
        return tensors | {f"mean.{i}": m.cpu() for i, m in enumerate(self.mean)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.multipliers, self.adam, self.updates = state["multipliers"], state["adam"], int(state["updates"])
        device = self.compute.device
        self.clusters = [replace(c, anchors=state[f"anchors.{i}"].to(device)) for i, c in enumerate(self.clusters)]
        self.mean = [state[f"mean.{i}"].to(device) for i in range(len(self.clusters)) if f"mean.{i}" in state]


def derive(problem: Problem, config: Config) -> Derived:
    plan = load_plan(problem.folder) or make_plan(problem, config)
    embed, plan = plan.embed, replace(plan, embed=None)
    distillation = distillation_for(problem, config, embed=embed)
    network, training = _with(problem.network, embed).to(problem.compute.device), problem.training
    plan.check(family_of(network).read(network))
    redundancy = Redundancy(network, plan, config, problem.compute)
    with low_rank_updates(network, config.lora_rank, training.seed):
        done = train_for(problem, network, constraint=redundancy, distillation=distillation)
    with problem.stopwatch.stage("surgery"):
        slim = redundancy.pruned()
    return Derived(
        slim,
        replace(redundancy.current_plan(), embed=embed),
        {"steps": done, "steps_planned": training.steps, "images_seen": done * training.batch_size},
    )


METHOD = Method(
    Config, default_steps, derive, search_space=search_space, check_training=check_training, check_options=check_options
)
