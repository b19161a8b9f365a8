"""timm's Swin as a Swin on tokens (`modules`), if its parts are those that edgevit can prune."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from timm.layers import Mlp, PatchEmbed
from timm.models import FeatureHookNet
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from timm.models.swin_transformer import WindowAttention as TimmAttention
from timm.models.swin_transformer_v2 import SwinTransformerV2Stage
from torch import nn

from edgevit.network.anatomy import BlockDims
from edgevit.network.families.swin.listed import is_listed, swin_of_list
from edgevit.network.families.swin.modules import SwinStage, TokenSwin, WindowAttention, WindowBlock, Windows
from edgevit.network.families.vit.parts import odd_linear


def reason_against(model: Any) -> str | None:
    """The reason why a Swin of timm cannot be pruned, or None."""
    if isinstance(model, FeatureHookNet):
        return "its FeatureHookNet reads maps by hooks, which copies do not have; make it with feature_cls='getter'"
    model = swin_of_list(model) if is_listed(model) else model
    if isinstance(model.layers[0], SwinTransformerV2Stage):
        return "the cosine attention of Swin V2 normalises queries and keys before their product; give a Swin (V1)"
    patch = model.patch_embed
    if type(model) is not SwinTransformer or type(patch) is not PatchEmbed:
        return f"it is a {type(model).__name__} with {type(patch).__name__}, which edgevit cannot read yet"
    if patch.proj.in_channels != 3:
        return f"it reads {patch.proj.in_channels} channel(s), and images are read as RGB: train it on 3 channels"
    if any(side % step for side, step in zip(patch.img_size, patch.patch_size, strict=True)):
        whole = ", ".join(str(side // step * step) for side, step in zip(patch.img_size, patch.patch_size, strict=True))
        return f"images of {patch.img_size} do not divide into patches; try --model-arg 'img_size=({whole})'"
    for stage in model.layers:
        for block in stage.blocks:
            if type(block) is not SwinTransformerBlock or type(block.attn) is not TimmAttention:
                return f"its blocks are {type(block).__name__} with {type(block.attn).__name__}"
            if block.always_partition:
                return "its windows may be larger than its map; try --model-arg always_partition=false"
            if type(block.mlp) is not Mlp or not isinstance(block.mlp.norm, nn.Identity):
                return f"its FFN is {type(block.mlp).__name__}; only FFNs of two layers can be pruned"
            if (reason := odd_linear(block.attn, block.mlp)) is not None:
                return reason
            if not all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in (block.norm1, block.norm2)):
                return f"its norms are {type(block.norm1).__name__}, expected LayerNorms with biases"
    return None


def on_tokens(model: Any, kind: type[TokenSwin] = TokenSwin, *, pads_first: bool = False) -> Any:
    """Convert timm's Swin to a network of this class and of the same function on tokens, but for `pads_first`.

    Its images have one size from then on, and no blocks are left out in training: the number of blocks, by which timm
    chooses the rates, changes.
    """
    swin: Any = kind.__new__(kind)
    swin.__dict__.update(model.__dict__, _modules=dict(model._modules))
    swin.patch_embed = PatchEmbed.__new__(PatchEmbed)
    swin.patch_embed.__dict__.update(model.patch_embed.__dict__, flatten=True, strict_img_size=True)
    swin.layers = nn.Sequential(*(_stage(model, number, pads_first) for number in range(len(model.layers))))
    return swin.train(model.training)


def _stage(model: Any, number: int, pads_first: bool) -> SwinStage:
    stage = model.layers[number]
    (rows, columns), usual = stage.output_resolution, model._ref_window_sizes[number]
    height, width = stage.blocks[0].window_size if len(stage.blocks) else map(min, (rows, columns), usual)
    dim = stage.downsample.reduction.out_features if number else model.patch_embed.proj.out_channels
    converted = SwinStage(stage, Windows((rows, columns), (height, width), pads_first=pads_first), dim)
    converted.blocks = nn.Sequential(*(_block(block, converted) for block in stage.blocks))
    return converted


def _block(block: Any, stage: SwinStage) -> WindowBlock:
    old, shifted = block.attn, any(block.shift_size)
    width = old.qkv.out_features // (3 * old.num_heads)
    windows = replace(stage.windows, shift=stage.shift) if shifted else stage.windows
    with torch.device("meta"):
        attn = WindowAttention(windows, stage.dim, BlockDims(old.num_heads, width, width, 0), qkv_bias=False)
    attn.qkv, attn.proj, attn.attn_drop, attn.proj_drop = old.qkv, old.proj, old.attn_drop, old.proj_drop
    attn.relative_position_bias_table = old.relative_position_bias_table
    converted = WindowBlock(block, attn, shifted=shifted)
    for name in ("order", "filled", "places", "relative", "apart"):  # constants, where the weights are
        if (constant := getattr(attn, name)) is not None and not old.qkv.weight.is_meta:
            setattr(attn, name, constant.to(old.qkv.weight.device))
    return converted
