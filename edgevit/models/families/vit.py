"""timm's VisionTransformer and its distilled DeiT: pre-norm or res-post-norm blocks with fused qkv and a two-layer FFN."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from timm.layers import Mlp
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Attention, Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.models.blocks import BlockDims, BlockWeights
from edgevit.models.macs import Geometry
from edgevit.models.slim import SlimAttention


def matches(model: nn.Module) -> bool:
    return isinstance(model, VisionTransformer)


def _reason_against(block: nn.Module) -> str | None:
    """Why this block cannot be factorised, or None."""
    if type(block) not in (Block, ResPostBlock):
        return f"its blocks are {type(block).__name__}, which edgevit cannot read yet"
    attn, mlp = block.attn, block.mlp
    if type(attn) not in (Attention, SlimAttention):
        if "Rope" in type(attn).__name__:
            return "rotary embeddings stand between the projections and the dot product, so QK cannot be factorised"
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


def check(model: nn.Module) -> None:
    name = model.default_cfg.get("architecture") if isinstance(getattr(model, "default_cfg", None), dict) else None
    name = name or type(model).__name__
    if getattr(model, "attn_pool", None) is not None:
        raise UnsupportedModelError(
            f"cannot prune {name}: attention pooling in the head is not supported; try --model-arg global_pool=token"
        )
    for index, block in enumerate(model.blocks):
        if reason := _reason_against(block):
            raise UnsupportedModelError(f"cannot prune {name}: in block {index}, {reason}")


def _heads_first(bias: Tensor | None, heads: int) -> Tensor | None:
    return None if bias is None else bias.unflatten(0, (heads, -1))


def _read_block(block: nn.Module) -> BlockWeights:
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


def read(model: nn.Module) -> list[BlockWeights]:
    return [_read_block(block) for block in model.blocks]


def _attention(dim: int, dims: BlockDims, *, qkv_bias: bool, proj_bias: bool) -> nn.Module:
    if dims.qk == dims.vo:
        timm_attention: nn.Module = Attention(
            dim, num_heads=dims.heads, attn_head_dim=dims.qk, qkv_bias=qkv_bias, proj_bias=proj_bias
        )
        return timm_attention
    return SlimAttention(dim, dims.heads, dims.qk, dims.vo, qkv_bias=qkv_bias, proj_bias=proj_bias)


def _resize_block(block: nn.Module, dim: int, dims: BlockDims) -> None:
    """Replace the four linear layers by ones of `dims` on the meta device: shapes without weights."""
    old, mlp = block.attn, block.mlp
    qkv_bias = old.qkv.bias is not None
    with torch.device("meta"):
        # A value bias is folded into the output bias, which must then exist.
        block.attn = _attention(dim, dims, qkv_bias=qkv_bias, proj_bias=qkv_bias or old.proj.bias is not None)
        ffn_bias = mlp.fc1.bias is not None
        mlp.fc1, mlp.fc2 = nn.Linear(dim, dims.ffn, bias=ffn_bias), nn.Linear(dims.ffn, dim, bias=ffn_bias)
    block.attn.attn_drop.p, block.attn.proj_drop.p = old.attn_drop.p, old.proj_drop.p
    block.attn.train(block.training)


def resize(model: nn.Module, dims: Sequence[BlockDims]) -> None:
    for block, block_dims in zip(model.blocks, dims, strict=True):
        _resize_block(block, model.embed_dim, block_dims)


def _parameter(weight: Tensor) -> nn.Parameter:
    """Take a tensor over as a parameter, or a copy of it where it is part of another model's."""
    shared = isinstance(weight, nn.Parameter) or weight._base is not None
    weight = weight.detach()
    return nn.Parameter(weight.clone(memory_format=torch.contiguous_format) if shared else weight.contiguous())


def _filled(bias: Tensor | None, like: Tensor) -> Tensor:
    """A bias vector of one entry per row of `like` [H, w, d], zero where there was none."""
    return like.new_zeros(like.shape[0] * like.shape[1]) if bias is None else bias.flatten()


def _write_block(block: nn.Module, weights: BlockWeights) -> None:
    attn, mlp = block.attn, block.mlp
    attn.qkv.weight = _parameter(torch.cat([w.flatten(0, 1) for w in (weights.wq, weights.wk, weights.wv)]))
    if attn.qkv.bias is not None:
        pairs = ((weights.bq, weights.wq), (weights.bk, weights.wk), (weights.bv, weights.wv))
        attn.qkv.bias = _parameter(torch.cat([_filled(bias, like) for bias, like in pairs]))
    attn.proj.weight = _parameter(weights.wo.permute(1, 0, 2).flatten(1))  # [H, d, v] -> [d, H * v]
    if attn.proj.bias is not None:
        attn.proj.bias = _parameter(weights.wo.new_zeros(weights.wo.shape[1]) if weights.bo is None else weights.bo)
    mlp.fc1.weight, mlp.fc2.weight = _parameter(weights.w1), _parameter(weights.w2)
    if weights.b1 is not None:
        mlp.fc1.bias = _parameter(weights.b1)
    if weights.b2 is not None:
        mlp.fc2.bias = _parameter(weights.b2)


def classifiers(model: nn.Module) -> list[nn.Linear]:
    heads = [model.head, model.head_dist] if isinstance(model, VisionTransformerDistilled) else [model.head]
    if not all(isinstance(head, nn.Linear) for head in heads):
        raise UnsupportedModelError("the model has no classifier; give it one with --model-arg num_classes=...")
    return heads


def keep_classes(model: nn.Module, classes: Sequence[int]) -> None:
    """Remove every row of the classifier but these, in this order, in place."""
    index = torch.as_tensor(classes, device=classifiers(model)[0].weight.device)
    for head in classifiers(model):
        head.weight = nn.Parameter(head.weight.detach()[index].clone())
        if head.bias is not None:
            head.bias = nn.Parameter(head.bias.detach()[index].clone())
        head.out_features = len(classes)
    model.num_classes = len(classes)


def build(model: nn.Module, blocks: Sequence[BlockWeights]) -> nn.Module:
    # The layers that are replaced anyway need not be copied first: most of the time and of the memory.
    pairs = [(block.attn, block.mlp) for block in model.blocks]
    replaced = [layer for attn, mlp in pairs for layer in (attn.qkv, attn.proj, mlp.fc1, mlp.fc2)]
    slim = copy.deepcopy(model, {id(layer): layer for layer in replaced})
    resize(slim, [weights.dims for weights in blocks])
    for block, weights in zip(slim.blocks, blocks, strict=True):
        _write_block(block, weights)
    return slim


def geometry(model: nn.Module) -> Geometry:
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


def ffn_activations(model: nn.Module) -> list[nn.Module]:
    return [block.mlp.act for block in model.blocks]


def attention_inputs(model: nn.Module) -> list[nn.Module]:
    return [block.attn for block in model.blocks]
