"""Close gates while a network trains, so that it learns to do without what is removed (HEART-ViT, Eq. 10).

G = sigmoid(gamma (S - tau)), and gamma rises from step to step. For a head, S is its standardised Hessian score, and G
multiplies its output. For a token, S is the score that ranks it at inference, standardised per image, and tau lies
between the last token that stays and the first that is removed. A token's G weighs it in all later attention,
exp(logit) times G, and in the mean that the head may take. Unlike in the paper, G does not multiply the token itself:
LayerNorm restores the token's size, so that no block would notice a gate before it is shut. This way shut gates equal
removed tokens exactly, unless the head pools patches otherwise than by their mean, which the method refuses. No
gradient passes through S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.derivation.plan import Plan
from edgevit.derivation.realise import realise
from edgevit.network.anatomy import BlockDims
from edgevit.network.layers import SoftGates
from edgevit.network.network import Network

_SHUT = 1e-6  # the smallest gate: its logarithm is added to logits


@dataclass(frozen=True)
class Closing:
    """What is removed, and how fast gates close."""

    plan: Callable[[nn.Module], Plan]  # computes the plan for the network with its present weights
    dims: Sequence[BlockDims]  # sizes of the pruned blocks
    head_gates: Sequence[Tensor]  # [H_l] per block: S - tau, above 0 for heads that stay; infinite if none is removed
    first: float  # gamma, the steepness of the gates, at the first step
    last: float  # gamma at the last step
    steps: int


class ClosingGates:
    """The `train.constraint.Constraint` of a training in which gates close."""

    def __init__(self, network: Network, closing: Closing) -> None:
        self.network, self.closing = network, closing
        self.step = 0
        self.log_gates = torch.zeros(0)  # [B, N], of the tokens that the next block reads
        geometry = network.geometry
        self.prefix = geometry.tokens - geometry.patches
        self._scores = torch.zeros(0)

    @property
    def gamma(self) -> float:
        c = self.closing
        return float(c.first * (c.last / c.first) ** (self.step / max(c.steps - 1, 1)))

    # -- in forward passes

    @contextmanager
    def watch(self) -> Iterator[None]:
        network = self.network
        with ExitStack() as stack:
            layers = network.block_modules
            stack.callback(layers[0].register_forward_pre_hook(self._begin()).remove)
            stack.enter_context(network.weighing(lambda _: self._log_weights()))
            for i, layer in enumerate(layers):
                stack.callback(layer.register_forward_hook(self._leave(i)).remove)
            for i, inputs in enumerate(network.attention_inputs):
                if inputs is not None and self.closing.dims[i].tokens:
                    stack.callback(inputs.register_forward_pre_hook(self._rank(i)).remove)
            for i, output in enumerate(network.attention_outputs):
                if output is not None and self.closing.head_gates[i].isfinite().all():
                    stack.callback(output.register_forward_pre_hook(self._gate_heads(i)).remove)
            if any(dims.tokens for dims in self.closing.dims):
                stack.callback(network.ends.final.register_forward_hook(self._pool()).remove)
            yield

    def _heads(self, block: int) -> Tensor:
        return (self.gamma * self.closing.head_gates[block]).sigmoid()

    def _begin(self) -> Any:
        def open_all(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.log_gates = inputs[0].new_zeros(inputs[0].shape[:2])

        return open_all

    def _log_weights(self) -> Tensor | None:
        # While all gates are open there are no weights, and attention stays fused.
        return self.log_gates if bool((self.log_gates < 0).any()) else None

    def _rank(self, block: int) -> Any:
        @torch.no_grad()
        def score_tokens(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            gates = SoftGates(self.log_gates, self._heads(block).to(inputs[0]))
            self._scores = self.network.token_scores(block, inputs[0], gates)

        return score_tokens

    def _leave(self, block: int) -> Any:
        count = self.closing.dims[block].tokens

        @torch.no_grad()
        def close(_: nn.Module, __: Any, ___: Tensor) -> None:
            if count:
                gates = closing_gates(self._scores[:, self.prefix :].float(), count - self.prefix, self.gamma)
                shut = gates.clamp_min(_SHUT).log().to(self.log_gates)
                self.log_gates = self.log_gates + torch.nn.functional.pad(shut, (self.prefix, 0))

        return close

    def _gate_heads(self, block: int) -> Any:
        def weigh(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            gates = self._heads(block).to(inputs[0])
            return (inputs[0] * gates.repeat_interleave(inputs[0].shape[-1] // len(gates)),)

        return weigh

    def _pool(self) -> Any:
        """Weigh patches by their gates, for a head that takes their mean."""

        def weigh(_: nn.Module, __: Any, tokens: Tensor) -> Tensor:
            gates = self.log_gates[:, self.prefix :].exp()
            weight = (gates / gates.mean(1, keepdim=True)).to(tokens).unsqueeze(-1)
            return torch.cat([tokens[:, : self.prefix], tokens[:, self.prefix :] * weight], dim=1)

        return weigh  # not a bound method, which a copy of the network would copy together with this object

    # -- for the training loop

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        return next(self.network.parameters()).new_zeros(()), {"gamma": self.gamma}

    def after_step(self) -> None:
        self.step += 1

    def pruned(self) -> Network:
        return realise(self.network, self.closing.plan(self.network)).eval()

    def state(self) -> dict[str, Tensor]:
        return {"step": torch.tensor(self.step)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.step = int(state["step"])


def closing_gates(scores: Tensor, stay: int, gamma: float) -> Tensor:
    """Return G of each token, above 1/2 for the `stay` highest scores. Shapes: scores [B, M], to [B, M]."""
    standard = (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True).clamp_min(1e-12)  # Eq. 8
    ordered = standard.sort(1, descending=True).values
    tau = (ordered[:, stay - 1] + ordered[:, stay]) / 2
    return (gamma * (standard - tau.unsqueeze(1))).sigmoid()


def head_gates(scores: Tensor, removed: Sequence[int]) -> Tensor:
    """Return S - tau of each head [H], with tau between the removed heads and the others; infinite if none is."""
    if not removed:
        return torch.full_like(scores, torch.inf)
    mask = torch.ones(len(scores), dtype=torch.bool)
    mask[list(removed)] = False
    return scores - (scores[mask].min() + scores[~mask].max()) / 2
