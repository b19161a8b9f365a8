"""AdamW with parameter groups of timm, which say which weights decay; and the rate of each step.

The rate is a function of the step alone, so that an interrupted training needs no state for it, as timm's schedulers
would; and its highest value may be lowered once the first loss is known.
"""

from __future__ import annotations

import math

import torch
from timm.optim import create_optimizer_v2
from torch import Tensor

from edgevit.network.network import Network
from edgevit.train.settings import Training

RATE_OF_LOSS = 1e-3  # highest learning rate at a loss of 1 against the teacher, with --lr-by-loss
TYPICAL_RMS = 0.05  # of the weights of a layer of a trained ViT


def make_optimizer(network: Network, training: Training) -> torch.optim.Optimizer:
    """Create AdamW, which decays weight matrices and neither norms, biases, LayerScale, positions nor tokens.

    Each group has a `share` of the learning rate: that of `share_of_rate` with `lr_by_loss` and a teacher, else 1.
    """
    optimizer: torch.optim.Optimizer = create_optimizer_v2(
        network.module,  # which says what does not decay
        "adamw",
        lr=training.lr,
        weight_decay=training.weight_decay,
    )
    shares = _shares(network) if training.lr_by_loss and training.has_teacher else {}
    optimizer.param_groups = [
        {**group, "params": [p for p in group["params"] if shares.get(id(p), 1.0) == share], "share": share}
        for group in optimizer.param_groups
        for share in sorted({shares.get(id(p), 1.0) for p in group["params"]})
    ]
    return optimizer


def _shares(network: Network) -> dict[int, float]:
    """The share of the rate of each parameter of a layer with a matrix, by its id."""
    shares: dict[int, float] = {}
    for layer in network.module.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim > 1:
            shares |= dict.fromkeys(map(id, layer.parameters(recurse=False)), share_of_rate(weight))
    return shares


def share_of_rate(weight: Tensor) -> float:
    """Compute the share of the learning rate of a layer, from its weight: less than 1 if its values are small.

    Adam's first steps move every weight by the learning rate. A closed form multiplies LayerScale into the weights:
    DINOv2's then have a root mean square of 0.004 to 0.2, and a step that suits most would change some by half.
    """
    rms = float(weight.detach().square().mean().sqrt())
    return min(rms / TYPICAL_RMS, 1.0) if rms else 1.0


def learning_rate(training: Training, step: int, highest: float) -> float:
    """Compute the rate of a step, counted from 0, of a schedule that rises to `highest`."""
    warmup, steps = training.warmup_steps or 0, training.steps or 0
    if step < warmup:
        return highest * (step + 1) / warmup
    if training.schedule == "constant":
        return highest
    share = (step - warmup) / max(steps - warmup, 1)
    return highest * 0.5 * (1 + math.cos(math.pi * share))


def highest_rate(loss: float) -> float:
    """Compute the rate at which a step of Adam adds no more loss than there is, from the loss against the teacher.

    Adam's first steps move every weight by the learning rate, however small the gradient. Near the teacher the loss is
    quadratic: such a step adds a loss that grows with the square of the rate. So the rate is proportional to the root
    of the loss.
    """
    return RATE_OF_LOSS * math.sqrt(loss)
