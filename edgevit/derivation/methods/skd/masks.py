"""Masks: a network computes what a slice of it does, and no shape changes.

Queries and values beyond the kept widths, and neurons, are multiplied by zero. With queries zero the keys no longer
matter, so this is the slice exactly (`piad.cut`). Where the network has its largest directions in the first channels of
the embedding (`algebra.embedding.nested_basis`), the last ones are zeros before each norm, and what the first ones
share is taken away, as the slice's norm does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.network.anatomy import BlockDims
from edgevit.network.families import Family, family_of


class Dropping(Protocol):
    """What a network leaves out of a forward pass."""

    def of_module(self, tensor: Tensor, block: int, part: int) -> Tensor:
        """What stays of a projection's output [B, N, H * (2q + v)] (part 0), or of the neurons [B, N, e] (part 1)."""

    def narrowed(self, tokens: Tensor) -> Tensor:
        """Tokens [..., d] as a norm is given them."""


@dataclass(frozen=True)
class Masks:
    """What each dimension is multiplied by: of a slice zero or one."""

    blocks: list[tuple[Tensor, Tensor]]  # per block, the projection's output [H * (2q + v)] and the neurons [e]
    embed: int | None = None  # how many of the first channels of tokens stay before each norm; None: all

    def of_module(self, tensor: Tensor, block: int, part: int) -> Tensor:
        return tensor * self.blocks[block][part].to(tensor.dtype)

    def narrowed(self, tokens: Tensor) -> Tensor:
        if self.embed is None or self.embed == tokens.shape[-1]:
            return tokens
        first = tokens[..., : self.embed]
        return F.pad(first - first.mean(-1, keepdim=True), (0, tokens.shape[-1] - self.embed))


def make_masks(
    family: Family,
    whole: Sequence[BlockDims],
    kept: Sequence[BlockDims],
    device: torch.device,
    embed: int | None = None,
) -> Masks:
    def ones(width: int, of: int) -> Tensor:
        return (torch.arange(of, device=device) < width).float()

    masks = []
    for now, then in zip(whole, kept, strict=True):
        of_one_head = (ones(then.qk, now.qk), ones(now.qk, now.qk), ones(then.vo, now.vo))
        heads = family.pack(*(part.repeat(now.heads, 1) for part in of_one_head))
        masks.append((heads, ones(then.ffn, now.ffn)))
    return Masks(masks, embed)


@contextmanager
def masking(network: nn.Module, masks: Callable[[], Dropping | None]) -> Iterator[None]:
    """Apply the masks that are asked for at each forward pass; None applies none."""
    family = family_of(network)

    def masked(tensor: Tensor, block: int, part: int) -> Tensor:
        now = masks()
        return tensor if now is None else now.of_module(tensor, block, part)

    def narrowed_tokens(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        now = masks()
        return None if now is None else (now.narrowed(given[0]), *given[1:])

    with ExitStack() as stack:
        if family.geometry(network).fixed_embed is None:
            for norm in family.token_norms(network):
                stack.callback(norm.register_forward_pre_hook(narrowed_tokens).remove)
        for block, (heads, neurons) in enumerate(
            zip(family.projections(network), family.ffn_outputs(network), strict=True)
        ):
            if heads is not None:
                hook = heads.register_forward_hook(lambda _, __, output, i=block: masked(output, i, 0))
                stack.callback(hook.remove)
            if neurons is not None:
                before = neurons.register_forward_pre_hook(lambda _, given, i=block: (masked(given[0], i, 1),))
                stack.callback(before.remove)
        yield


@contextmanager
def masked(
    network: nn.Module, kept: Sequence[BlockDims], device: torch.device, embed: int | None = None
) -> Iterator[None]:
    """Let the network compute what its slice of these dimensions, and of so many channels, does."""
    family = family_of(network)
    masks = make_masks(family, [b.dims for b in family.read(network)], kept, device, embed)
    with masking(network, lambda: masks):
        yield
