"""timm's VisionTransformer and distilled DeiT: blocks with fused qkv and an FFN of two layers, plain or gated.

Typed as Any inside: nn.Module tells a type checker nothing of the attributes that timm's models have.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
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
from edgevit.models.anatomy import Attention, Axis, Block, BlockDims, Ffn, Site
from edgevit.models.copies import bare_copy
from edgevit.models.cost import Geometry, SiteCosts
from edgevit.models.families import Branch, HalfThere
from edgevit.models.families.vit import embedding, tokens
from edgevit.models.families.vit.names import fitted as fitted
from edgevit.models.families.vit.names import named as named
from edgevit.models.families.vit.slim import HalfBlock, SlimAttention
from edgevit.models.families.vit.tokens import TokenBlock

ROTARY = "rotary embeddings stand between the projections and the dot product, so QK cannot be factorised"
POST_NORM = "a norm after the residual sum's terms sees the whole embedding width"


def matches(model: Any) -> bool:
    return isinstance(model, (VisionTransformer, Eva))


def _attn(block: Any) -> Any:
    """A block's attention; None where it is gone."""
    return getattr(block, "attn", None)


def _mlp(block: Any) -> Any:
    """A block's FFN; None where it is gone."""
    return getattr(block, "mlp", None)


def _reason_against(block: Any) -> str | None:
    """Why this block cannot be factorised, or None."""
    if type(block) not in (TimmBlock, ResPostBlock, HalfBlock, TokenBlock):
        return f"its blocks are {type(block).__name__}, which edgevit cannot read yet"
    attn, mlp = _attn(block), _mlp(block)
    if attn is not None and (reason := _reason_against_attention(attn)):
        return reason
    return None if mlp is None else _reason_against_ffn(mlp)


def _reason_against_attention(attn: Any) -> str | None:
    if type(attn) not in (TimmAttention, SlimAttention):
        if "Rope" in type(attn).__name__:
            return ROTARY
        return f"its attention is {type(attn).__name__}, which edgevit cannot read yet"
    if isinstance(attn, TimmAttention):
        if not isinstance(attn.q_norm, nn.Identity):
            return "qk-norm stands between the projections and the dot product, so QK cannot be factorised"
        if not isinstance(getattr(attn, "norm", None) or nn.Identity(), nn.Identity):
            return "a normalisation stands between values and output projection, so VO cannot be factorised"
        if getattr(attn, "gate", None) is not None:
            return "a gate stands between values and output projection, so VO cannot be factorised"
    return None


def _reason_against_ffn(mlp: Any) -> str | None:
    if type(mlp) not in (Mlp, SwiGLU, GluMlp) or not isinstance(mlp.fc2, nn.Linear):
        return f"its FFN is {type(mlp).__name__}; only those of two layers can be pruned, plain or gated"
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


# -- reading -----------------------------------------------------------------------------------------------------------


def _widths(dims: BlockDims) -> list[int]:
    """Rows of queries, keys and values in the packed projection."""
    return [dims.heads * dims.qk, dims.heads * dims.qk, dims.heads * dims.vo]


def unpack(packed: Tensor, dims: BlockDims) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [..., H, w] of what a projection puts out [..., H * (2q + v)], as views."""
    q, k, v = (torch.unflatten(part, -1, (dims.heads, -1)) for part in torch.split(packed, _widths(dims), -1))
    return q, k, v


def pack(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The inverse of `unpack`."""
    return torch.cat([part.flatten(-2) for part in (queries, keys, values)], dim=-1)


def _read_attention(attn: Any) -> Attention:
    heads = attn.num_heads
    qk, vo = (attn.qk_dim, attn.vo_dim) if isinstance(attn, SlimAttention) else [attn.attn_dim // heads] * 2
    dims = BlockDims(heads, qk, vo, 0)
    weight: Tensor = attn.qkv.weight
    wq, wk, wv = (torch.unflatten(w, 0, (heads, -1)) for w in torch.split(weight, _widths(dims)))
    bq, bk, bv = (None, None, None) if attn.qkv.bias is None else unpack(attn.qkv.bias, dims)
    wo = attn.proj.weight.unflatten(1, (heads, -1)).permute(1, 0, 2)  # [d, H * v] -> [H, d, v]
    return Attention(wq=wq, bq=bq, wk=wk, bk=bk, wv=wv, bv=bv, wo=wo, bo=attn.proj.bias)


def _halves(tensor: Tensor | None, mlp: Any) -> tuple[Tensor | None, Tensor | None]:
    """The rows of a packed input layer that pass through the activation, and those they are multiplied by."""
    if tensor is None:
        return None, None
    first, second = tensor.chunk(2)
    return (second, first) if mlp.gate_last else (first, second)


def _read_ffn(mlp: Any) -> Ffn:
    if isinstance(mlp, SwiGLU):
        return Ffn(
            w1=mlp.fc1_g.weight, b1=mlp.fc1_g.bias, wg=mlp.fc1_x.weight, bg=mlp.fc1_x.bias,
            w2=mlp.fc2.weight, b2=mlp.fc2.bias,
        )  # fmt: skip
    if isinstance(mlp, GluMlp):
        (w1, wg), (b1, bg) = _halves(mlp.fc1.weight, mlp), _halves(mlp.fc1.bias, mlp)
        assert w1 is not None
        return Ffn(w1=w1, b1=b1, wg=wg, bg=bg, w2=mlp.fc2.weight, b2=mlp.fc2.bias)
    return Ffn(w1=mlp.fc1.weight, b1=mlp.fc1.bias, w2=mlp.fc2.weight, b2=mlp.fc2.bias)


def read(model: Any) -> list[Block]:
    return [_read_block(block) for block in model.blocks]


def _read_block(block: Any) -> Block:
    attn, mlp = _attn(block), _mlp(block)
    passed = (block.count, block.merge) if isinstance(block, TokenBlock) else (0, False)
    return Block(attn and _read_attention(attn), mlp and _read_ffn(mlp), *passed)


def sites(model: Any) -> list[Site]:
    """The attentions and FFNs that are there, in order."""
    found = []
    whole = POST_NORM if any(map(_post_norm, model.blocks)) else embedding.reason_against(model)
    for i, block in enumerate(model.blocks):
        axes: dict[Axis, str] = tokens.frozen(block, is_last=i == len(model.blocks) - 1)
        if whole is not None:
            axes["embed"] = whole
        of_ffn: dict[Axis, str] = {axis: why for axis, why in axes.items() if axis != "site"}  # it ranks no tokens
        found += [Site(i, "attention", axes)] if _attn(block) is not None else []
        found += [Site(i, "ffn", of_ffn)] if _mlp(block) is not None else []
    return found


def _post_norm(block: Any) -> bool:
    return isinstance(block, ResPostBlock) or (isinstance(block, (HalfBlock, TokenBlock)) and block.post_norm)


# -- writing -----------------------------------------------------------------------------------------------------------


def _attention(dim: int, dims: BlockDims, *, qkv_bias: bool, proj_bias: bool) -> nn.Module:
    if dims.qk == dims.vo:
        timm_attention: nn.Module = TimmAttention(
            dim, num_heads=dims.heads, attn_head_dim=dims.qk, qkv_bias=qkv_bias, proj_bias=proj_bias
        )
        return timm_attention
    return SlimAttention(dim, dims.heads, dims.qk, dims.vo, qkv_bias=qkv_bias, proj_bias=proj_bias)


def _input_layers(mlp: Any) -> dict[str, int]:
    """The linear layers that read the tokens, with the number of rows that each has per neuron."""
    if isinstance(mlp, SwiGLU):
        return {"fc1_g": 1, "fc1_x": 1}
    return {"fc1": 2 if isinstance(mlp, GluMlp) else 1}


def _resized(block: Any, dim: int, dims: BlockDims, *, qkv_bias: bool, proj_bias: bool, ffn_bias: bool) -> Any:
    """The block with linear layers of `dims` on the meta device, shapes without weights; a site of size 0 is gone."""
    attn, mlp = _attn(block), _mlp(block)
    with torch.device("meta"):
        if dims.has_attention:
            block.attn = _attention(dim, dims, qkv_bias=qkv_bias, proj_bias=proj_bias)
            block.attn.attn_drop.p, block.attn.proj_drop.p = attn.attn_drop.p, attn.proj_drop.p
            block.attn.train(block.training)
        if dims.has_ffn:
            for name, rows in _input_layers(mlp).items():
                setattr(mlp, name, nn.Linear(dim, rows * dims.ffn, bias=ffn_bias))
            mlp.fc2 = nn.Linear(dims.ffn, dim, bias=mlp.fc2.bias is not None)
    if not ((dims.has_attention and dims.has_ffn) or isinstance(block, HalfBlock)):
        if isinstance(block, TokenBlock):
            assert dims.has_attention, "tokens are ranked by it"
            block.drop_ffn()
        else:
            block = HalfBlock(block, "attn" if dims.has_attention else "mlp")
    return block


def _passing(model: Any, block: Any, dims: BlockDims) -> Any:
    """The block, passing on as many tokens as `dims` say."""
    prefix, has_class = model.num_prefix_tokens, model.cls_token is not None
    return tokens.passing(block, dims.tokens, prefix, has_class=has_class, merge=dims.merged)


def _replace_blocks(model: Any, blocks: Sequence[nn.Module]) -> None:
    if list(model.blocks) != list(blocks):
        model.blocks = nn.Sequential(*blocks)


def resize(model: Any, dims: Sequence[BlockDims], names: Container[str] | None = None) -> None:
    made = []
    for i, (block, block_dims) in enumerate(zip(model.blocks, dims, strict=True)):
        attn, mlp = _attn(block), _mlp(block)
        if names is None:
            # Surgery folds a value bias into the output bias, which must then exist; an untouched base may lack it.
            qkv_bias = attn is not None and attn.qkv.bias is not None
            proj_bias = qkv_bias or (attn is not None and attn.proj.bias is not None)
            ffn_bias = mlp is not None and _has_input_bias(mlp)
        else:  # a change of the embedding gives biases to layers that had none
            qkv_bias, proj_bias = (f"blocks.{i}.attn.{layer}.bias" in names for layer in ("qkv", "proj"))
            ffn_bias = mlp is not None and all(f"blocks.{i}.mlp.{layer}.bias" in names for layer in _input_layers(mlp))
        biases = {"qkv_bias": qkv_bias, "proj_bias": proj_bias, "ffn_bias": ffn_bias}
        made.append(_passing(model, _resized(block, model.embed_dim, block_dims, **biases), block_dims))
    _replace_blocks(model, made)


def _has_input_bias(mlp: Any) -> bool:
    return all(getattr(mlp, layer).bias is not None for layer in _input_layers(mlp))


def _parameter(weight: Tensor) -> nn.Parameter:
    """Take a tensor over as a parameter, or a copy of it where it is part of another model's."""
    shared = isinstance(weight, nn.Parameter) or weight._base is not None
    weight = weight.detach()
    return nn.Parameter(weight.clone(memory_format=torch.contiguous_format) if shared else weight.contiguous())


def _filled(bias: Tensor | None, like: Tensor) -> Tensor:
    """A bias vector of one entry per row of `like` [H, w, d], zero where there was none."""
    return like.new_zeros(like.shape[0] * like.shape[1]) if bias is None else bias.flatten()


def _write_attention(attn: Any, weights: Attention) -> None:
    attn.qkv.weight = _parameter(torch.cat([w.flatten(0, 1) for w in (weights.wq, weights.wk, weights.wv)]))
    if attn.qkv.bias is not None:
        pairs = ((weights.bq, weights.wq), (weights.bk, weights.wk), (weights.bv, weights.wv))
        attn.qkv.bias = _parameter(torch.cat([_filled(bias, like) for bias, like in pairs]))
    attn.proj.weight = _parameter(weights.wo.permute(1, 0, 2).flatten(1))  # [H, d, v] -> [d, H * v]
    if weights.bo is not None:
        attn.proj.bias = _parameter(weights.bo)


def _write_ffn(mlp: Any, weights: Ffn) -> None:
    if isinstance(mlp, Mlp):
        layers = [(mlp.fc1, weights.w1, weights.b1)]
    else:
        assert weights.wg is not None
        both = [(weights.w1, weights.b1), (weights.wg, weights.bg)]
        if isinstance(mlp, SwiGLU):
            layers = [(layer, *pair) for layer, pair in zip((mlp.fc1_g, mlp.fc1_x), both, strict=True)]
        else:
            ordered = both[::-1] if mlp.gate_last else both
            biases = [b for _, b in ordered if b is not None]
            layers = [(mlp.fc1, torch.cat([w for w, _ in ordered]), torch.cat(biases) if biases else None)]
    for layer, weight, bias in (*layers, (mlp.fc2, weights.w2, weights.b2)):
        layer.weight = _parameter(weight)
        if bias is not None:
            layer.bias = _parameter(bias)


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


def build(model: Any, blocks: Sequence[Block]) -> Any:
    # The layers that are replaced anyway need not be copied first: most of the time and of the memory.
    slim: Any = bare_copy(model, list(_linear_layers(model)))
    made = []
    for block, weights in zip(slim.blocks, blocks, strict=True):
        a, f = weights.attention, weights.ffn
        # Of queries, keys and values some may have none: their part of the packed bias is zero.
        qkv_bias = a is not None and (_attn(block).qkv.bias is not None or a.bq is not None)
        biases = {
            "qkv_bias": qkv_bias,
            "proj_bias": a is not None and a.bo is not None,
            "ffn_bias": f is not None and f.b1 is not None,
        }
        made.append(_passing(model, _resized(block, weights.embed, weights.dims, **biases), weights.dims))
        if a is not None:
            _write_attention(made[-1].attn, a)
        if weights.ffn is not None:
            _write_ffn(made[-1].mlp, weights.ffn)
    _replace_blocks(slim, made)
    return slim


def token_norms(model: Any) -> list[nn.Module]:
    return [*(norm for block in model.blocks for norm in embedding.norms_of(block)), embedding.final_norm(model)]


@torch.no_grad()
def with_embedding(model: Any, encode: Tensor) -> Any:
    blocks = []
    for block, weights in zip(model.blocks, read(model), strict=True):
        a, f = weights.attention, weights.ffn
        attention = None if a is None else a.rebased(encode, embedding.fold(block.norm1, block.ls1))
        ffn = None if f is None else f.rebased(encode, embedding.fold(block.norm2, block.ls2))
        blocks.append(replace(weights, attention=attention, ffn=ffn))
    slim = build(model, blocks)
    for block in slim.blocks:
        embedding.plain(block, len(encode))
    embedding.rebase_ends(slim, encode, classifiers(slim))
    return slim


def _linear_layers(model: Any) -> Iterator[nn.Module]:
    for block in model.blocks:
        if (attn := _attn(block)) is not None:
            yield from (attn.qkv, attn.proj)
        if (mlp := _mlp(block)) is not None:
            yield from (*(getattr(mlp, name) for name in _input_layers(mlp)), mlp.fc2)


def _vectors(block: Any, names: Sequence[str], dim: int) -> int:
    """Parameters of embedding width in these modules of a block."""
    held = [p.numel() for name in names if hasattr(block, name) for p in getattr(block, name).parameters()]
    return int(sum(held)) // dim


def geometry(model: Any) -> Geometry:
    heads, patch, dim = classifiers(model), model.patch_embed.proj, model.embed_dim
    with_attn = next((b for b in model.blocks if _attn(b) is not None), None)
    with_mlp = next((b for b in model.blocks if _mlp(b) is not None), None)
    attention, ffn = SiteCosts(3, False, 0), SiteCosts(1, False, 0)
    if with_attn is not None:
        attn = with_attn.attn
        biases, out = attn.qkv.bias is not None, attn.proj.bias is not None or attn.qkv.bias is not None
        attention = SiteCosts(3, biases, _vectors(with_attn, ("norm1", "ls1"), dim) + int(out))
    if with_mlp is not None:
        part = _read_ffn(with_mlp.mlp)
        own = _vectors(with_mlp, ("norm2", "ls2"), dim) + int(part.b2 is not None)
        ffn = SiteCosts(1 + int(part.gated), part.b1 is not None, own)
    outside = [p for name, p in model.named_parameters() if not name.startswith("blocks.")]
    return Geometry(
        embed=dim,
        tokens=model.patch_embed.num_patches + model.num_prefix_tokens,
        patches=model.patch_embed.num_patches,
        patch_values=patch.in_channels * patch.kernel_size[0] * patch.kernel_size[1],
        outputs=sum(head.out_features for head in heads),
        classifier_heads=len(heads),
        other_params=sum(p.numel() for p in outside) - sum(p.numel() for head in heads for p in head.parameters()),
        attention=attention,
        ffn=ffn,
        sites=tuple(sites(model)),
    )


def input_size(model: Any) -> tuple[int, int, int]:
    """Channels, height and width of the images that the model takes."""
    patch = model.patch_embed
    return patch.proj.in_channels, *patch.img_size


# -- what can be observed ----------------------------------------------------------------------------------------------


def attention_inputs(model: Any) -> list[nn.Module | None]:
    return [_attn(block) for block in model.blocks]


def projections(model: Any) -> list[nn.Module | None]:
    return [getattr(_attn(block), "qkv", None) for block in model.blocks]


def attention_outputs(model: Any) -> list[nn.Module | None]:
    return [getattr(_attn(block), "proj", None) for block in model.blocks]


def ffn_outputs(model: Any) -> list[nn.Module | None]:
    return [getattr(_mlp(block), "fc2", None) for block in model.blocks]


def final_tokens(model: Any) -> nn.Module:
    norm: nn.Module = model.norm
    return norm


def layers(model: Any) -> list[nn.Module]:
    return list(model.blocks)


def first_tokens(model: Any, images: Tensor) -> Tensor:
    tokens: Tensor = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    return tokens


def answers(model: Any, tokens: Tensor) -> Tensor:
    logits: Tensor = model.forward_head(model.norm(tokens))
    return logits


def token_scores(model: Any, block: int, seen: Tensor, there: HalfThere | None = None) -> Tensor:
    return tokens.token_scores(model.blocks[block].attn, seen, has_class=model.cls_token is not None, there=there)


def branches(model: Any) -> list[tuple[Branch | None, Branch | None]]:
    return [(_branch(block, "attn", 1), _branch(block, "mlp", 2)) for block in model.blocks]


def _branch(block: Any, name: str, number: int) -> Branch | None:
    module = getattr(block, name, None)
    if module is None:
        return None
    post_norm, norm = _post_norm(block), getattr(block, f"norm{number}")
    after = [getattr(block, f"{kind}{number}") for kind in ("ls", "drop_path") if hasattr(block, f"{kind}{number}")]
    return Branch(
        before=nn.Identity() if post_norm else norm,
        module=module,
        readers=(module.qkv,) if name == "attn" else tuple(getattr(module, layer) for layer in _input_layers(module)),
        output=module.proj if name == "attn" else module.fc2,
        after=(norm, *after) if post_norm else tuple(after),
    )


def residual_scales(model: Any) -> list[tuple[Tensor | float, Tensor | float] | None]:
    def scale(block: Any, name: str) -> Tensor | float:
        module = getattr(block, name, None)
        return module.gamma if isinstance(module, LayerScale) else 1.0

    return [None if _post_norm(b) else (scale(b, "ls1"), scale(b, "ls2")) for b in model.blocks]


def keep_blocks(model: Any, indices: Sequence[int]) -> None:
    model.blocks = nn.Sequential(*(model.blocks[i] for i in indices))


# -- without edgevit ---------------------------------------------------------------------------------------------------

_START = """from timm.models.vision_transformer import Attention

model = timm.create_model(spec["timm_name"], **spec["timm_args"])
for i, (block, dims) in enumerate(zip(model.blocks, spec["blocks"])):
    d, bias = model.embed_dim, lambda name: f"blocks.{i}.{name}.bias" in state
"""
_NO_ATTENTION = """    if not dims["heads"]:  # only the FFN is left
        del block.norm1, block.attn{scale}
        block.forward = lambda x, b=block: {ffn}
"""
_NO_FFN = """    if not dims["ffn"]:  # only the attention is left
        del block.norm2, block.mlp{scale}
        block.forward = lambda x, b=block: {attention}
"""
_ATTENTION = """block.attn = Attention(d, num_heads=dims["heads"], attn_head_dim=dims["qk"],
                           qkv_bias=bias("attn.qkv"), proj_bias=bias("attn.proj"))
"""
_FFN = """    for name, layer in list(getattr(block, "mlp", torch.nn.Module()).named_children()):
        if isinstance(layer, torch.nn.Linear):
            rows, columns = state[f"blocks.{i}.mlp.{name}.weight"].shape
            setattr(block.mlp, name, torch.nn.Linear(columns, rows, bias=bias(f"mlp.{name}")))
"""
_IF_HEADS = """    if dims["heads"]:
        """
_END = """model.load_state_dict(state)
"""


def plain_loader(model: Any) -> str | None:
    """Lines of Python that make `model` of `spec` (model.json) and `state` (its weights) with torch and timm alone.

    None where timm has no such attention, and where tokens leave, for which it has no module.
    """
    if any(isinstance(_attn(block), SlimAttention) or isinstance(block, TokenBlock) for block in model.blocks):
        return None
    post_norm = any(map(_post_norm, model.blocks))
    attention = "x + b.norm1(b.attn(x))" if post_norm else "x + b.ls1(b.attn(b.norm1(x)))"
    ffn = "x + b.norm2(b.mlp(x))" if post_norm else "x + b.ls2(b.mlp(b.norm2(x)))"
    lines = [_START]
    without_attention = any(_attn(block) is None for block in model.blocks)
    if without_attention:
        lines.append(_NO_ATTENTION.format(ffn=ffn, scale="" if post_norm else ", block.ls1"))
    if any(_mlp(block) is None for block in model.blocks):
        lines.append(_NO_FFN.format(attention=attention, scale="" if post_norm else ", block.ls2"))
    lines.append((_IF_HEADS if without_attention else "    ") + _ATTENTION)
    return "".join([*lines, _FFN, _END])
