"""What a method may add to the task's loss while a network trains."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor, nn


class Constraint(Protocol):
    """What a method adds to the task loss, and what its pruned model would be if training ended now."""

    def watch(self) -> AbstractContextManager[None]:
        """Observe the network while it trains."""

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        """The addition to the loss, once per optimiser step, and figures for the history."""

    def after_step(self) -> None:
        """Called once the optimiser has stepped."""

    def pruned(self) -> nn.Module:
        """The slim model that surgery would make now."""

    def state(self) -> dict[str, Tensor]:
        """Everything that resuming needs."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave."""
