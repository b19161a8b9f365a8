"""timm's SwinTransformer: stages of their own width and number of tokens, and attention in shifted windows.

`interchange.adopted` converts timm's network to `modules.TokenSwin`, whose blocks are on tokens [B, N, d].
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Attention, Axis, Block, BlockDims, Decoder, Site, SiteKind, decoder, side_by_side
from edgevit.network.copies import bare_copy, without_values
from edgevit.network.cost import Geometry, NetworkStage, attention_terms, ffn_terms
from edgevit.network.families import architecture
from edgevit.network.families.swin import backbones, embedding
from edgevit.network.families.swin import interchange as interchange
from edgevit.network.families.swin.conversion import reason_against
from edgevit.network.families.swin.listed import is_listed
from edgevit.network.families.swin.modules import SwinStage, TokenSwin, WindowAttention
from edgevit.network.families.vit.embedding import fold, rebase_first, rebase_head
from edgevit.network.families.vit.parts import (
    keep_rows,
    parameter,
    read_attention,
    read_ffn,
    write_attention,
    write_ffn,
)
from edgevit.network.layers import AttentionLayer, BlockLayers, Ends, FfnLayer, SoftGates

FROZEN: dict[Axis, str] = {"tokens": "windows are full of tokens, so none can be dropped"}
_NARROWED = "it was narrowed before, and a linear layer makes the first tokens of the patches"
_RESTORED = "it was narrowed before, and linear layers give tokens of the whole width to the head"


def matches(model: Any) -> bool:
    if isinstance(model, (SwinTransformer, SwinTransformerV2)) or is_listed(model):
        return True
    return backbones.is_transformers_swin(model)


def check(model: Any, *, alone: bool = True) -> None:
    if not isinstance(model, TokenSwin):
        reason = reason_against(model) or "this one is timm's own, which `adopted` of its family converts"
    elif alone and (pool := model.head.global_pool.pool_type) != "avg":
        reason = f"its head pools by {pool or 'nothing'}; try --model-arg global_pool=avg"
    else:
        return
    raise UnsupportedModelError(f"cannot prune {architecture(model)}: {reason}")


def _blocks(model: Any) -> Iterator[tuple[int, Any]]:
    """Each block with the number of its stage."""
    return ((number, block) for number, stage in enumerate(model.layers) for block in stage.blocks)


# -- reading -----------------------------------------------------------------------------------------------------------


def blocks(model: Any) -> list[BlockLayers]:
    layers, entered, before = list[BlockLayers](), 0, nn.Module()
    frozen = FROZEN
    if embedding.is_narrower(model):
        frozen = {**FROZEN, "embed": _RESTORED if _linear_ends(model) else _NARROWED}
    for index, (stage, block) in enumerate(_blocks(model)):
        entry = [model.layers[number].downsample for number in range(entered + 1, stage + 1)]
        entry = [layer for layer in (getattr(before, "restore", None), block.narrow, *entry) if layer is not None]
        layers.append(replace(_block_layers(index, block, frozen), stage=stage, entry=tuple(entry)))
        entered, before = stage, block
    return layers


def _block_layers(index: int, block: Any, frozen: Mapping[Axis, str]) -> BlockLayers:
    def around(kind: SiteKind, norm: nn.Module) -> dict[str, Any]:
        return {"site": Site(index, kind, frozen), "before": norm, "after": (), "scale": 1.0}

    attn, mlp = block.attn, block.mlp
    attention = None if attn is None else AttentionLayer(
        module=attn, readers=(attn.qkv,), output=attn.proj, read=partial(_read_attention, attn),
        token_scores=_no_scores, **around("attention", block.norm1),
    )  # fmt: skip
    ffn = None if mlp is None else FfnLayer(
        module=mlp, readers=(mlp.fc1,), output=mlp.fc2, read=partial(read_ffn, mlp), **around("ffn", block.norm2),
    )  # fmt: skip
    return BlockLayers(
        block, attention, ffn, shifted=block.shifted, restore=block.restore, sites=block.add_sites
    )  # fmt: skip


def _no_scores(tokens: Tensor, gates: SoftGates | None) -> Tensor:
    raise UnsupportedModelError(f"tokens cannot be ranked: {FROZEN['tokens']}")


def _read_attention(attn: WindowAttention) -> Attention:
    return replace(read_attention(attn), relative=attn.relative_position_bias_table.mT)


def ends(model: Any) -> Ends:
    patch, head = model.patch_embed, model.head.fc
    return Ends(
        input_size=(patch.proj.in_channels, *patch.img_size),
        final=model.norm,
        norm=model.norm,
        reads_mean=True,
        classifiers=(head,) if isinstance(head, nn.Linear) else (),
        entries=embedding.entry_norms(model),
    )


def _linear_ends(model: Any) -> list[nn.Linear]:
    return [layer for number in range(len(model.layers)) for layer in embedding.ends_of_stage(model, number)]


def geometry(model: Any) -> Geometry:
    heads, patch = ends(model).classifiers, model.patch_embed.proj
    stages = tuple(_stage(stage, embedding.ends_of_stage(model, i)) for i, stage in enumerate(model.layers))
    restoring = _linear_ends(model)
    counted = {p for layer in (*restoring, *heads) for p in layer.parameters()}
    outside = [p for name, p in model.named_parameters() if ".blocks." not in name and p not in counted]
    # Where a head reads tokens of the whole width, that is the width of the last norm.
    of_norm = sum(p.numel() for p in model.norm.parameters()) if restoring else 0
    return Geometry(
        stages=stages,
        patches=model.patch_embed.num_patches,
        patch_values=patch.in_channels * patch.kernel_size[0] * patch.kernel_size[1],
        outputs=sum(head.out_features for head in heads),
        classifier_heads=len(heads) or 1,
        other_params=sum(p.numel() for p in outside) - of_norm - sum(stage.inputs * stage.embed for stage in stages),
        head_params=of_norm + sum(layer.bias.numel() for layer in restoring if layer.bias is not None),
        normed_patches=True,
        sites=tuple(layer.site for b in blocks(model) for layer in (b.attention, b.ffn) if layer is not None),
    )


def _stage(stage: SwinStage, restoring: Sequence[nn.Linear]) -> NetworkStage:
    windows, blocks_of_stage = stage.windows, list[Any](stage.blocks)
    entry = embedding.entry_of(stage)
    attentions = [attn for block in blocks_of_stage if (attn := block.attn) is not None]
    biases = any(attn.qkv.bias is not None for attn in attentions)
    return NetworkStage(
        embed=stage.dim,
        tokens=windows.grid[0] * windows.grid[1],
        attention=attention_terms(biases=biases, vectors=3, per_head=windows.biases),
        ffn=ffn_terms(1, biases=True, vectors=3),
        pairs=windows.count * windows.area**2,
        inputs=0 if entry is None else entry.in_features,
        grid=windows.grid,
        restores=len(restoring),
        whole=max(restoring[0].weight.shape) if restoring else 0,
    )


# -- writing -----------------------------------------------------------------------------------------------------------


def _resize_block(stage: SwinStage, block: Any, dims: BlockDims, *, qkv_bias: bool) -> None:
    """Give a block linear layers of these sizes on the meta device, and take away its sites of size 0."""
    for kind in ("attention", "ffn"):
        if not dims.has(kind):
            block.drop(kind)
    windows = replace(stage.windows, shift=stage.shift) if block.shifted else stage.windows
    with without_values():
        if block.attn is not None:
            old, block.attn = block.attn, WindowAttention(windows, stage.dim, dims, qkv_bias=qkv_bias)
            block.attn.attn_drop.p, block.attn.proj_drop.p = old.attn_drop.p, old.proj_drop.p
        if block.mlp is not None:
            block.mlp.fc1, block.mlp.fc2 = nn.Linear(stage.dim, dims.ffn), nn.Linear(dims.ffn, stage.dim)
    block.train(stage.training)


def resize(model: Any, dims: Sequence[BlockDims], names: Container[str] | None = None) -> None:
    remaining = iter(dims)
    for number, stage in enumerate(model.layers):
        embedding.resize_entry(stage, f"layers.{number}.downsample", names)
        for i, (block, sizes) in enumerate(zip(stage.blocks, remaining, strict=False)):
            block.shifted = sizes.shifted
            if names is None:
                qkv_bias = block.attn is not None and block.attn.qkv.bias is not None
            else:
                qkv_bias = f"layers.{number}.blocks.{i}.attn.qkv.bias" in names
            _resize_block(stage, block, sizes, qkv_bias=qkv_bias)


def build(model: Any, weights_of_blocks: Sequence[Block]) -> Any:
    linear = [m for _, block in _blocks(model) for m in block.modules() if isinstance(m, nn.Linear)]
    slim: Any = bare_copy(model, linear)  # layers that will be replaced are not copied
    remaining = iter(weights_of_blocks)
    for stage in slim.layers:
        for block in stage.blocks:
            _write(stage, block, next(remaining))
    assert next(remaining, None) is None, "weights of more blocks"
    return slim


def _write(stage: SwinStage, block: Any, weights: Block) -> None:
    if weights.tokens:
        raise UnsupportedModelError(f"cannot drop tokens of a Swin: {FROZEN['tokens']}")
    a = weights.attention
    if weights.dims.sites:
        stage.dim = weights.embed
    _resize_block(stage, block, weights.dims, qkv_bias=a is not None and (a.bq is not None or a.bv is not None))
    if a is not None:
        assert a.relative is not None
        write_attention(block.attn, a)
        block.attn.relative_position_bias_table = parameter(a.relative.mT)
    if weights.ffn is not None:
        write_ffn(block.mlp, weights.ffn)


@torch.no_grad()
def with_embedding(
    model: Any, encoders: Sequence[Tensor], decoders: Sequence[Decoder] | None = None, read: Sequence[int] = ()
) -> Any:
    of_patches, *of_stages = encoders
    fitted = None if decoders is None else iter(decoders)
    rebased, shifts = list[Block](), list[Tensor | None]()
    for layers in blocks(model):
        encode, weights, shift = of_stages[layers.stage], layers.read(), None
        block: Any = layers.module
        attention, ffn = weights.attention, weights.ffn
        if attention is not None:
            decode = next(fitted) if fitted else decoder(encode)
            padded = block.attn.filled is not None
            attention, shift = embedding.rebased_attention(attention, block.norm1, encode, decode, padded=padded)
        if ffn is not None:
            ffn = ffn.rebased(encode, fold(block.norm2, None), next(fitted) if fitted else decoder(encode))
        rebased.append(replace(weights, attention=attention, ffn=ffn))
        shifts.append(shift)
    slim = build(model, rebased)
    for (number, block), shift in zip(_blocks(slim), shifts, strict=True):
        embedding.plain_norms(block, len(of_stages[number]), shift)
    before = of_patches
    for stage, encode in zip(slim.layers, of_stages, strict=True):
        joined = side_by_side(before, embedding.joined_tokens(stage))
        embedding.rebase_entry(slim, stage, encode, next(fitted) if fitted else decoder(joined))
        before = encode
    rebase_first(slim, of_patches)
    if read:
        stages = [number for number, _ in _blocks(model)]
        restores = {i: next(fitted) if fitted else decoder(of_stages[stages[i]]) for i in read}
        embedding.restore_blocks(slim, of_stages, restores)
    else:
        rebase_head(slim.norm, next(fitted) if fitted else decoder(before), ends(slim).classifiers)
        slim.num_features = slim.head_hidden_size = slim.head.in_features = slim.head.num_features = len(before)
    return slim


def keep_blocks(model: Any, indices: Sequence[int]) -> None:
    remaining_blocks = [block for index, (_, block) in enumerate(_blocks(model)) if index in indices]
    for stage in model.layers:
        stage.blocks = nn.Sequential(
            *(block for block in stage.blocks if any(block is other for other in remaining_blocks))
        )


def make_classifiers(model: Any, classes: int) -> None:
    model.reset_classifier(classes)


def keep_classes(model: Any, classes: Sequence[int]) -> None:
    keep_rows(model.head.fc, classes)
    model.num_classes = len(classes)


# -- the forward pass in steps -----------------------------------------------------------------------------------------


@contextmanager
def of_one_size(model: Any) -> Iterator[None]:
    """Make the biases of relative positions and of windows one constant; the size is fixed already."""
    attentions = [block.attn for _, block in _blocks(model) if block.attn is not None]
    for attn in attentions:
        attn.constant = attn.biases().detach()
    try:
        yield
    finally:
        for attn in attentions:
            attn.constant = None


def first_tokens(model: Any, images: Tensor) -> Tensor:
    tokens: Tensor = model.layers[0].downsample(model.patch_embed(images))
    return tokens


def answers(model: Any, tokens: Tensor) -> Tensor:
    last = max((number for number, _ in _blocks(model)), default=0)
    for stage in model.layers[last + 1 :]:
        tokens = stage(tokens)
    logits: Tensor = model.forward_head(model.norm(tokens))
    return logits
