"""X-Pruner (CVPR 2023): a mask per class on every head and neuron, learned with the loss; those with small masks go.

What head or neuron u puts out is multiplied by m[y, u], with y the class of the image and all masks 1 at first. They
are learned by Adam, in passes over calibration images, each in an order of its own, against

    L = cross-entropy + sparsity * mean over units of |m[y, u]|,

so a mask falls where the loss does not hold it up. A unit is worth the sum of |m[y, u]| over the classes. The rest is
trained after the cut, as for every method that ranks units.

Where this is not the source: it learns weights beside masks, and these stay here as they are until the cut; it keeps
the masks smooth by a further term; and it learns a threshold for each layer, in whose place the budget is spent by
rank, over all blocks within a kind of unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, UnitScores
from edgevit.baselines.common.ranked import RankOptions
from edgevit.baselines.common.ranking import Grouping
from edgevit.data.task import Split
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.reach import Cuts
from edgevit.errors import DataError, OptionError
from edgevit.network.families import family_of
from edgevit.train.distil import TeacherOptions
from edgevit.train.passes import Passes

QUANTITIES = ("macs", "params", "ms", "mj")


@dataclass(frozen=True)
class Config(TeacherOptions):
    # How far masks are compared: nowhere, so that all is cut alike (uniform), within a kind of unit over all blocks
    # (isomorphic), or all with all, by mask per MAC (global).
    grouping: Grouping = "isomorphic"
    calibration_images: int = 256  # The number of training images by which masks are learned.
    mask_passes: int = 10  # The number of passes over them.
    mask_lr: float = 0.02  # The learning rate of the masks.
    sparsity: float = 1.0  # How much the mean of the masks counts, beside the cross-entropy.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below_one("calibration_images", "mask_passes")
        for name in ("mask_lr", "sparsity"):
            if not 0 < getattr(self, name) < inf:
                raise OptionError(f"xpruner.{name}={getattr(self, name):g} is not a number above 0")

    @property
    def units(self) -> RankOptions:
        """What goes: whole heads and neurons."""
        return RankOptions(grouping=self.grouping, attention="heads")


def cuts(network: nn.Module, config: Config, policy: Policy) -> Cuts:
    """What it may take away."""
    return Cuts(head_widths=False, heads=True)


class _Masks:
    """The masks of a network, which multiply what its heads and neurons put out while it is watched."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        self.network = network
        dims = [block.dims for block in family_of(network).read(network)]
        like = next(network.parameters())

        def ones(count: int) -> Tensor:
            return torch.ones(classes, count, device=like.device, requires_grad=True)

        self.heads = [ones(d.heads) for d in dims]  # none where the site is gone
        self.neurons = [ones(d.ffn) for d in dims]
        self.labels = torch.empty(0, dtype=torch.int64)  # of the batch that the network is shown

    @property
    def all(self) -> list[Tensor]:
        return [*self.heads, *self.neurons]

    @contextmanager
    def watch(self) -> Iterator[None]:
        family = family_of(self.network)
        with ExitStack() as stack:
            for outputs, masks in (
                (family.attention_outputs(self.network), self.heads),
                (family.ffn_outputs(self.network), self.neurons),
            ):
                for output, mask in zip(outputs, masks, strict=True):
                    if output is not None:
                        stack.callback(output.register_forward_pre_hook(self._multiply(mask)).remove)
            yield

    def _multiply(self, mask: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]:
        def see(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
            units = mask[self.labels].unsqueeze(1)  # [B, 1, heads or neurons]
            return (given[0] * units.repeat_interleave(given[0].shape[-1] // units.shape[-1], -1),)

        return see

    def mean(self) -> Tensor:
        """Of |m| over all units, for the classes of the batch."""
        return torch.cat([mask[self.labels].abs().flatten() for mask in self.all]).mean()


def learned(
    network: nn.Module, images: Split, columns: Sequence[int], passes: Passes, config: Config, *, seed: int
) -> Scores:
    """What each head and neuron is worth by its masks; the dimensions of a head are all alike, as are all channels.

    Every process learns the same, of all images. The seed draws the order of each pass: images lie class by class, so
    that Adam would move the masks of a class in a few steps running, and let them rest in all others.

    Raises:
        DataError: a mask is not finite.
    """
    masks = _Masks(network, len(columns))
    target = torch.as_tensor(columns, device=passes.compute.device)
    optimizer = torch.optim.Adam(masks.all, lr=config.mask_lr)

    def step(batch: Tensor, labels: Tensor) -> None:
        masks.labels = labels
        loss = F.cross_entropy(network(batch).float(), target[labels]) + config.sparsity * masks.mean()
        for mask, gradient in zip(masks.all, torch.autograd.grad(loss, masks.all), strict=True):
            mask.grad = gradient
        optimizer.step()

    alone, generator = replace(passes, shared=False), torch.Generator().manual_seed(seed)
    with masks.watch():
        for _ in range(config.mask_passes):
            order = torch.randperm(len(images), generator=generator).tolist()
            alone.show(network, images.at(order), step, stage="masks", gradients=True)
    worth = [mask.detach().double().abs().sum(0).cpu() for mask in masks.all]
    if not all(bool(torch.isfinite(scores).all()) for scores in worth):
        raise DataError("a mask is not finite; check the base's weights, --mean and --std, or lower xpruner.mask_lr")
    family = family_of(network)
    dims = [block.dims for block in family.read(network)]
    blocks = [
        UnitScores(scores.new_ones(d.heads, d.qk), scores.new_ones(d.heads, d.vo), scores, neurons)
        for d, scores, neurons in zip(dims, worth[: len(dims)], worth[len(dims) :], strict=True)
    ]
    return Scores(blocks, torch.ones(family.geometry(network).embed, dtype=torch.float64))


def derive(problem: Problem, config: Config) -> Derived:
    images, network = problem.task.train.subset(config.calibration_images), problem.network
    with problem.stopwatch.stage("masks"):
        network.to(problem.compute.device).eval()
        scores = learned(network, images, problem.columns, problem.passes, config, seed=problem.training.seed)
    plan = ranked.plan_of(network, scores, ranked.choose_units(problem, config.units, scores))
    return ranked.finish(problem, config, plan)


METHOD = Method(Config, ranked.default_steps, derive, cuts=cuts, cuts_half_blocks=True)
