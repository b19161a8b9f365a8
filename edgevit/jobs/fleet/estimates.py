"""What a derivation takes, work and memory, from the size of its base."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from edgevit.jobs.jobs_file import DeriveJob
from edgevit.network.network import Network
from edgevit.train.settings import Training

PROCESS_BYTES = 800_000_000  # memory of Python with torch and images
# Copies of the weights: base, model and statistics; with gradients, moments and teacher.
UNTRAINED_COPIES, TRAINED_COPIES = 4, 8
KEPT = 18  # numbers of the embedding's width that training keeps of each token and block, and 2 of each pair of a head
HEAD_WIDTH = 64
USUAL_STEPS, MEASURED_IMAGES = 1000, 3000  # steps where a method's own rule decides; images of statistics and accuracy
BASE = ("base", "checkpoint", "model_args")  # arguments that tell bases apart


@dataclass(frozen=True)
class BaseSize:
    """The figures of a base from which its derivations are estimated."""

    macs: int
    params: int
    kept: int  # count of numbers that training keeps in memory for one image


def size_of(network: Network) -> BaseSize:
    """The size of a base."""
    geometry, blocks = network.geometry, len(network.block_modules)
    params = sum(parameter.numel() for parameter in network.parameters())
    pairs = geometry.tokens**2 * max(geometry.embed // HEAD_WIDTH, 1)
    kept = blocks * (KEPT * geometry.tokens * geometry.embed + 2 * pairs)
    return BaseSize(geometry.macs(network.dims), params, kept)


def work_of(derivation: DeriveJob, size: BaseSize) -> float:
    """MACs of a derivation, roughly: of its training and of what is measured."""
    training = Training(**derivation.arguments["training"])
    steps = USUAL_STEPS if training.steps is None else training.steps
    return float(size.macs * (3 * steps * training.batch + MEASURED_IMAGES))


def memory_of(derivation: DeriveJob, size: BaseSize) -> int:
    """Bytes of the process of a derivation, within a factor of two; with a GPU, without the memory of the GPU."""
    training = Training(**derivation.arguments["training"])
    on_gpu = training.device != "cpu" and torch.cuda.is_available()
    if training.steps == 0 or on_gpu:
        return PROCESS_BYTES + 4 * UNTRAINED_COPIES * size.params
    micro_batch = training.batch // training.grad_accum
    return PROCESS_BYTES + 4 * (TRAINED_COPIES * size.params + micro_batch * size.kept)


def first_of_each(derivations: Iterable[DeriveJob], key: Callable[[DeriveJob], object]) -> list[DeriveJob]:
    """The first of the derivations that are alike in a key."""
    firsts: dict[object, DeriveJob] = {}
    for derivation in derivations:
        firsts.setdefault(key(derivation), derivation)
    return list(firsts.values())
