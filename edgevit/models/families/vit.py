"""timm's VisionTransformer and distilled DeiT: blocks with fused qkv and a two-layer FFN.

Typed as Any inside: nn.Module tells a type checker nothing of the attributes that timm's models have.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
from timm.layers import LayerScale, Mlp, PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import Attention, Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.models.anatomy import BlockDims, BlockWeights
from edgevit.models.cost import Geometry
from edgevit.models.slim import SlimAttention, bare_copy

ROTARY = "rotary embeddings stand between the projections and the dot product, so QK cannot be factorised"


def matches(model: Any) -> bool:
    return isinstance(model, (VisionTransformer, Eva))


def _reason_against(block: Any) -> str | None:
    """Why this block cannot be factorised, or None."""
    if type(block) not in (Block, ResPostBlock):
        return f"its blocks are {type(block).__name__}, which edgevit cannot read yet"
    attn, mlp = block.attn, block.mlp
    if type(attn) not in (Attention, SlimAttention):
        if "Rope" in type(attn).__name__:
            return ROTARY
        return f"its attention is {type(attn).__name__}, which edgevit cannot read yet"
    if isinstance(attn, Attention):
        if not isinstance(attn.q_norm, nn.Identity):
            return "qk-norm stands between the projections and the dot product, so QK cannot be factorised"
        if not isinstance(getattr(attn, "norm", None) or nn.Identity(), nn.Identity):
            return "a normalisation stands between values and output projection, so VO cannot be factorised"
        if getattr(attn, "gate", None) is not None:
            return "a gate stands between values and output projection, so VO cannot be factorised"
    if type(mlp) is not Mlp or not isinstance(mlp.fc1, nn.Linear):
        return f"its FFN is {type(mlp).__name__}; only the two-layer FFN can be pruned"
    if not isinstance(mlp.norm, nn.Identity):
        return "a normalisation inside the FFN mixes its neurons, so they cannot be merged"
    return None


def _name(model: Any) -> str:
    config = getattr(model, "default_cfg", None)
    return str((config.get("architecture") if isinstance(config, dict) else None) or type(model).__name__)


def check(model: Any) -> None:
    name, patch = _name(model), model.patch_embed
    if getattr(model, "rope", None) is not None:
        raise UnsupportedModelError(f"cannot prune {name}: {ROTARY}")
    if type(patch) is not PatchEmbed:
        raise UnsupportedModelError(
            f"cannot prune {name}: its patch embedding is {type(patch).__name__}, which edgevit cannot read yet"
        )
    if patch.proj.in_channels != 3:
        raise UnsupportedModelError(
            f"cannot prune {name}: it reads {patch.proj.in_channels} channel(s), and images are read as RGB: "
            f"train the base on 3 channels (grey images are read as RGB, too)"
        )
    if getattr(model, "attn_pool", None) is not None:
        raise UnsupportedModelError(
            f"cannot prune {name}: attention pooling in the head is not supported; try --model-arg global_pool=token"
        )
    for index, block in enumerate(model.blocks):
        if reason := _reason_against(block):
            raise UnsupportedModelError(f"cannot prune {name}: in block {index}, {reason}")


def _heads_first(bias: Tensor | None, heads: int) -> Tensor | None:
    return None if bias is None else bias.reshape(heads, -1)


def _read_block(block: Any) -> BlockWeights:
    attn, mlp = block.attn, block.mlp
    heads = attn.num_heads
    if isinstance(attn, SlimAttention):
        widths = [heads * attn.qk_dim, heads * attn.qk_dim, heads * attn.vo_dim]
    else:
        widths = [attn.attn_dim] * 3
    wq, wk, wv = (w.unflatten(0, (heads, -1)) for w in attn.qkv.weight.split(widths))
    biases = (None, None, None) if attn.qkv.bias is None else attn.qkv.bias.split(widths)
    bq, bk, bv = (_heads_first(b, heads) for b in biases)
    wo = attn.proj.weight.unflatten(1, (heads, -1)).permute(1, 0, 2)  # [d, H * v] -> [H, d, v]
    return BlockWeights(
        wq=wq, bq=bq, wk=wk, bk=bk, wv=wv, bv=bv, wo=wo, bo=attn.proj.bias,
        w1=mlp.fc1.weight, b1=mlp.fc1.bias, w2=mlp.fc2.weight, b2=mlp.fc2.bias,
    )  # fmt: skip


def read(model: Any) -> list[BlockWeights]:
    return [_read_block(block) for block in model.blocks]


def _attention(dim: int, dims: BlockDims, *, qkv_bias: bool, proj_bias: bool) -> nn.Module:
    if dims.qk == dims.vo:
        timm_attention: nn.Module = Attention(
            dim, num_heads=dims.heads, attn_head_dim=dims.qk, qkv_bias=qkv_bias, proj_bias=proj_bias
        )
        return timm_attention
    return SlimAttention(dim, dims.heads, dims.qk, dims.vo, qkv_bias=qkv_bias, proj_bias=proj_bias)


def _resize_block(block: Any, dim: int, dims: BlockDims, *, proj_bias: bool) -> None:
    """Replace the four linear layers by ones of `dims` on the meta device: shapes without weights."""
    old, mlp = block.attn, block.mlp
    with torch.device("meta"):
        block.attn = _attention(dim, dims, qkv_bias=old.qkv.bias is not None, proj_bias=proj_bias)
        ffn_bias = mlp.fc1.bias is not None
        mlp.fc1, mlp.fc2 = nn.Linear(dim, dims.ffn, bias=ffn_bias), nn.Linear(dims.ffn, dim, bias=ffn_bias)
    block.attn.attn_drop.p, block.attn.proj_drop.p = old.attn_drop.p, old.proj_drop.p
    block.attn.train(block.training)


def resize(model: Any, dims: Sequence[BlockDims], names: Container[str] | None = None) -> None:
    for i, (block, block_dims) in enumerate(zip(model.blocks, dims, strict=True)):
        attn = block.attn
        # Surgery folds a value bias into the output bias, which must then exist; an untouched base may lack it.
        made = attn.proj.bias is not None or attn.qkv.bias is not None
        proj_bias = made if names is None else f"blocks.{i}.attn.proj.bias" in names
        _resize_block(block, model.embed_dim, block_dims, proj_bias=proj_bias)


def _parameter(weight: Tensor) -> nn.Parameter:
    """Take a tensor over as a parameter, or a copy of it where it is part of another model's."""
    shared = isinstance(weight, nn.Parameter) or weight._base is not None
    weight = weight.detach()
    return nn.Parameter(weight.clone(memory_format=torch.contiguous_format) if shared else weight.contiguous())


def _filled(bias: Tensor | None, like: Tensor) -> Tensor:
    """A bias vector of one entry per row of `like` [H, w, d], zero where there was none."""
    return like.new_zeros(like.shape[0] * like.shape[1]) if bias is None else bias.flatten()


def _write_block(block: Any, weights: BlockWeights) -> None:
    attn, mlp = block.attn, block.mlp
    attn.qkv.weight = _parameter(torch.cat([w.flatten(0, 1) for w in (weights.wq, weights.wk, weights.wv)]))
    if attn.qkv.bias is not None:
        pairs = ((weights.bq, weights.wq), (weights.bk, weights.wk), (weights.bv, weights.wv))
        attn.qkv.bias = _parameter(torch.cat([_filled(bias, like) for bias, like in pairs]))
    attn.proj.weight = _parameter(weights.wo.permute(1, 0, 2).flatten(1))  # [H, d, v] -> [d, H * v]
    if weights.bo is not None:
        attn.proj.bias = _parameter(weights.bo)
    mlp.fc1.weight, mlp.fc2.weight = _parameter(weights.w1), _parameter(weights.w2)
    if weights.b1 is not None:
        mlp.fc1.bias = _parameter(weights.b1)
    if weights.b2 is not None:
        mlp.fc2.bias = _parameter(weights.b2)


def classifiers(model: Any) -> list[nn.Linear]:
    heads = [model.head, model.head_dist] if isinstance(model, VisionTransformerDistilled) else [model.head]
    if not all(isinstance(head, nn.Linear) for head in heads):
        raise UnsupportedModelError(f"{_name(model)} has no classifier; give it one with --model-arg num_classes=...")
    return heads


def keep_classes(model: Any, classes: Sequence[int]) -> None:
    """Remove every row of the classifier but these, in this order, in place."""
    index = torch.as_tensor(classes, device=classifiers(model)[0].weight.device)
    for head in classifiers(model):
        head.weight = nn.Parameter(head.weight.detach()[index].clone())
        if head.bias is not None:
            head.bias = nn.Parameter(head.bias.detach()[index].clone())
        head.out_features = len(classes)
    model.num_classes = len(classes)


def build(model: Any, blocks: Sequence[BlockWeights]) -> Any:
    # The layers that are replaced anyway need not be copied first: most of the time and of the memory.
    pairs = [(block.attn, block.mlp) for block in model.blocks]
    replaced = [layer for attn, mlp in pairs for layer in (attn.qkv, attn.proj, mlp.fc1, mlp.fc2)]
    slim: Any = bare_copy(model, replaced)
    for block, weights in zip(slim.blocks, blocks, strict=True):
        _resize_block(block, slim.embed_dim, weights.dims, proj_bias=weights.bo is not None)
        _write_block(block, weights)
    return slim


def geometry(model: Any) -> Geometry:
    heads = classifiers(model)
    patch = model.patch_embed.proj
    first = model.blocks[0]
    inside = sum(p.numel() for block in model.blocks for p in (*block.attn.parameters(), *block.mlp.parameters()))
    return Geometry(
        embed=model.embed_dim,
        tokens=model.patch_embed.num_patches + model.num_prefix_tokens,
        patches=model.patch_embed.num_patches,
        patch_values=patch.in_channels * patch.kernel_size[0] * patch.kernel_size[1],
        outputs=sum(head.out_features for head in heads),
        classifier_heads=len(heads),
        other_params=sum(p.numel() for p in model.parameters())
        - inside
        - sum(p.numel() for head in heads for p in head.parameters()),
        qkv_bias=first.attn.qkv.bias is not None,
        attention_out_bias=first.attn.proj.bias is not None or first.attn.qkv.bias is not None,
        ffn_bias=first.mlp.fc1.bias is not None,
    )


def ffn_activations(model: Any) -> list[nn.Module]:
    return [block.mlp.act for block in model.blocks]


def attention_inputs(model: Any) -> list[nn.Module]:
    return [block.attn for block in model.blocks]


def projections(model: Any) -> list[nn.Module]:
    return [block.attn.qkv for block in model.blocks]


def final_tokens(model: Any) -> nn.Module:
    norm: nn.Module = model.norm
    return norm


def attention_outputs(model: Any) -> list[nn.Module]:
    return [block.attn.proj for block in model.blocks]


def ffn_outputs(model: Any) -> list[nn.Module]:
    return [block.mlp.fc2 for block in model.blocks]


def layers(model: Any) -> list[nn.Module]:
    return list(model.blocks)


def first_tokens(model: Any, images: Tensor) -> Tensor:
    tokens: Tensor = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    return tokens


def answers(model: Any, tokens: Tensor) -> Tensor:
    logits: Tensor = model.forward_head(model.norm(tokens))
    return logits


def residual_scales(model: Any) -> list[tuple[Tensor | float, Tensor | float] | None]:
    def scale(module: Any) -> Tensor | float:
        return module.gamma if isinstance(module, LayerScale) else 1.0

    return [(scale(b.ls1), scale(b.ls2)) if isinstance(b, Block) else None for b in model.blocks]


def keep_blocks(model: Any, indices: Sequence[int]) -> None:
    model.blocks = nn.Sequential(*(model.blocks[i] for i in indices))
