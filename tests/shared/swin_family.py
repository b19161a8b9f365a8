"""timm's SwinTransformer as edgevit's functions of a family describe it; it cannot be pruned yet.

It shows what a network of stages and windows takes: this file, and nothing of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from timm.models.swin_transformer import SwinTransformer
from torch import nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Axis, Site, SiteKind
from edgevit.network.cost import Geometry, NetworkStage, attention_terms, ffn_terms
from edgevit.network.families.vit.parts import read_attention, read_ffn
from edgevit.network.layers import AttentionLayer, BlockLayers, Ends, FfnLayer

FROZEN: dict[Axis, str] = {
    "tokens": "windows are full of tokens, so none can be dropped",
    "embed": "the layers that merge tokens read whole embeddings",
}


def matches(model: Any) -> bool:
    return isinstance(model, SwinTransformer)


def check(model: Any) -> None:
    for stage in model.layers:
        for block in stage.blocks:
            side, window = stage.output_resolution, block.window_size
            if any(a % b for a, b in zip(side, window, strict=True)):
                raise UnsupportedModelError(f"windows of {window} do not divide {side} tokens")


def _blocks(model: Any) -> Iterator[tuple[int, Any]]:
    """Each block with the number of its stage."""
    for number, stage in enumerate(model.layers):
        for block in stage.blocks:
            yield number, block


def blocks(model: Any) -> list[BlockLayers]:
    return [_block_layers(index, stage, block) for index, (stage, block) in enumerate(_blocks(model))]


def _block_layers(index: int, stage: int, block: Any) -> BlockLayers:
    def around(kind: SiteKind, number: int) -> dict[str, Any]:
        return {
            "site": Site(index, kind, FROZEN),
            "before": getattr(block, f"norm{number}"),
            "after": (getattr(block, f"drop_path{number}"),),
            "scale": 1.0,
        }

    def token_scores(*_: Any) -> Any:
        raise UnsupportedModelError(FROZEN["tokens"])

    attention = AttentionLayer(
        module=block.attn,
        readers=(block.attn.qkv,),
        output=block.attn.proj,
        read=partial(_read_attention, block.attn),
        token_scores=token_scores,
        **around("attention", 1),
    )
    ffn = FfnLayer(
        module=block.mlp,
        readers=(block.mlp.fc1,),
        output=block.mlp.fc2,
        read=partial(read_ffn, block.mlp),
        **around("ffn", 2),
    )
    return BlockLayers(block, attention, ffn, stage=stage)


def _read_attention(attn: Any) -> Any:
    attn.attn_dim = attn.proj.in_features  # as timm's attention of a ViT names it
    return read_attention(attn)


def ends(model: Any) -> Ends:
    patch, head = model.patch_embed, model.head.fc
    return Ends(
        input_size=(patch.proj.in_channels, *patch.img_size),
        final=model.norm,
        norm=model.norm,
        reads_mean=True,
        classifiers=(head,) if isinstance(head, nn.Linear) else (),
    )


def geometry(model: Any) -> Geometry:
    heads, patch = ends(model).classifiers, model.patch_embed.proj
    outside = sum(p.numel() for name, p in model.named_parameters() if ".blocks." not in name)
    return Geometry(
        stages=tuple(map(_stage, model.layers)),
        patches=model.patch_embed.num_patches,
        patch_values=patch.in_channels * patch.kernel_size[0] * patch.kernel_size[1],
        outputs=sum(head.out_features for head in heads),
        classifier_heads=len(heads) or 1,
        other_params=outside - sum(p.numel() for head in heads for p in head.parameters()),
        sites=tuple(layer.site for b in blocks(model) for layer in (b.attention, b.ffn) if layer is not None),
    )


def _stage(stage: Any) -> NetworkStage:
    block = stage.blocks[0]
    side = stage.output_resolution
    tokens, reduction = side[0] * side[1], getattr(stage.downsample, "reduction", None)
    return NetworkStage(
        embed=block.attn.qkv.in_features,
        tokens=tokens,
        attention=attention_terms(
            biases=block.attn.qkv.bias is not None, vectors=3, per_head=len(block.attn.relative_position_bias_table)
        ),
        ffn=ffn_terms(1, biases=block.mlp.fc1.bias is not None, vectors=3),
        window=block.window_area,
        merging=0 if reduction is None else tokens * reduction.weight.numel(),
    )
