"""How far a network's answers are from another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.train.passes import Passes


def answers(network: nn.Module, images: Split, columns: Sequence[int], passes: Passes) -> Tensor:
    """The logarithms of its probabilities for every image, in every process: [images, columns], fp64 on the CPU."""
    found: list[Tensor] = []
    alone = replace(passes, shared=False)
    alone.run(network, images, lambda logits, _: found.append(logits[:, list(columns)].double().cpu().log_softmax(1)))
    return torch.cat(found)


def divergence(taught: Tensor, found: Tensor) -> float:
    """KL(taught || found) of two networks' `answers` to the same images, in nats per image."""
    return max(float(F.kl_div(found, taught, log_target=True, reduction="batchmean")), 0.0)
