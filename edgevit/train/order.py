"""The images of each training step, as a function of seed and step alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from edgevit.train.settings import Training


class _Epochs:
    """Consecutive permutations, so that the counts of all images differ by at most one."""

    def __init__(self, images: int, seed: int) -> None:
        self.images, self.seed = images, seed
        self.permutation, self.epoch = torch.empty(0), -1

    def __getitem__(self, number: int) -> int:
        if number // self.images != self.epoch:
            self.epoch = number // self.images
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            self.permutation = torch.randperm(self.images, generator=generator)
        return int(self.permutation[number % self.images])


def unlabelled_share(images: int, unlabelled: int, batch_size: int) -> int:
    """Count the unlabelled images of a step: in proportion to both sets, at least one and at most half."""
    if not unlabelled:
        return 0
    return min(max(round(batch_size * unlabelled / (images + unlabelled)), 1), batch_size // 2)


def sample_order(
    images: int,
    training: Training,
    first_step: int,
    last_step: int,
    rank: int = 0,
    world: int = 1,
    unlabelled: int = 0,
) -> Iterator[list[tuple[int, int]]]:
    """Yield for each micro-batch of one process the positions and augmentation seeds of its images.

    Positions from `images` on are unlabelled images, which are spread evenly over the step.
    """
    size = training.batch
    micro = size // (training.grad_accum * world)
    share = unlabelled_share(images, unlabelled, size)
    seed = training.seed * 1_000_003
    labelled, unlabelled_order = _Epochs(images, seed), _Epochs(unlabelled, seed + (1 << 40))
    for step in range(first_step, last_step):
        for accumulated in range(training.grad_accum):
            start = (accumulated * world + rank) * micro
            batch = []
            for i in range(start, start + micro):
                before = i * share // size  # unlabelled images of this step so far
                if (i + 1) * share // size > before:
                    position = images + unlabelled_order[step * share + before]
                else:
                    position = labelled[step * (size - share) + i - before]
                drawn = ((training.seed << 40) + step * size + i) % (1 << 63)  # the highest seed of generators
                batch.append((position, drawn))
            yield batch
