"""Measure the divergence between the outputs of two networks."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.problem import Problem
from edgevit.network.network import Network
from edgevit.train.passes import Passes


def answers(network: Network, images: Split, passes: Passes, *, quick: bool = False) -> Tensor:
    """The log-probabilities of each image, in every process: [images, classes], fp64 on the CPU.

    `quick` is as for `Passes.show`.
    """
    batches: list[Tensor] = []

    def add_batch(logits: Tensor, _: Tensor) -> None:
        batches.append(network.output.of(logits).double().cpu().log_softmax(1))

    replace(passes, shared=False).run(network, images, add_batch, quick=quick)
    return torch.cat(batches)


def base_answers(problem: Problem, images: Split, *, quick: bool = False) -> Tensor:
    """The `answers` of the problem's network, which every budget shares through the cache."""
    key = {**problem.identity, "images": images.content_sha256(), "quick": quick}

    def measure() -> dict[str, Tensor]:
        return {"answers": answers(problem.network, images, problem.passes, quick=quick)}

    return problem.cache.tensors("taught", key, measure)["answers"]


def divergence(reference: Tensor, outputs: Tensor) -> float:
    """KL(reference || outputs) of two networks' `answers` to the same images, in nats per image."""
    return max(float(F.kl_div(outputs, reference, log_target=True, reduction="batchmean")), 0.0)
