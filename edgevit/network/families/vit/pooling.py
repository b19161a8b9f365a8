"""Attention pooling: one query, which is a parameter, attends to all tokens, and an FFN follows, as SigLIP has it.

It reads tokens of the whole width: where the embedding is narrower, the last block restores them.
"""

from __future__ import annotations

from typing import Any

from timm.layers import AttentionPoolLatent
from torch import nn


def of(model: Any) -> Any:
    """The attention pooling of a model; None: it pools otherwise."""
    return getattr(model, "attn_pool", None)


def reason_against(model: Any) -> str | None:
    """The reason why a model with attention pooling cannot be pruned, or None."""
    pool = of(model)
    if type(pool) is not AttentionPoolLatent:
        return f"its head pools by {type(pool).__name__}, which edgevit cannot read yet"
    if not isinstance(model.fc_norm, nn.Identity):
        return "a norm is between the attention that pools and the classifier"
    return None


def params(model: Any) -> int:
    """The parameters of the attention pooling of a model; 0 without one."""
    return 0 if (pool := of(model)) is None else sum(p.numel() for p in pool.parameters())


def macs(model: Any) -> int:
    """The MACs of one image in the attention pooling of a model; 0 without one."""
    if (pool := of(model)) is None:
        return 0
    tokens = model.patch_embed.num_patches + (model.num_prefix_tokens if model.pool_include_prefix else 0)
    once = sum(m.weight.numel() for m in pool.modules() if isinstance(m, nn.Linear) and m is not pool.kv)
    scores = 2 * pool.num_heads * pool.head_dim  # of a query and a key, and of a value and its share
    return int(tokens * pool.kv.weight.numel() + pool.latent_len * (once + tokens * scores))
