"""The embedding of timm's SwinTransformer: layers outside its blocks that write or read tokens.

The tokens of a stage are read by the norms of its sites, and by the norm of the layer that merges four of them to one
of the next stage. The former take the mean over channels away; the latter takes away that of all four together. So an
encoder of a Swin keeps the mean, in the direction that the norms of sites do not see, and the joined tokens, multiplied
by four encoders, have the mean and the variance that they had. The linear layer behind that norm reads through its
decoder, and writes in the basis of its own stage. Patches have a norm, too, whose weight and bias act channel by
channel: a linear layer behind it, in the place where other stages merge, writes in the basis of the first stage.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.network.anatomy import Attention, Decoder
from edgevit.network.copies import without_values
from edgevit.network.families.swin.modules import Merging, SwinStage
from edgevit.network.families.vit.embedding import fold, linear_layer, plain_norm
from edgevit.network.layers import TokenNorm

_MERGED = 4  # tokens
_LEAST = 1e-6  # share of the largest singular value from which a direction counts


def is_narrower(model: Any) -> bool:
    """Whether its embedding was narrowed."""
    return isinstance(model.layers[0].downsample, nn.Linear)


def entry_norms(model: Any) -> tuple[TokenNorm, ...]:
    """The norms before the linear layers that make the tokens of each stage."""
    merging = (TokenNorm(stage.downsample.norm, i, i, _MERGED) for i, stage in enumerate(model.layers) if i)
    return (TokenNorm(model.patch_embed.norm, 0, 0), *merging)


def entry_of(stage: SwinStage) -> nn.Linear | None:
    """The linear layer that makes the tokens of a stage; None: patches are its tokens."""
    entry: Any = stage.downsample
    return entry.reduction if isinstance(entry, Merging) else entry if isinstance(entry, nn.Linear) else None


def ends_of_stage(model: Any, number: int) -> list[nn.Linear]:
    """The linear layers between the tokens of a stage and those of the whole width."""
    ends: list[Any] = [layer for block in model.layers[number].blocks for layer in (block.narrow, block.restore)]
    ends += [stage.downsample.narrow for stage in model.layers[number + 1 : number + 2]]
    return [layer for layer in ends if layer is not None]


def resize_entry(stage: SwinStage, name: str, names: Container[str] | None) -> None:
    """Give a stage the linear layer that loads weights of these `names`, with undefined weights."""
    if names is None:
        return
    with without_values():
        if isinstance(stage.downsample, Merging):
            old = stage.downsample.reduction
            bias = f"{name}.reduction.bias" in names
            stage.downsample.reduction = nn.Linear(old.in_features, old.out_features, bias=bias)
        elif f"{name}.weight" in names:
            stage.downsample = nn.Linear(stage.dim, stage.dim)


def rebased_attention(
    part: Attention, norm: Any, encode: Tensor, decode: Decoder, *, padded: bool
) -> tuple[Attention, Tensor | None]:
    """Weights of the equal function on tokens multiplied by `encode` [d', d], and the bias [d'] of the norm before.

    Where windows are `padded`, places without a token read zeros behind the norm and so are the biases of the readers.
    What the norm adds is then left in the norm, as far as it has a direction in the narrower embedding, and these
    biases stay what they were.
    """
    rebased = part.rebased(encode, fold(norm, None), decode)
    if not padded:
        return rebased, None
    readers = [(rebased.wq, rebased.bq, part.bq), (rebased.wk, rebased.bk, part.bk), (rebased.wv, rebased.bv, part.bv)]
    weight = torch.cat([w.flatten(0, 1) for w, _, _ in readers]).double()
    added = torch.cat([(b if old is None else b - old).flatten() for _, b, old in readers if b is not None]).double()
    shift = torch.linalg.pinv(weight, rtol=_LEAST) @ added
    bq, bk, bv = (b - (w.double() @ shift).to(b) for w, b, _ in readers if b is not None)
    return replace(rebased, bq=bq, bk=bk, bv=bv), shift.to(part.wo)


def plain_norms(block: Any, width: int, shift: Tensor | None) -> None:
    """Reset the norms of a block to ones, in place, after folding; `shift` is the bias of the attention's."""
    for norm in (block.norm1, block.norm2):
        if norm is not None:
            plain_norm(norm, width)
    if shift is not None:
        block.norm1.bias = nn.Parameter(shift)


def joined_tokens(stage: SwinStage) -> int:
    """How many tokens its linear layer reads side by side."""
    return _MERGED if isinstance(stage.downsample, Merging) else 1


def rebase_entry(model: Any, stage: SwinStage, encode: Tensor, decode: Decoder) -> None:
    """Change the basis of the linear layer that makes the tokens of a stage, in place; `decode`: of its norm."""
    merging = stage.downsample if isinstance(stage.downsample, Merging) else None
    norm, old = model.patch_embed.norm if merging is None else merging.norm, entry_of(stage)
    of_norm = fold(norm, None)
    weight = encode if old is None else encode @ old.weight.detach().double()
    bias = None if old is None or old.bias is None else encode @ old.bias.detach().double()
    weight, bias = of_norm.read(weight, bias, decode)
    layer = linear_layer(weight.to(norm.weight), bias.to(norm.weight))
    if merging is None:
        stage.downsample = layer
    else:
        merging.reduction = layer
    plain_norm(norm, decode.weight.shape[1])
    stage.dim = len(encode)


def restore_blocks(model: Any, encoders: Sequence[Tensor], restores: Mapping[int, Decoder]) -> None:
    """Have some blocks put out tokens of the whole width, in place; what reads them next begins with an encoder.

    Args:
        encoders: one for each stage.
        restores: by the index of a block, how it restores its tokens: weight [d, d'] and bias [d].
    """
    places = [(number, block) for number, stage in enumerate(model.layers) for block in stage.blocks]
    like = model.patch_embed.proj.weight
    for index, decode in restores.items():
        number, block = places[index]
        bias = decode.weight.new_zeros(len(decode.weight)) if decode.bias is None else decode.bias
        block.restore = linear_layer(decode.weight.to(like), bias.to(like))
        in_stage = index + 1 < len(places) and places[index + 1][0] == number
        readers: list[Any] = [places[index + 1][1]] if in_stage else [s.downsample for s in model.layers[number + 1 :]]
        for reader in readers[:1]:
            reader.narrow = linear_layer(encoders[number].to(like), None)
