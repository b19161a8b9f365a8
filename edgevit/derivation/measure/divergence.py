"""How far a network's answers are from another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.problem import Problem
from edgevit.train.passes import Passes


def answers(
    network: nn.Module, images: Split, columns: Sequence[int], passes: Passes, *, quick: bool = False
) -> Tensor:
    """The logarithms of a network's probabilities by image, in every process: [images, columns], fp64 on the CPU.

    `quick` is as for `Passes.show`.
    """
    found: list[Tensor] = []
    alone = replace(passes, shared=False)

    def see(logits: Tensor, _: Tensor) -> None:
        found.append(logits[:, list(columns)].double().cpu().log_softmax(1))

    alone.run(network, images, see, quick=quick)
    return torch.cat(found)


def base_answers(problem: Problem, images: Split, *, quick: bool = False) -> Tensor:
    """The `answers` of the network that the problem is to cut: the same for every budget."""
    key = {**problem.identity, "images": images.content_sha256(), "quick": quick}

    def take() -> dict[str, Tensor]:
        return {"answers": answers(problem.network, images, problem.columns, problem.passes, quick=quick)}

    return problem.cache.tensors("taught", key, take)["answers"]


def divergence(taught: Tensor, found: Tensor) -> float:
    """KL(taught || found) of two networks' `answers` to the same images, in nats per image."""
    return max(float(F.kl_div(found, taught, log_target=True, reduction="batchmean")), 0.0)
