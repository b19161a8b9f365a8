"""X-Pruner (CVPR 2023): learn a mask per class on every head and neuron; remove units with small masks.

The output of head or neuron u is multiplied by m[y, u], with y the class of the image and all masks 1 at first. Adam
learns them in passes over calibration images, each in a new order, with the loss

    L = cross-entropy + sparsity * mean over units of |m[y, u]|,

so that a mask falls where the cross-entropy does not need it. The score of a unit is the sum of |m[y, u]| over the
classes. The network is trained after the cut, as for every method that ranks units.

Differences from the source: it learns weights together with masks, while weights are fixed here until the cut; it
smooths the masks by a further term; and it learns a threshold for each layer, while the budget is spent here by rank,
over all blocks within a kind of unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.baselines.common import ranked
from edgevit.baselines.common.importance import Scores, unit_shapes
from edgevit.baselines.common.ranked import Grouping, RankOptions
from edgevit.data.task import Split
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Derived, Problem
from edgevit.errors import DataError, OptionError
from edgevit.network.network import Network
from edgevit.numbers import COUNT, check_number
from edgevit.train.passes import Passes


@dataclass(frozen=True)
class Config:
    # Which units are ranked together: those of one kind in one block, so that all is cut alike (uniform), those of
    # one kind in all blocks (isomorphic), or all units, by mask per MAC (global).
    grouping: Grouping = "isomorphic"
    calibration_images: int = 256  # The number of training images that masks are learned on.
    mask_passes: int = 10  # The number of passes over these images.
    mask_lr: float = 0.02  # The learning rate of the masks.
    sparsity: float = 1.0  # The weight of the masks' mean in the loss.

    def __post_init__(self) -> None:
        for name in ("calibration_images", "mask_passes"):
            check_number(f"xpruner.{name}", getattr(self, name), COUNT)
        for name in ("mask_lr", "sparsity"):
            if not 0 < getattr(self, name) < inf:
                raise OptionError(f"xpruner.{name}={getattr(self, name):g} is not a number above 0")

    @property
    def units(self) -> RankOptions:
        """Which units are removed: whole heads and neurons."""
        return RankOptions(grouping=self.grouping, attention="heads")


def search_space(network: Network, config: Config, policy: Policy) -> SearchSpace:
    """Say what the method may remove from a network."""
    return SearchSpace(head_widths=False, heads=True)


class _Masks:
    """The masks of a network, which multiply the outputs of its heads and neurons within `watch`."""

    def __init__(self, network: Network, classes: int) -> None:
        self.network = network
        dims = list(network.dims)
        like = next(network.parameters())

        def ones(count: int) -> Tensor:
            return torch.ones(classes, count, device=like.device, requires_grad=True)

        self.heads = [ones(d.heads) for d in dims]  # empty if the block lacks the site
        self.neurons = [ones(d.ffn) for d in dims]
        self.labels = torch.empty(0, dtype=torch.int64)  # labels of the current batch

    @property
    def all(self) -> list[Tensor]:
        return [*self.heads, *self.neurons]

    @contextmanager
    def watch(self) -> Iterator[None]:
        with ExitStack() as stack:
            for outputs, masks in (
                (self.network.attention_outputs, self.heads),
                (self.network.ffn_outputs, self.neurons),
            ):
                for output, mask in zip(outputs, masks, strict=True):
                    if output is not None:
                        stack.callback(output.register_forward_pre_hook(self._multiply(mask)).remove)
            yield

    def _multiply(self, mask: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]:
        def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            units = mask[self.labels].unsqueeze(1)  # [B, 1, heads or neurons]
            return (inputs[0] * units.repeat_interleave(inputs[0].shape[-1] // units.shape[-1], -1),)

        return see

    def mean(self) -> Tensor:
        """Average |m| over all units, for the classes of the batch."""
        return torch.cat([mask[self.labels].abs().flatten() for mask in self.all]).mean()


def learn_masks(network: Network, images: Split, passes: Passes, config: Config, *, seed: int) -> Scores:
    """Score each head and neuron by its masks; dimensions of heads and channels have equal scores.

    Every process learns the same masks from all images. The seed draws the order of each pass, since images are sorted
    by class: else Adam would move the masks of one class in a few consecutive steps.

    Raises:
        DataError: a mask is not finite.
    """
    masks = _Masks(network, len(network.columns))
    target = torch.as_tensor(network.columns, device=passes.compute.device)
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
    dims = list(network.dims)
    blocks = [
        {**{axis: scores.new_ones(shape) for axis, shape in unit_shapes(d).items()}, "heads": scores, "ffn": neurons}
        for d, scores, neurons in zip(dims, worth[: len(dims)], worth[len(dims) :], strict=True)
    ]
    return Scores(blocks, torch.ones(network.geometry.embed, dtype=torch.float64))


def derive(problem: Problem, config: Config) -> Derived:
    images, network = problem.task.train.subset(config.calibration_images), problem.network
    with problem.stopwatch.stage("masks"):
        network.to(problem.compute.device).eval()
        scores = learn_masks(network, images, problem.passes, config, seed=problem.training.seed)
    plan = ranked.plan_of(network, scores, ranked.choose_units(problem, config.units, scores))
    return ranked.finish(problem, plan)


METHOD = Method(Config, ranked.default_steps, derive, search_space=search_space, cuts_half_blocks=True)
