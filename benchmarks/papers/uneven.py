"""Attention with heads of different widths within a block, computed one by one, as in Vulcan's Table 7.

No plan of edgevit describes it: a block has one QK and one VO width, and its attention is one product over all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from edgevit.agent.protobuf import graph_nodes
from edgevit.network.anatomy import BlockDims


class Widths(NamedTuple):
    """The widths of the heads of one block."""

    qk: tuple[int, ...]
    vo: tuple[int, ...]

    def __str__(self) -> str:
        return ", ".join(f"{name} {'+'.join(map(str, widths))}" for name, widths in self._asdict().items())


class OneByOne(nn.Module):
    """An attention with timm's weights whose channels are divided among its heads by these widths."""

    def __init__(self, attention: Any, widths: Widths) -> None:
        super().__init__()
        self.qkv, self.proj, self.widths = attention.qkv, attention.proj, widths

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        qk, vo = self.widths
        parts = self.qkv(x).split([*qk, *qk, *vo], dim=-1)  # [B, N, D] each
        heads = len(qk)
        embeds = [
            (q * q.shape[-1] ** -0.5 @ k.transpose(1, 2)).softmax(-1) @ v
            for q, k, v in zip(parts[:heads], parts[heads : 2 * heads], parts[2 * heads :], strict=True)
        ]
        out: Tensor = self.proj(torch.cat(embeds, dim=-1))
        return out


def even(blocks: Sequence[BlockDims]) -> list[Widths]:
    """Return the widths that the blocks have."""
    return [Widths((d.qk,) * d.heads, (d.vo,) * d.heads) for d in blocks]


def drawn(blocks: Sequence[BlockDims], seed: int) -> list[Widths]:
    """Draw widths that add up to the blocks': QK and VO apart, every partition as likely as another."""
    random = Random(seed)

    def shared_out(total: int, heads: int) -> tuple[int, ...]:
        ends = [0, *sorted(random.sample(range(1, total), heads - 1)), total]
        return tuple(end - start for start, end in pairwise(ends))

    return [Widths(shared_out(d.heads * d.qk, d.heads), shared_out(d.heads * d.vo, d.heads)) for d in blocks]


def one_by_one(network: Any, widths: Sequence[Widths]) -> Any:
    """Replace every attention of a ViT by such an attention, in place."""
    for block, of_block in zip(network.module.blocks, widths, strict=True):
        block.attn = OneByOne(block.attn, of_block)
    return network


def attention_counts(file: Path) -> dict[str, int]:
    """Count the nodes of the first block's attention in an exported file, and the products among them."""
    kinds = [node.kind for node in graph_nodes(str(file)) if node.name.startswith("blocks.0.attn")]
    return {"attention_nodes": len(kinds), "attention_products": kinds.count("MatMul")}
