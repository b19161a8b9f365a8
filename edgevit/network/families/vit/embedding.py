"""The embedding of timm's VisionTransformer: layers outside its blocks that write or read tokens.

Tokens are only added to, and read through a LayerNorm. They can therefore get another basis: outputs are multiplied by
`encode`, and readers invert it. `anatomy` does this for the weights of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from timm.layers import LayerScale
from torch import Tensor, nn

from edgevit.network.anatomy import Decoder, Fold
from edgevit.network.copies import without_values
from edgevit.network.families.vit import pooling
from edgevit.network.families.vit.slim import SlimBlock

_POOLS = ("token", "avg", "")  # linear, so that they commute with a change of basis
_VECTORS = ("cls_token", "dist_token", "reg_token", "pos_embed")  # tokens, and vectors added to them


def _norms_of(block: Any) -> list[Any]:
    """The norms of the sites of a block."""
    return [getattr(block, norm) for norm, part in (("norm1", "attn"), ("norm2", "mlp")) if hasattr(block, part)]


def final_norm(model: Any) -> Any:
    """The norm before the head, before or after pooling; None: there is none."""
    norms = [n for n in (model.norm, model.fc_norm) if not isinstance(n, nn.Identity)]
    return norms[0] if len(norms) == 1 else None


def reason_against(model: Any) -> str | None:
    """The reason why tokens cannot get another basis; None: they can, apart from reasons of blocks."""
    if not isinstance(model.norm_pre, nn.Identity):
        return "a norm before the first block scales the tokens channel by channel"
    if not isinstance(model.patch_embed.norm, nn.Identity):
        return "a norm of the patches scales the tokens channel by channel"
    if model.global_pool not in _POOLS and pooling.of(model) is None:
        return f"pooling by {model.global_pool!r} compares the tokens channel by channel"
    if final_norm(model) is None:
        return "no norm subtracts their mean before the head"
    for norm in (*(norm for block in model.blocks for norm in _norms_of(block)), final_norm(model)):
        if not isinstance(norm, nn.LayerNorm):
            return f"a {type(norm).__name__} does not subtract their mean, as a LayerNorm does"
    return None


def fold(norm: Any, scale: Any) -> Fold:
    """Factors to fold into the weights of a site: the weight and bias of its norm, and its LayerScale."""
    gain, shift = (None, None) if norm.weight is None else (norm.weight.detach(), norm.bias)
    factor = scale.gamma.detach() if isinstance(scale, LayerScale) else None
    return Fold(gain, None if shift is None else shift.detach(), factor)


def reset_norms(block: Any, width: int) -> None:
    """Reset the norms and LayerScale of a block to ones, in place, after folding."""
    for norm in _norms_of(block):
        plain_norm(norm, width)
    for name in ("ls1", "ls2"):
        if isinstance(scale := getattr(block, name, None), LayerScale):
            scale.gamma = nn.Parameter(scale.gamma.new_ones(width))


def plain_norm(norm: Any, width: int) -> None:
    """Set the weight of a norm to ones and its bias to zeros, in place."""
    norm.normalized_shape = (width,)
    for name, value in (("weight", 1.0), ("bias", 0.0)):
        if (old := getattr(norm, name)) is not None:
            setattr(norm, name, nn.Parameter(old.new_full((width,), value)))


def rebase_head(norm: Any, decode: Decoder, heads: Sequence[nn.Linear]) -> None:
    """Change the basis of the layers after the blocks, in place; `norm`: the final one, with its decoder."""
    whole, width = decode.weight.shape
    of_head = fold(norm, None)
    for head in heads:  # which may read several vectors side by side: weight [parts, C, d]
        parts = head.weight.detach().reshape(len(head.weight), -1, whole).transpose(0, 1)
        shifts = head.weight.new_zeros(parts.shape[:2])
        if head.bias is not None:
            shifts[0] = head.bias.detach()
        weight, shifts = of_head.read(parts, shifts, decode)
        head.weight, head.bias = nn.Parameter(weight.transpose(0, 1).flatten(1)), nn.Parameter(shifts.sum(0))
        head.in_features = head.weight.shape[1]
    plain_norm(norm, width)


def rebase_first(model: Any, encode: Tensor) -> None:
    """Change the basis of the layers before the blocks, in place. Shape: encode [d', d]."""
    width, patch = len(encode), model.patch_embed.proj
    patch.weight = nn.Parameter(torch.einsum("ed,dchw->echw", encode, patch.weight.detach().double()).to(patch.weight))
    if patch.bias is not None:
        patch.bias = nn.Parameter((encode @ patch.bias.detach().double()).to(patch.bias))
    patch.out_channels = width
    for name in _VECTORS:
        if (vectors := getattr(model, name, None)) is not None:
            setattr(model, name, nn.Parameter((vectors.detach().double() @ encode.mT).to(vectors)))
    model.embed_dim = width


def restored(blocks: Iterable[Any], encode: Tensor, restores: Mapping[int, Decoder]) -> list[SlimBlock]:
    """Blocks of tokens `encode` [d', d] times those of the whole width, some of which put out the latter.

    Args:
        restores: by the index of a block, how it restores its tokens: weight [d, d'] and bias [d]. The block after it
            begins with `encode`.
    """
    slims = []
    for i, block in enumerate(blocks):
        slim = block if isinstance(block, SlimBlock) else SlimBlock(block, ("attn", "mlp"))
        like = next(slim.parameters(), encode.float())
        if i - 1 in restores:
            slim.narrow = linear_layer(encode.to(like), None)
        if i in restores:
            weight, bias = restores[i].weight.to(like), restores[i].bias
            slim.restore = linear_layer(weight, weight.new_zeros(len(weight)) if bias is None else bias.to(like))
        slims.append(slim)
    return slims


def linear_ends(model: Any) -> list[nn.Linear]:
    """The linear layers between a narrower embedding and the whole width, in order, the last to the latter."""
    ends = [getattr(block, name, None) for block in model.blocks for name in ("narrow", "restore")]
    return [layer for layer in ends if layer is not None]


def linear_layer(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer of these weights."""
    rows, columns = weight.shape
    with without_values():
        layer = nn.Linear(columns, rows, bias=bias is not None)
    layer.weight = nn.Parameter(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer
