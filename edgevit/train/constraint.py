"""The interface of a penalty that a method adds to the task's loss during training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from edgevit.network.network import Network


class Constraint(Protocol):
    """A penalty on the task loss, and the pruned model that the method would make now."""

    def watch(self) -> AbstractContextManager[None]:
        """Observe the network while it trains."""

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        """Compute the penalty, once per optimiser step, and figures for the history."""

    def after_step(self) -> None:
        """Update the constraint after a step of the optimiser."""

    def pruned(self) -> Network:
        """Make the slim model of the current weights."""

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that resuming needs."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state`."""
