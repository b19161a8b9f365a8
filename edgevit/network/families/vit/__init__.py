"""timm's VisionTransformer, distilled DeiT and DINOv3: blocks with fused qkv and an FFN of two layers, plain or gated.

Models are typed as Any, as nn.Module does not declare the attributes of timm's models.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from timm.layers import GluMlp, LayerScale, Mlp, PatchEmbed, SwiGLU
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import Attention as TimmAttention
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Axis, Block, BlockDims, Decoder, Site, SiteKind, decoder
from edgevit.network.copies import bare_copy, without_values
from edgevit.network.cost import Geometry, NetworkStage, attention_terms, ffn_terms
from edgevit.network.families import architecture
from edgevit.network.families.vit import backbones, embedding, pooling, release, tokens, windowed
from edgevit.network.families.vit import interchange as interchange
from edgevit.network.families.vit.parts import (
    attn_of,
    has_input_bias,
    input_layers,
    is_post_norm,
    keep_rows,
    make_attention,
    mlp_of,
    odd_linear,
    read_attention,
    read_ffn,
    windows_of,
    write_attention,
    write_ffn,
)
from edgevit.network.families.vit.rotary import RotaryAttention
from edgevit.network.families.vit.rotary import reason_against as reason_against_dinov3
from edgevit.network.families.vit.slim import SlimAttention, SlimBlock
from edgevit.network.families.vit.tokens import TokenBlock
from edgevit.network.layers import AttentionLayer, BlockLayers, Ends, FfnLayer, SoftGates

_ROTARY = "rotary embeddings are between the projections and the dot product, so QK cannot be factorised"
_PLACED = "rotary embeddings are constants of all tokens in order, so none can be dropped"
_POST_NORM = "a norm after each site reads the whole embedding width"
_RESTORED = "it was narrowed before, and linear layers give tokens of the whole width to the head"
_SITES: tuple[tuple[str, SiteKind], ...] = (("attn", "attention"), ("mlp", "ffn"))


def matches(model: Any) -> bool:
    if isinstance(model, (VisionTransformer, Eva)):
        return True
    return backbones.is_backbone(model) or release.is_dinov2_release(model) or windowed.is_windowed(model)


def _reason_against(block: Any) -> str | None:
    """The reason why this block cannot be factorised, or None."""
    if type(block) not in (TimmBlock, ResPostBlock, SlimBlock, TokenBlock):
        return f"its blocks are {type(block).__name__}, which edgevit cannot read yet"
    attn, mlp = attn_of(block), mlp_of(block)
    if attn is not None and (reason := _reason_against_attention(attn)):
        return reason
    return None if mlp is None else _reason_against_ffn(mlp)


def _reason_against_attention(attn: Any) -> str | None:
    if type(attn) not in (TimmAttention, SlimAttention, RotaryAttention):
        if "Rope" in type(attn).__name__:
            return _ROTARY
        return f"its attention is {type(attn).__name__}, which edgevit cannot read yet"
    if isinstance(attn, TimmAttention):
        if not isinstance(attn.q_norm, nn.Identity):
            return "qk-norm is between the projections and the dot product, so QK cannot be factorised"
        if not isinstance(getattr(attn, "norm", None) or nn.Identity(), nn.Identity):
            return "a normalisation is between values and output projection, so VO cannot be factorised"
        if getattr(attn, "gate", None) is not None:
            return "a gate is between values and output projection, so VO cannot be factorised"
    return odd_linear(attn)


def _reason_against_ffn(mlp: Any) -> str | None:
    if type(mlp) not in (Mlp, SwiGLU, GluMlp) or isinstance(mlp.fc2, nn.Conv2d):
        return f"its FFN is {type(mlp).__name__}; only FFNs of two layers, plain or gated, can be pruned"
    if not isinstance(mlp.norm, nn.Identity):
        return "a normalisation inside the FFN mixes its neurons, so they cannot be merged"
    return odd_linear(mlp)


def _has_partial_patches(patch: Any) -> bool:
    """Whether images do not divide into patches, and the remainder is not simply cut off."""
    partial = any(side % step for side, step in zip(patch.img_size, patch.patch_size, strict=True))
    return partial and (patch.dynamic_img_pad or not patch.strict_img_size)


def check(model: Any, *, alone: bool = True) -> None:
    name, patch = architecture(model), model.patch_embed
    if getattr(model, "rope", None) is not None:
        detail = reason_against_dinov3(model) or "this one is timm's own, which `adopted` of its family converts"
        raise UnsupportedModelError(f"cannot prune {name}: edgevit supports rotary embeddings of DINOv3, and {detail}")
    if type(patch) is not PatchEmbed:
        raise UnsupportedModelError(
            f"cannot prune {name}: its patch embedding is {type(patch).__name__}, which edgevit cannot read yet"
        )
    if _has_partial_patches(patch):
        size, step = (" x ".join(map(str, pair)) for pair in (patch.img_size, patch.patch_size))
        whole = ", ".join(str(side // step * step) for side, step in zip(patch.img_size, patch.patch_size, strict=True))
        raise UnsupportedModelError(
            f"cannot prune {name}: images of {size} do not divide into patches of {step}, as "
            f"dynamic_img_size and dynamic_img_pad require; try --model-arg 'img_size=({whole})'"
        )
    if patch.proj.in_channels != 3:
        raise UnsupportedModelError(
            f"cannot prune {name}: it reads {patch.proj.in_channels} channel(s), and images are read as RGB: "
            f"train the base on 3 channels (grey images are read as RGB, too)"
        )
    if alone and pooling.of(model) is not None and (reason := pooling.reason_against(model)):
        raise UnsupportedModelError(f"cannot prune {name}: {reason}")
    for index, block in enumerate(model.blocks):
        if reason := _reason_against(block):
            raise UnsupportedModelError(f"cannot prune {name}: in block {index}, {reason}")


def _is_rotary(model: Any) -> bool:
    return any(isinstance(attn_of(block), RotaryAttention) for block in model.blocks)


# -- reading -----------------------------------------------------------------------------------------------------------


def blocks(model: Any) -> list[BlockLayers]:
    whole = _POST_NORM if any(map(is_post_norm, model.blocks)) else embedding.reason_against(model)
    if embedding.linear_ends(model):
        whole = _RESTORED
    rotary: dict[Axis, str] = {"qk": _ROTARY, "tokens": _PLACED} if _is_rotary(model) else {}
    of_all: dict[Axis, str] = {**rotary, **({} if whole is None else {"embed": whole})}
    return [_block_layers(model, i, of_all) for i in range(len(model.blocks))]


def _block_layers(model: Any, index: int, frozen: Mapping[Axis, str]) -> BlockLayers:
    block = model.blocks[index]
    attn, mlp = attn_of(block), mlp_of(block)
    is_last, put_out = index == len(model.blocks) - 1, _tokens_put_out(model) > 1 or pooling.of(model) is not None
    axes: dict[Axis, str] = {**tokens.frozen(block, is_last=is_last, put_out=put_out), **frozen}
    attention, ffn = None, None
    if attn is not None:

        def token_scores(inputs: Tensor, gates: SoftGates | None) -> Tensor:
            return tokens.token_scores(attn, inputs, has_class=model.cls_token is not None, gates=gates)

        attention = AttentionLayer(
            site=Site(index, "attention", axes),
            module=attn,
            readers=(attn.qkv,),
            output=attn.proj,
            read=lambda: read_attention(attn),
            token_scores=token_scores,
            **_around(block, 1),
        )
    if mlp is not None:
        # It does not rank tokens and has no queries.
        of_ffn: dict[Axis, str] = {axis: reason for axis, reason in axes.items() if axis not in ("site", "qk")}
        ffn = FfnLayer(
            site=Site(index, "ffn", of_ffn),
            module=mlp,
            readers=tuple(getattr(mlp, name) for name in input_layers(mlp)),
            output=mlp.fc2,
            read=lambda: read_ffn(mlp),
            **_around(block, 2),
        )
    token_counts = (block.count, block.merge) if isinstance(block, TokenBlock) else (0, False)
    before = getattr(model.blocks[index - 1], "restore", None) if index else None
    return BlockLayers(
        block,
        attention,
        ffn,
        *token_counts,
        windows=windows_of(attn),
        entry=() if before is None else (before, block.narrow),
        restore=getattr(block, "restore", None),
        sites=block.add_sites if isinstance(block, SlimBlock) else None,
    )


def _around(block: Any, number: int) -> dict[str, Any]:
    """The modules before and after the first or second site of a block, and its scale."""
    post_norm, norm = is_post_norm(block), getattr(block, f"norm{number}")
    after = [getattr(block, f"{kind}{number}") for kind in ("ls", "drop_path") if hasattr(block, f"{kind}{number}")]
    scale = getattr(block, f"ls{number}", None)
    return {
        "before": nn.Identity() if post_norm else norm,
        "after": (norm, *after) if post_norm else tuple(after),
        "scale": None if post_norm else scale.gamma if isinstance(scale, LayerScale) else 1.0,
    }


def ends(model: Any) -> Ends:
    classifiers = (model.head, model.head_dist) if isinstance(model, VisionTransformerDistilled) else (model.head,)
    patch, last = model.patch_embed, model.blocks[-1]
    read = () if pooling.of(model) is None else (last,)
    return Ends(
        input_size=(patch.proj.in_channels, *patch.img_size),
        final=last if read else model.norm,
        norm=None if read else embedding.final_norm(model),
        reads_mean=_reads_mean(model),
        classifiers=classifiers if all(isinstance(layer, nn.Linear) for layer in classifiers) else (),
        read=read,
    )


# -- writing -----------------------------------------------------------------------------------------------------------


def _resized(block: Any, dim: int, dims: BlockDims, *, qkv_bias: bool, proj_bias: bool, ffn_bias: bool) -> Any:
    """The block with linear layers of `dims` on the meta device, without a site of size 0."""
    attn, mlp = attn_of(block), mlp_of(block)
    with without_values():
        if dims.has("attention"):
            block.attn = make_attention(dim, dims, qkv_bias=qkv_bias, proj_bias=proj_bias, like=attn)
            block.attn.attn_drop.p, block.attn.proj_drop.p = attn.attn_drop.p, attn.proj_drop.p
            block.attn.train(block.training)
        if dims.has("ffn"):
            for name, rows in input_layers(mlp).items():
                setattr(mlp, name, nn.Linear(dim, rows * dims.ffn, bias=ffn_bias))
            mlp.fc2 = nn.Linear(dims.ffn, dim, bias=mlp.fc2.bias is not None)
    if len(dims.sites) == 2:
        return block
    if isinstance(block, TokenBlock) and dims.sites:
        assert dims.has("attention"), "it ranks the tokens"
        block.drop_ffn()
        return block
    return SlimBlock(block, [name for name, kind in _SITES if dims.has(kind)])


def _passing(model: Any, block: Any, dims: BlockDims) -> Any:
    """The block, passing on the number of tokens in `dims`."""
    if dims.tokens and _is_rotary(model):
        raise UnsupportedModelError(f"cannot drop tokens of {architecture(model)}: {_PLACED}")
    prefix, has_class = model.num_prefix_tokens, model.cls_token is not None
    return tokens.passing(block, dims.tokens, prefix, has_class=has_class, merge=dims.merged)


def _ffn_inputs(model: Any) -> int:
    """The number of input matrices of an FFN: 2 if gated, even if all FFNs are removed."""
    mlp = next((block.mlp for block in model.blocks if mlp_of(block) is not None), None)
    return int(getattr(model, "ffn_inputs", 1) if mlp is None else sum(input_layers(mlp).values()))


def _replace_blocks(model: Any, modules: Sequence[nn.Module]) -> None:
    if list(model.blocks) != list(modules):
        model.blocks = nn.Sequential(*modules)


def resize(model: Any, dims: Sequence[BlockDims], names: Container[str] | None = None) -> None:
    resized = []
    model.ffn_inputs = _ffn_inputs(model)
    for i, (block, block_dims) in enumerate(zip(model.blocks, dims, strict=True)):
        attn, mlp = attn_of(block), mlp_of(block)
        if names is None:
            # Pruning folds a value bias into the output bias, which must then exist.
            qkv_bias = attn is not None and attn.qkv.bias is not None
            proj_bias = qkv_bias or (attn is not None and attn.proj.bias is not None)
            ffn_bias = mlp is not None and has_input_bias(mlp)
        else:  # a change of the embedding adds biases
            qkv_bias, proj_bias = (f"blocks.{i}.attn.{layer}.bias" in names for layer in ("qkv", "proj"))
            ffn_bias = mlp is not None and all(f"blocks.{i}.mlp.{layer}.bias" in names for layer in input_layers(mlp))
        biases = {"qkv_bias": qkv_bias, "proj_bias": proj_bias, "ffn_bias": ffn_bias}
        resized.append(_passing(model, _resized(block, model.embed_dim, block_dims, **biases), block_dims))
    _replace_blocks(model, resized)


def make_classifiers(model: Any, classes: int) -> None:
    model.reset_classifier(classes)
    if isinstance(model.fc_norm, tokens.TokenChoice):
        model.head = tokens.widened(model, classes)
    elif classes and (restores := embedding.linear_ends(model)):  # timm's is as narrow as the embedding
        model.head = nn.Linear(restores[-1].out_features, classes).to(restores[-1].weight)


def keep_classes(model: Any, classes: Sequence[int]) -> None:
    for head in ends(model).classifiers:
        keep_rows(head, classes)
    model.num_classes = len(classes)


def build(model: Any, weights_of_blocks: Sequence[Block]) -> Any:
    # Layers that will be replaced are not copied, which saves most of the time and memory.
    slim: Any = bare_copy(model, list(_linear_layers(model)))
    slim.ffn_inputs = _ffn_inputs(model)
    resized, embed = [], next(weights.embed for weights in weights_of_blocks if weights.dims.sites)
    for block, weights in zip(slim.blocks, weights_of_blocks, strict=True):
        a, f = weights.attention, weights.ffn
        # The packed bias is zero for queries, keys or values without bias.
        qkv_bias = a is not None and (attn_of(block).qkv.bias is not None or a.bq is not None)
        biases = {
            "qkv_bias": qkv_bias,
            "proj_bias": a is not None and a.bo is not None,
            "ffn_bias": f is not None and f.b1 is not None,
        }
        resized.append(_passing(model, _resized(block, embed, weights.dims, **biases), weights.dims))
        if a is not None:
            write_attention(resized[-1].attn, a)
        if weights.ffn is not None:
            write_ffn(resized[-1].mlp, weights.ffn)
    _replace_blocks(slim, resized)
    return slim


@torch.no_grad()
def with_embedding(
    model: Any, encoders: Sequence[Tensor], decoders: Sequence[Decoder] | None = None, read: Sequence[int] = ()
) -> Any:
    (encode,), rebased = encoders, []
    remaining = repeat(decoder(encode)) if decoders is None else iter(decoders)
    for layers in blocks(model):
        block, weights = layers.module, layers.read()
        a, f = weights.attention, weights.ffn
        attention = None if a is None else a.rebased(encode, embedding.fold(block.norm1, block.ls1), next(remaining))
        ffn = None if f is None else f.rebased(encode, embedding.fold(block.norm2, block.ls2), next(remaining))
        rebased.append(replace(weights, attention=attention, ffn=ffn))
    if not read and pooling.of(model) is not None:
        read = (len(model.blocks) - 1,)
    slim = build(model, rebased)
    for block in slim.blocks:
        embedding.reset_norms(block, len(encode))
    embedding.rebase_first(slim, encode)
    if read:
        restores = {i: next(remaining) for i in read}
        slim.blocks = nn.Sequential(*embedding.restored(slim.blocks, encode, restores))
    else:
        embedding.rebase_head(embedding.final_norm(slim), next(remaining), ends(slim).classifiers)
        slim.num_features = slim.head_hidden_size = len(encode)
    return slim


def _linear_layers(model: Any) -> Iterator[nn.Module]:
    for block in model.blocks:
        if (attn := attn_of(block)) is not None:
            yield from (attn.qkv, attn.proj)
        if (mlp := mlp_of(block)) is not None:
            yield from (*(getattr(mlp, name) for name in input_layers(mlp)), mlp.fc2)


def _vectors(block: Any, names: Sequence[str], dim: int) -> int:
    """Parameters of embedding width in these modules of a block."""
    sizes = [p.numel() for name in names if hasattr(block, name) for p in getattr(block, name).parameters()]
    return int(sum(sizes)) // dim


def geometry(model: Any) -> Geometry:
    classifiers, patch, dim = ends(model).classifiers, model.patch_embed.proj, model.embed_dim
    with_attn = next((b for b in model.blocks if attn_of(b) is not None), None)
    with_mlp = next((b for b in model.blocks if mlp_of(b) is not None), None)
    attention, ffn = attention_terms(biases=False, vectors=0), ffn_terms(_ffn_inputs(model), biases=False, vectors=0)
    if with_attn is not None:
        attn = with_attn.attn
        biases, out = attn.qkv.bias is not None, attn.proj.bias is not None or attn.qkv.bias is not None
        attention = attention_terms(biases=biases, vectors=_vectors(with_attn, ("norm1", "ls1"), dim) + int(out))
    if with_mlp is not None:
        part = read_ffn(with_mlp.mlp)
        vectors = _vectors(with_mlp, ("norm2", "ls2"), dim) + int(part.b2 is not None)
        ffn = ffn_terms(_ffn_inputs(model), biases=part.b1 is not None, vectors=vectors)
    outside = [p for name, p in model.named_parameters() if not name.startswith("blocks.")]
    in_classifiers = sum(p.numel() for m in classifiers for p in m.parameters())
    linear = embedding.linear_ends(model)
    # Where a head reads tokens of the whole width, that is the width of the last norm.
    of_norm = sum(p.numel() for p in embedding.final_norm(model).parameters()) if linear else 0
    of_pool, patches = pooling.params(model), model.patch_embed.num_patches
    stage = NetworkStage(
        dim, patches + model.num_prefix_tokens, attention, ffn, grid=model.patch_embed.grid_size,
        restores=len(linear), whole=linear[-1].out_features if linear else 0,
    )  # fmt: skip
    return Geometry(
        stages=(stage,),
        patches=patches,
        patch_values=patch.in_channels * patch.kernel_size[0] * patch.kernel_size[1],
        outputs=sum(layer.out_features for layer in classifiers),
        classifier_heads=len(classifiers) or 1,
        classified=_tokens_put_out(model),
        joined=model.fc_norm.joined if isinstance(model.fc_norm, tokens.TokenChoice) else 1,
        other_params=sum(p.numel() for p in outside) - in_classifiers - of_norm - of_pool,
        head_macs=pooling.macs(model),
        head_params=of_norm + of_pool + sum(layer.bias.numel() for layer in linear if layer.bias is not None),
        sites=tuple(layer.site for b in blocks(model) for layer in (b.attention, b.ffn) if layer is not None),
    )


def _tokens_put_out(model: Any) -> int:
    """How many tokens its head reads."""
    if model.global_pool:
        return 1
    patches: int = model.patch_embed.num_patches
    choice = model.fc_norm
    return choice.counted(patches) if isinstance(choice, tokens.TokenChoice) else patches + int(model.num_prefix_tokens)


def _reads_mean(model: Any) -> bool:
    """Whether its head reads at most the mean of the patches."""
    if model.global_pool == "":
        return _tokens_put_out(model) == 1
    return model.global_pool == "token" or (model.global_pool == "avg" and not model.pool_include_prefix)


@contextmanager
def of_one_size(model: Any) -> Iterator[None]:
    """Disable dynamic_img_size, with which timm resamples positions even to their own size, in every graph."""
    if not model.dynamic_img_size:
        yield
        return
    patches = model.patch_embed
    earlier, model.dynamic_img_size, patches.flatten = patches.flatten, False, True
    try:
        yield
    finally:
        model.dynamic_img_size, patches.flatten = True, earlier


def first_tokens(model: Any, images: Tensor) -> Tensor:
    tokens: Tensor = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    return tokens


def answers(model: Any, tokens: Tensor) -> Tensor:
    logits: Tensor = model.forward_head(model.norm(tokens))
    return logits


def keep_blocks(model: Any, indices: Sequence[int]) -> None:
    model.ffn_inputs = _ffn_inputs(model)
    restore, kept = getattr(model.blocks[-1], "restore", None), [model.blocks[i] for i in indices]
    if restore is not None and not hasattr(kept[-1], "restore"):
        kept[-1].restore = restore  # attention that pools reads tokens of the whole width
    model.blocks = nn.Sequential(*kept)
