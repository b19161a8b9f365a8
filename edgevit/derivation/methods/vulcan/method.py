"""Vulcan (ICLR 2026): make the base redundant where it will be cut, while training it on the target classes; then cut.

Training moves each FFN neuron towards the anchor of its cluster and the tails of the QK and VO spectra towards zero,
under an augmented Lagrangian (Eq. 8). Once both hold, merging neurons and truncating spectra changes no output.

Where the paper's text and its released code disagree, the code's choice is the default and `as_published` gives the
text's: anchors chosen again from each batch, multipliers raised by gradient ascent (Algorithm 1), and sums divided by
K(l) for an FFN and by 1 for attention.

Differences from both: the rank term uses [W_Q b_Q] instead of W_Q, because the query bias is factorised with it; a rate
above what a block can lose is passed to the other blocks; the widths follow a shape policy and land on the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgevit.derivation.allocate.policy import Policy, fit
from edgevit.derivation.allocate.widths import adaptive
from edgevit.derivation.feasibility import SearchSpace, Target
from edgevit.derivation.measure.statistics import BlockStatistics, Factorisation, calibrate, token_sum
from edgevit.derivation.method import Method
from edgevit.derivation.methods.vulcan.collapse import (
    Clusters,
    cluster_neurons,
    largest_members,
    make_clusters,
    to_device,
    weight_collapse,
)
from edgevit.derivation.methods.vulcan.lora import low_rank_updates, smallest_side
from edgevit.derivation.methods.vulcan.rank import tail_sums
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan, load_plan, save_plan
from edgevit.derivation.problem import Derived, Problem, distillation_for, train_for
from edgevit.derivation.realise import realise
from edgevit.derivation.solve.attention import query_matrix
from edgevit.errors import OptionError
from edgevit.network.anatomy import Block, attentions, ffns
from edgevit.network.network import Network
from edgevit.numbers import COUNT, check_number
from edgevit.records.model import HEAD_WIDTHS
from edgevit.train.compute import Compute
from edgevit.train.passes import observed

NEEDS_LABELS = False


@dataclass(frozen=True)
class Config:
    # Whether the paper's text decides where it differs from the released code: anchors chosen again from each batch,
    # multipliers raised by gradient ascent, and sums divided by K(l) for FFNs and by 1 for attention.
    as_published: bool = False
    collapse: bool = True  # Whether neurons are drawn to the anchor of their cluster (Eq. 4).
    rank: bool = True  # Whether the tails of the QK and VO spectra are drawn to zero (Eq. 7).
    rho: float = 1.0  # The penalty parameter, which is the multipliers' learning rate.
    # What the factorisation of attention preserves: its weights, its outputs for the task's tokens (activations), or
    # those with each token weighted by the loss's sensitivity to it (tokens).
    factorisation: Factorisation = "weights"
    calibration_images: int = 1024  # The number of training images from which activations and moments are taken.
    # The rank of the updates that train in place of whole weights, to save memory (LoRA; the paper has 256 for a width
    # of 768, and a learning rate of 1e-3); 0 trains whole weights.
    lora_rank: int = 0

    def __post_init__(self) -> None:
        check_number("vulcan.calibration_images", self.calibration_images, COUNT, "try 1024")
        check_number("vulcan.rho", self.rho, "[0, inf)", "the default is 1")
        check_number("vulcan.lora_rank", self.lora_rank, "[0, 2**31)", "0 trains whole weights")


def search_space(network: Network, config: Config, policy: Policy) -> SearchSpace:
    """Return what the method may remove from a network."""
    return SearchSpace(images=config.calibration_images)


def check_options(target: Target, config: Config) -> None:
    side = smallest_side(target.network)
    if config.lora_rank >= side:
        raise OptionError(
            f"vulcan.lora_rank={config.lora_rank} is not a low rank: the smallest side of a layer that it updates is "
            f"{side}; try {max(side // 3, 1)}, the paper's share of the width"
        )


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    """Return 6250 R^2 + 1250 R steps (Table 8)."""
    return max(round(6250 * rate**2 + 1250 * rate), 1)


# -- plan --------------------------------------------------------------------------------------------------------------


def _make_plan(problem: Problem, config: Config) -> Plan:
    """Choose widths, clusters and anchors; all processes take the statistics, and the first one decides."""
    images = problem.task.train.subset(config.calibration_images)
    with problem.stopwatch.stage("statistics"):
        statistics = calibrate(problem.network, images, problem.passes, factorisation=config.factorisation)
    if problem.compute.is_main:
        with problem.stopwatch.stage("clustering"):
            save_plan(_decide(problem, statistics), "vulcan", problem.folder)
    problem.compute.wait()
    saved = load_plan(problem.folder)
    assert saved is not None
    return saved


def _decide(problem: Problem, statistics: list[BlockStatistics]) -> Plan:
    plans, read = [], problem.network.read()
    wishes_at = adaptive(read, [s.activation for s in statistics], problem.policy)
    dims = fit(wishes_at, [b.dims for b in read], problem.network.geometry, problem.budget, problem.policy)
    blocks = ffns(read)
    with problem.progress.stage("clusters of neurons", len(blocks), "block") as stage:
        for i, (part, new, s) in enumerate(zip(blocks, dims, statistics, strict=True)):
            labels = cluster_neurons(part, new.ffn, problem.training.seed)
            clusters = make_clusters(labels, s.activation)
            attention = AttentionPlan.of(new, moment=s.moment)
            plans.append(BlockPlan(i, attention, FfnPlan(clusters.anchors, clusters.labels)))
            stage.update(i + 1)
    return Plan(tuple(plans))


# -- training ----------------------------------------------------------------------------------------------------------


class Redundancy:
    """The two redundancy constraints and their multipliers: Eq. 4, 7 and 8 as a `train.constraint.Constraint`."""

    def __init__(self, network: Network, plan: Plan, config: Config, compute: Compute) -> None:
        self.network, self.plan, self.config, self.compute = network, plan, config, compute
        planned = [block.ffn for block in plan.blocks]
        clusters = [Clusters(f.labels, f.neurons) for f in planned if f is not None and f.labels is not None]
        self.clusters = [to_device(c, compute.device) for c in clusters]
        self.divisors = [len(c.anchors) if config.as_published else max(c.collapsing, 1) for c in clusters]
        self.multipliers = torch.zeros(2, dtype=torch.float64)  # lambda_1 of absolute values, lambda_2 of squares
        self.adam = torch.zeros(2, 2, dtype=torch.float64)  # first and second moment of their gradients
        self.updates = 0
        self.violation = torch.zeros(2, dtype=torch.float64)  # dL/dlambda of the last step
        self.activations: list[Tensor] = []  # [e] per block, summed over the micro-batches of a step
        self.micro_batches = 0

    # -- anchors ---------------------------------------------------------------------------------------------------

    @contextmanager
    def watch(self) -> Iterator[None]:
        modules = self.network.ffn_outputs
        with observed(modules, self._observe) if self.config.as_published else nullcontext():
            yield

    def _observe(self, index: int, inputs: Any, output: Tensor) -> None:
        if not self.network.training:
            return  # an evaluation between two steps
        self.micro_batches += int(index == 0)
        activation = token_sum(inputs[0].detach().float())
        if len(self.activations) <= index:
            self.activations.append(activation)
        else:
            self.activations[index] = self.activations[index] + activation

    def _choose_anchors(self) -> None:
        """Choose each cluster's anchor again: the most active member in this step's images."""
        means = [self.compute.mean(a / self.micro_batches) for a in self.activations]
        self.clusters = [
            Clusters(c.labels, largest_members(c.labels, mean, len(c.anchors)))
            for c, mean in zip(self.clusters, means, strict=True)
        ]
        self.activations, self.micro_batches = [], 0

    # -- penalty ---------------------------------------------------------------------------------------------------

    def _violations(self) -> Tensor:
        """Return the violations of the collapse and of the rank constraint, as absolute values and squares: [2, 2]."""
        numbers = range(len(self.plan.blocks))
        if self.config.lora_rank == 0:
            return self._of_weights(self.network.read(), numbers)
        # A weight with an update is computed when it is read. One block at a time is read, and read again in the
        # backward pass, because the weights of all blocks would take the memory that the updates save.
        violations = torch.zeros(2, 2, device=self.compute.device)
        for i in numbers:
            violations = violations + checkpoint(self._of_block, i, use_reentrant=False, preserve_rng_state=False)
        return violations

    def _of_block(self, number: int) -> Tensor:
        return self._of_weights([self.network.blocks[number].read()], [number])

    def _of_weights(self, blocks: Sequence[Block], numbers: Sequence[int]) -> Tensor:
        zero = torch.zeros(2, device=self.compute.device)
        collapse = self._collapse(blocks, numbers) if self.config.collapse else zero
        return torch.stack([collapse, self._tails(blocks, numbers) if self.config.rank else zero])

    def _collapse(self, blocks: Sequence[Block], numbers: Sequence[int]) -> Tensor:
        total = torch.zeros(2, device=self.compute.device)
        for i, part in zip(numbers, ffns(blocks), strict=True):
            total = total + torch.stack(weight_collapse(part, self.clusters[i])) / self.divisors[i]
        return total

    def _tails(self, blocks: Sequence[Block], numbers: Sequence[int]) -> Tensor:
        parts, dims = attentions(blocks), [self.plan.dims[i] for i in numbers]
        matrices = [query_matrix(a) for a in parts] + [a.wv for a in parts]
        sums = torch.stack(tail_sums(matrices, [d[axis] for axis in HEAD_WIDTHS for d in dims]))
        return sums if self.config.as_published else sums / sum(d.heads for d in self.plan.dims)

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        if self.config.as_published:
            self._choose_anchors()
        collapse, tails = self._violations()  # [2] each
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
        """Raise the multipliers as Adam does at the learning rate -rho; as published, by rho * violation."""
        self.updates += 1
        if self.config.as_published:
            self.multipliers = self.multipliers + self.config.rho * self.violation
            return
        decay = torch.tensor([[0.9], [0.999]], dtype=torch.float64)
        self.adam = decay * self.adam + (1 - decay) * torch.stack([self.violation, self.violation**2])
        first, second = self.adam / (1 - decay**self.updates)
        self.multipliers = self.multipliers + self.config.rho * first / (second.sqrt() + 1e-8)

    # -- result and state ------------------------------------------------------------------------------------------

    def current_plan(self) -> Plan:
        anchored = [FfnPlan(c.anchors.cpu(), c.labels.cpu()) for c in self.clusters]
        pairs = zip(self.plan.blocks, anchored, strict=True)
        return Plan(tuple(replace(block, ffn=ffn) for block, ffn in pairs))

    def pruned(self) -> Network:
        return realise(self.network, self.current_plan())

    def state(self) -> dict[str, Tensor]:
        tensors = {"multipliers": self.multipliers, "adam": self.adam, "updates": torch.tensor(self.updates)}
        return tensors | {f"anchors.{i}": c.anchors.cpu() for i, c in enumerate(self.clusters)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.multipliers, self.adam, self.updates = state["multipliers"], state["adam"], int(state["updates"])
        device = self.compute.device
        self.clusters = [replace(c, anchors=state[f"anchors.{i}"].to(device)) for i, c in enumerate(self.clusters)]


def derive(problem: Problem, config: Config) -> Derived:
    plan = load_plan(problem.folder) or _make_plan(problem, config)
    distillation = distillation_for(problem)
    network, training = problem.network.to(problem.compute.device), problem.training
    plan.check(network.read())
    redundancy = Redundancy(network, plan, config, problem.compute)
    with low_rank_updates(network, config.lora_rank, training.seed):
        done = train_for(problem, network, constraint=redundancy, distillation=distillation)
    with problem.stopwatch.stage("surgery"):
        slim = redundancy.pruned()
    return Derived(
        slim,
        redundancy.current_plan(),
        {"steps": done, "steps_planned": training.steps, "images_seen": done * training.batch},
    )


METHOD = Method(Config, default_steps, derive, search_space=search_space, check_options=check_options)
