"""Masks: let a network compute what a slice of it does, without changing a shape.

Queries and values beyond the slice's widths, and neurons, are multiplied by zero. Keys do not matter where queries are
zero, so the result is exactly that of the slice (`piad.cut`). If the network has its largest directions in the first
channels of the embedding (`solve.embedding.nested_basis`), the other channels are zeroed before each norm, and the mean
of the first ones is subtracted, as the slice's norm does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.network.anatomy import BlockDims, pack
from edgevit.network.network import Network


class Dropping(Protocol):
    """What a network drops in a forward pass."""

    def of_module(self, tensor: Tensor, block: int, part: int) -> Tensor:
        """Mask a projection's output [B, N, H * (2q + v)] (part 0), or the neurons [B, N, e] (part 1)."""

    def narrowed(self, tokens: Tensor) -> Tensor:
        """Mask tokens [..., d] before a norm."""


@dataclass(frozen=True)
class Masks:
    """The factor of each dimension: zero or one for a slice."""

    # Masks per block: of the projection's outputs [H * (2q + v)] and of the neurons [e].
    blocks: list[tuple[Tensor, Tensor]]
    embed: int | None = None  # number of the tokens' first channels that reach each norm; None: all

    def of_module(self, tensor: Tensor, block: int, part: int) -> Tensor:
        return tensor * self.blocks[block][part].to(tensor.dtype)

    def narrowed(self, tokens: Tensor) -> Tensor:
        if self.embed is None or self.embed == tokens.shape[-1]:
            return tokens
        first = tokens[..., : self.embed]
        return F.pad(first - first.mean(-1, keepdim=True), (0, tokens.shape[-1] - self.embed))


def make_masks(
    whole: Sequence[BlockDims],
    dims: Sequence[BlockDims],
    device: torch.device,
    embed: int | None = None,
) -> Masks:
    """Make the masks of the slice with these dimensions and this number of channels."""

    def ones(width: int, of: int) -> Tensor:
        return (torch.arange(of, device=device) < width).float()

    masks = []
    for before, after in zip(whole, dims, strict=True):
        widths = zip(after.head_widths, before.head_widths, strict=True)
        queries, values = (ones(width, of).repeat(before.heads, 1) for width, of in widths)
        masks.append((pack(queries, torch.ones_like(queries), values), ones(after.ffn, before.ffn)))
    return Masks(masks, embed)


@contextmanager
def masking(network: Network, masks: Callable[[], Dropping | None]) -> Iterator[None]:
    """Apply the masks that the function returns at each forward pass; None applies none."""

    def masked(tensor: Tensor, block: int, part: int) -> Tensor:
        dropping = masks()
        return tensor if dropping is None else dropping.of_module(tensor, block, part)

    def narrowed_tokens(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        dropping = masks()
        return None if dropping is None else (dropping.narrowed(inputs[0]), *inputs[1:])

    with ExitStack() as stack:
        if network.geometry.fixed_channels is None:
            for norm in network.token_norms:
                stack.callback(norm.module.register_forward_pre_hook(narrowed_tokens).remove)
        for block, (heads, neurons) in enumerate(zip(network.projections, network.ffn_outputs, strict=True)):
            if heads is not None:
                hook = heads.register_forward_hook(lambda _, __, output, i=block: masked(output, i, 0))
                stack.callback(hook.remove)
            if neurons is not None:
                before = neurons.register_forward_pre_hook(lambda _, inputs, i=block: (masked(inputs[0], i, 1),))
                stack.callback(before.remove)
        yield


@contextmanager
def masked(
    network: Network, dims: Sequence[BlockDims], device: torch.device, embed: int | None = None
) -> Iterator[None]:
    """Let the network compute what its slice with these dimensions and this number of channels does."""
    masks = make_masks(list(network.dims), dims, device, embed)
    with masking(network, lambda: masks):
        yield
