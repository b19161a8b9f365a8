"""Measure the divergence between the outputs of two networks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.problem import Problem
from edgevit.network.network import Network
from edgevit.network.output import Output
from edgevit.train.passes import Passes


def network_outputs(network: Network, images: Split, passes: Passes, *, quick: bool = False) -> Tensor:
    """The outputs [images, ...] of a network, in every process; on the CPU.

    `quick` is as for `Passes.show`.
    """
    batches: list[Tensor] = []
    replace(passes, shared=False).run(
        network, images, lambda batch, _: batches.append(batch.float().cpu()), quick=quick
    )
    return torch.cat(batches)


def base_outputs(problem: Problem, images: Split, *, quick: bool = False) -> Tensor:
    """The `network_outputs` the problem's network, which every budget shares through the cache."""
    key = {**problem.identity, "images": images.content_sha256(), "quick": quick}

    def measure() -> dict[str, Tensor]:
        return {"outputs": network_outputs(problem.network, images, problem.passes, quick=quick)}

    return problem.cache.tensors("outputs", key, measure)["outputs"]


def divergences(output: Output, reference: Tensor, outputs: Tensor) -> Tensor:
    """The divergence [images] fp64 of the outputs of one network from those of another for each of the same images."""
    return output.divergence(reference.double(), outputs.double())


def divergence(output: Output, reference: Tensor, outputs: Tensor) -> float:
    """The mean of the `divergences`."""
    return mean_nats(divergences(output, reference, outputs))


def mean_nats(each: Tensor) -> float:
    """The mean of some `divergences`; rounding may make those of equal outputs negative."""
    return max(float(each.mean()), 0.0)
