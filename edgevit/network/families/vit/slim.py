"""Modules of slim models that timm does not have: an attention with its own widths, and a block of any sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import BlockDims, packed_widths

_NAMES = {
    site: (site, f"norm{number}", f"ls{number}", f"drop_path{number}") for site, number in (("attn", 1), ("mlp", 2))
}
_ENDS = ("narrow", "restore")


class SlimAttention(nn.Module):
    """Multi-head self-attention with separate QK and VO widths; the same in every head.

    Tokens attend to all, or to those of their window: the tokens in order are so many windows of equal size.

    Shapes: B batch, N tokens, d embedding width, H heads, q QK width, v VO width.
    `qkv` stacks all heads' queries, then keys, then values: [H * (2q + v), d]. Logits are divided by sqrt(q).
    """

    def __init__(self, dim: int, dims: BlockDims, *, qkv_bias: bool = True, proj_bias: bool = True) -> None:
        super().__init__()
        self.window_count = dims.windows
        self.num_heads, (self.qk_dim, self.vo_dim) = dims.heads, dims.head_widths
        self.scale = self.qk_dim**-0.5
        self.qkv = nn.Linear(dim, sum(packed_widths(dims)), bias=qkv_bias)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(self.num_heads * self.vo_dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(0.0)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        batch, tokens, _ = x.shape
        if attn_mask is not None and self.window_count > 1:
            raise UnsupportedModelError("tokens of windows have no weights")
        widths = (self.num_heads * self.qk_dim, self.num_heads * self.qk_dim, self.num_heads * self.vo_dim)
        # each [B, H, N, q or v], where a window is one more image
        q, k, v = (
            part.reshape(batch * self.window_count, tokens // self.window_count, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(widths, -1)
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


class SlimBlock(nn.Module):
    """A block of timm with some of its sites; without any it returns its input.

    It has the modules of the block under the same names, so that names of weights do not change. In a narrower
    embedding it may have two more: `narrow` reads tokens of the whole width, and `restore` puts them out.
    """

    def __init__(self, block: Any, sites: Sequence[str]) -> None:
        """Take the modules of these sites, `attn` and `mlp`, in this order."""
        super().__init__()
        # timm's ResPostBlock normalises the outputs of sites, without LayerScale
        self.post_norm: bool = block.post_norm if isinstance(block, SlimBlock) else not hasattr(block, "ls1")
        self.sites = tuple(tuple(name for name in _NAMES[site] if hasattr(block, name)) for site in sites)
        for name in (*(name for names in self.sites for name in names), *_ENDS):
            if hasattr(block, name):
                setattr(self, name, getattr(block, name))
        self.train(block.training)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        block: Any = self  # has attributes that nn.Module does not declare
        x = self.add_sites(block.narrow(x) if hasattr(self, "narrow") else x, attn_mask, is_causal)
        return block.restore(x) if hasattr(self, "restore") else x

    def add_sites(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Add the outputs of the sites to tokens of the embedding's own width."""
        for names in self.sites:
            module, norm, *after = (getattr(self, name) for name in names)
            mask = {"attn_mask": attn_mask, "is_causal": is_causal} if "attn" in names else {}
            added = norm(module(x, **mask)) if self.post_norm else module(norm(x), **mask)
            for step in after:  # LayerScale, stochastic depth
                added = step(added)
            x = x + added
        return x
