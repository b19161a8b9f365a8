"""Batches of images by torch's loader, whose random numbers depend on given seeds alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def make_loader(
    images: Dataset[Any],
    batches: Iterable[Sequence[Any]],
    workers: int,
    collate: Callable[[list[Any]], Any] | None = None,
) -> DataLoader[Any]:
    """Make a loader with its own generator, so that it draws nothing from torch's: reading images changes no result."""
    return DataLoader(
        images, batch_sampler=batches, num_workers=workers, generator=torch.Generator(), collate_fn=collate  # type: ignore[arg-type]
    )  # fmt: skip


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers by this seed within the block, and leave the generators as they were.

    timm draws from `random` and from numpy, and torchvision from torch.
    """
    python_state, torch_state, numpy_state = random.getstate(), torch.get_rng_state(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    # Not torch.manual_seed: where CUDA is not up yet it queues a call with its whole traceback, each time.
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
