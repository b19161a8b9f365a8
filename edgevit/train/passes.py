"""A pass over images: a network classifies each image once, while observers read the outputs of its modules.

The batch size of a pass depends on the network and the machine's memory, and not on the batch size of the training.
Images are decoded once for all passes. Several processes share the images of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.data.decoded import SHARE, Decoded, available_bytes
from edgevit.data.task import Split
from edgevit.network.accuracy import Accuracy, count_answers, count_correct, from_counts
from edgevit.network.network import Network
from edgevit.network.output import Logits
from edgevit.progress import Progress, Silent
from edgevit.train.compute import Compute, open_compute
from edgevit.train.memory import memory_bytes
from edgevit.train.products import WIDE, exact_convolutions, exact_products, rounded_products
from edgevit.train.settings import Training

IMAGES = 64  # most images of one batch: larger batches are not faster
# Tokens of one batch at most: with gradients these are 2 GB of activations for DeiT-Base.
TOKENS, TOKENS_WITH_GRADIENTS = 20_000, 2048
# Values per token that are held at once, in units of the embedding width: for the widest block, or with gradients for
# every block. A batch may take a quarter of the memory.
HELD, HELD_WITH_GRADIENTS = 24, 26

Observe = Callable[[int, Any, Tensor], None]
Observer = tuple[Sequence[nn.Module | None], Observe]  # modules and their observer: see `observed`


@contextmanager
def observed(modules: Sequence[nn.Module | None], see: Observe) -> Iterator[None]:
    """Call `see(index, inputs, output)` after each forward pass of each module; skip None."""
    with ExitStack() as stack:
        for i, module in enumerate(modules):
            if module is None:
                continue
            hook = module.register_forward_hook(lambda _, inputs, output, i=i: see(i, inputs, output))
            stack.callback(hook.remove)
        yield


@contextmanager
def weights_frozen(network: Network) -> Iterator[None]:
    """Take no gradients of a network's weights within the block."""
    trained = [p for p in network.parameters() if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)


@dataclass(frozen=True)
class Passes:
    """Runs networks over images: with a device, a batch size, a cache of decoded images, and progress."""

    compute: Compute
    progress: Progress
    decoded: Decoded
    shared: bool = True  # whether processes share the images; else each process reads all

    def batch_size(self, network: Network, *, gradients: bool = False) -> int:
        """Choose the batch size of a network, by its size and the machine's total memory."""
        geometry = network.geometry
        tokens = TOKENS_WITH_GRADIENTS if gradients else TOKENS
        held = HELD_WITH_GRADIENTS * len(network.block_modules) if gradients else HELD
        room = memory_bytes(self.compute.device) // 4 // (4 * held * geometry.embed)
        stages = [geometry.stages[dims.stage] for dims in network.dims]
        values = sum(stage.tokens * stage.embed for stage in stages) / len(stages)  # in the tokens at a block
        most = int(min(tokens, room) * geometry.embed / values)
        return max(min(IMAGES, most), 1)

    def show(
        self,
        network: Network,
        images: Split,
        see: Callable[[Tensor, Tensor], None],
        *,
        stage: str | None = None,
        gradients: bool = False,
        most: int = IMAGES,
        quick: bool = False,
    ) -> None:
        """Call `see(images, labels)` with batches of all images on the device; the network is there, in eval mode.

        Args:
            stage: the name for progress; None: show none.
            gradients: whether gradients may be taken, back to the images.
            most: limit of the batch size, if `see` needs more memory than the network.
            quick: whether to multiply as `rounded` does.
        """
        size = min(self.batch_size(network, gradients=gradients), most)
        own_share, device, done = self.compute.share(images) if self.shared else images, self.compute.device, 0
        progress = self.progress if stage is not None else Silent()
        was_training = network.training
        network.to(device).eval()
        shown_as = progress.stage(stage or "", len(own_share), "image")
        with shown_as as shown, torch.set_grad_enabled(gradients), self.rounded(quick), self.products(network):
            for batch, labels in self.decoded.batches(own_share, size, self.compute.workers):
                batch = batch.to(device)
                see(batch.requires_grad_(gradients and batch.is_floating_point()), labels.to(device))
                done += len(batch)
                shown.update(done)
        network.train(was_training)

    def rounded(self, quick: bool) -> AbstractContextManager[object]:
        """Multiply in bf16 within the block, if `quick` is set and the device is a processor that supports it."""
        return rounded_products(self.compute.device) if quick else nullcontext()

    def products(self, network: Network) -> AbstractContextManager[object]:
        """Multiply fp32 exactly on a processor, by the faster library for a network of this width.

        A GPU multiplies in the precision that the program allows, and convolves exactly.
        """
        device, embed = self.compute.device, network.geometry.embed
        return exact_products(device, wide=embed >= WIDE) if device.type == "cpu" else exact_convolutions()

    def run(
        self,
        network: Network,
        images: Split,
        see: Callable[[Tensor, Tensor], None],
        observers: Sequence[Observer] = (),
        *,
        stage: str | None = None,
        gradients: bool = False,
        mixed: bool = False,
        most: int = IMAGES,
        quick: bool = False,
    ) -> None:
        """Classify every image once, and call `see(outputs, labels)` with each batch.

        Args:
            observers: read the outputs of modules.
            mixed: compute in the training's precision; else in fp32.
            stage, gradients, most, quick: as for `show`.
        """
        with ExitStack() as stack:
            stack.enter_context(self.compute.accelerator.autocast() if mixed else nullcontext())
            for modules, observe in observers:
                stack.enter_context(observed(modules, observe))
            self.show(
                network, images, lambda batch, labels: see(network(batch), labels),
                stage=stage, gradients=gradients, most=most, quick=quick,
            )  # fmt: skip


def open_passes(training: Training, progress: Progress | None = None) -> Passes:
    """Start accelerate for the passes of one derivation, which share decoded images.

    Raises:
        UnknownNameError, OptionError: as `open_compute` says.
    """
    compute = open_compute(training)
    limit = available_bytes() // (SHARE * compute.accelerator.num_processes)
    return Passes(compute, progress or Silent(), Decoded(limit))


def accuracy_of(
    network: Network, images: Split, names: Sequence[str], passes: Passes, stage: str | None = None
) -> Accuracy:
    """Measure the accuracy of a network, in the training's precision.

    Args:
        names: of the classes.
        stage: the name for progress; None: show none.
    """
    compute = passes.compute
    counts = torch.zeros(3, len(names), dtype=torch.int64, device=compute.device)
    answers = torch.zeros(len(names), len(names), dtype=torch.int64, device=compute.device)
    output = Logits(network.columns)
    which = [torch.zeros(0, dtype=torch.bool, device=compute.device)]

    def add(logits: Tensor, labels: Tensor) -> None:
        counts.add_(count_correct(output, logits.float(), labels))
        answers.add_(count_answers(output, logits.float(), labels))
        which.append(output.score(logits.float(), labels).bool())

    passes.run(network, images, add, stage=stage, mixed=True)
    right = torch.zeros(len(images), dtype=torch.int64, device=compute.device)
    compute.share_rows(right).copy_(torch.cat(which))
    return from_counts(names, *(compute.sum(count).cpu() for count in (counts, answers, right)))
