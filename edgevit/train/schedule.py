"""How high the learning rate is at each step."""

from __future__ import annotations

import math

from edgevit.train.settings import Training

RATE_OF_LOSS = 1e-3  # highest learning rate at a loss of 1 against the teacher, where the rate goes by the loss


def learning_rate(training: Training, step: int, highest: float) -> float:
    """The rate of a step, counted from 0, of a schedule that rises to `highest`."""
    warmup, steps = training.warmup_steps or 0, training.steps or 0
    if step < warmup:
        return highest * (step + 1) / warmup
    if training.schedule == "constant":
        return highest
    share = (step - warmup) / max(steps - warmup, 1)
    return highest * 0.5 * (1 + math.cos(math.pi * share))


def highest_rate(loss: float) -> float:
    """The learning rate at which Adam can do no more harm than there is to mend, for a loss against the teacher.

    Adam's first steps move every weight by the learning rate, however small the gradient. Near the teacher the loss is
    quadratic: such a step adds an amount that grows with the rate's square, so the rate goes by the root of the loss.
    """
    return RATE_OF_LOSS * math.sqrt(loss)
