"""AdamW with parameter groups of timm, which say which weights decay; and the rate of each step.

The rate is a function of the step alone, so that an interrupted training needs no state for it, as timm's schedulers
would; and its highest value may be lowered once the first loss is known.
"""

from __future__ import annotations

import math

import torch
from timm.optim import create_optimizer_v2

from edgevit.network.network import Network
from edgevit.train.settings import Training

RATE_OF_LOSS = 1e-3  # highest learning rate at a loss of 1 against the teacher, with --lr-by-loss


def make_optimizer(network: Network, training: Training) -> torch.optim.Optimizer:
    """Create AdamW, which decays weight matrices and neither norms, biases, LayerScale, positions nor tokens."""
    optimizer: torch.optim.Optimizer = create_optimizer_v2(
        network.module,  # which says what does not decay
        "adamw",
        lr=training.lr,
        weight_decay=training.weight_decay,
    )
    return optimizer


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
