"""Modules of slim models that timm does not have: an attention with its own widths, and a block that lacks a site."""

from __future__ import annotations

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.network.anatomy import BlockDims, packed_widths

_NAMES = {
    site: (site, f"norm{number}", f"ls{number}", f"drop_path{number}") for site, number in (("attn", 1), ("mlp", 2))
}


class SlimAttention(nn.Module):
    """Multi-head self-attention with separate QK and VO widths; the same in every head.

    Shapes: B batch, N tokens, d embedding width, H heads, q QK width, v VO width.
    `qkv` stacks all heads' queries, then keys, then values: [H * (2q + v), d]. Logits are divided by sqrt(q).
    """

    def __init__(self, dim: int, dims: BlockDims, *, qkv_bias: bool = True, proj_bias: bool = True) -> None:
        super().__init__()
        self.num_heads, (self.qk_dim, self.vo_dim) = dims.heads, dims.head_widths
        self.scale = self.qk_dim**-0.5
        self.qkv = nn.Linear(dim, sum(packed_widths(dims)), bias=qkv_bias)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(self.num_heads * self.vo_dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(0.0)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        batch, tokens, _ = x.shape
        widths = (self.num_heads * self.qk_dim, self.num_heads * self.qk_dim, self.num_heads * self.vo_dim)
        # each [B, H, N, q or v]
        q, k, v = (
            part.reshape(batch, tokens, self.num_heads, -1).transpose(1, 2) for part in self.qkv(x).split(widths, -1)
        )
        q, k = self.placed(q), self.placed(k)
        dropout = self.attn_drop.p if self.training else 0.0
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal)
        x = x.transpose(1, 2).reshape(batch, tokens, widths[2])
        out: Tensor = self.proj_drop(self.proj(x))
        return out

    def placed(self, part: Tensor) -> Tensor:
        """Queries or keys [B, H, N, q] before their product; unchanged here."""
        return part


class SingleSiteBlock(nn.Module):
    """A block of timm without its attention or without its FFN; or without both, which returns its input.

    It has the modules of the block under the same names, so that names of weights do not change.
    """

    def __init__(self, block: Any, site: Literal["attn", "mlp"] | None) -> None:
        super().__init__()
        # timm's ResPostBlock normalises the outputs of sites, without LayerScale
        self.post_norm = not hasattr(block, "ls1")
        names = () if site is None else _NAMES[site]
        self.names = tuple(name for name in names if hasattr(block, name))
        for name in self.names:
            setattr(self, name, getattr(block, name))
        self.train(block.training)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if not self.names:
            return x
        module, norm, *after = (getattr(self, name) for name in self.names)
        mask = {"attn_mask": attn_mask, "is_causal": is_causal} if "attn" in self.names else {}
        added = norm(module(x, **mask)) if self.post_norm else module(norm(x), **mask)
        for step in after:  # LayerScale, stochastic depth
            added = step(added)
        summed: Tensor = x + added
        return summed
