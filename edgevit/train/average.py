"""A moving average of a network's weights, which is evaluated and kept in place of the weights of the last step.

timm's ModelEmaV3 holds a second network. Constraints and teachers observe the network in training, so the average is
swapped into that one, and holds only the weights that are trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from edgevit.network.network import Network


class Average:
    """The mean of a network's trained weights over about the last 1 / (1 - decay) steps.

    The decay is smaller in the first steps, so that the initial weights do not remain in the average.
    """

    def __init__(self, network: Network, decay: float) -> None:
        self.network, self.decay, self.steps = network, decay, 0
        self.weights = {name: p.detach().clone() for name, p in self._trained()}

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.network.named_parameters() if p.requires_grad)

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after a step."""
        self.steps += 1
        decay = min(self.decay, self.steps / (self.steps + 9))
        for name, p in self._trained():
            self.weights[name].lerp_(p, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the network the average as its weights within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, p in self._trained():
            current = p.clone()
            p.copy_(self.weights[name])
            self.weights[name].copy_(current)

    @torch.no_grad()
    def take(self) -> None:
        """Give the network the average as its weights permanently."""
        for name, p in self._trained():
            p.copy_(self.weights[name])

    def state(self) -> dict[str, Tensor]:
        return {"steps": torch.tensor(self.steps), **{f"weights.{n}": t for n, t in self.weights.items()}}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        for name, tensor in self.weights.items():
            tensor.copy_(state[f"weights.{name}"])
