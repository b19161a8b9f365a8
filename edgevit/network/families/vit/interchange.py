"""How ViTs and their weights come from other programs, and go to them (`families.Interchange`)."""

from __future__ import annotations

from typing import Any

from timm.models.vision_transformer import VisionTransformer

from edgevit.network.families import plain_creation
from edgevit.network.families.vit import backbones, pooling, release, rotary, windowed
from edgevit.network.families.vit.embedding import linear_ends
from edgevit.network.families.vit.names import fitted as fitted
from edgevit.network.families.vit.names import named as named
from edgevit.network.families.vit.parts import attn_of, is_post_norm, mlp_of
from edgevit.network.families.vit.rotary import WithoutPositions
from edgevit.network.families.vit.shapes import guessed_arguments as guessed_arguments
from edgevit.network.families.vit.shapes import guessed_name as guessed_name
from edgevit.network.families.vit.shapes import shape_arguments as shape_arguments
from edgevit.network.families.vit.slim import SlimAttention
from edgevit.network.families.vit.tokens import TokenBlock, TokenChoice
from edgevit.network.weights import TimmArguments

model_types = (
    "vit", "deit", "vit_mae", "vit_msn", "ijepa", "dinov2", "dinov2_with_registers", "dinov3_vit", "clip_vision_model",
    "siglip_vision_model",
)  # fmt: skip

_IMPORT = """from timm.models.vision_transformer import Attention

"""
_START = """for i, (block, dims) in enumerate(zip(model.blocks, spec["blocks"])):
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
_TOKENS = """model.global_pool = ""  # every token is put out; those of this folder are {those}
"""
_MEAN = """model.pool = lambda x: torch.cat([x[:, 0], x[:, {prefix}:].mean(1)], 1)  # of all tokens
model.head = torch.nn.Linear(*state["head.weight"].shape[::-1])
"""
_END = """model.load_state_dict(state)
"""


def adopted(module: Any) -> Any:
    """Convert a network that holds the weights of a VisionTransformer to one; return other modules unchanged."""
    if backbones.is_backbone(module):
        return backbones.adopted(module)
    if release.is_dinov2_release(module):
        return release.adopted(module)
    return windowed.adopted(module) if windowed.is_windowed(module) else rotary.adopted(module)


def stated_arguments(module: Any) -> TimmArguments:
    arguments: TimmArguments = {"img_size": list(module.patch_embed.img_size)}
    if isinstance(module, VisionTransformer) and not isinstance(module, WithoutPositions):
        arguments |= {"no_embed_class": module.no_embed_class, "global_pool": module.global_pool}
        attention = next((attn for block in module.blocks if (attn := attn_of(block)) is not None), None)
        heads = attention if pooling.of(module) is None else pooling.of(module)  # which has those of the base
        arguments |= {} if heads is None else {"num_heads": heads.num_heads}
    return arguments | ({"norm_eps": module.norm_eps} if hasattr(module, "norm_eps") else {})


def timm_arguments(module: Any, depth: int, embed: int) -> TimmArguments:
    changed = {} if len(module.blocks) == depth else {"depth": len(module.blocks)}
    if module.embed_dim != embed:
        # timm requires a multiple of the number of heads; the heads of blocks are set by `resize`.
        changed |= {"embed_dim": module.embed_dim} | ({} if pooling.of(module) else {"num_heads": 1})
    return changed


def plain_loader(model: Any) -> str | None:
    """Lines of Python that make `model` of `spec` (model.json) and `state` (its weights) with torch and timm alone.

    None where timm has no such attention, and where tokens leave, for which it has no module.
    """
    if any(isinstance(attn_of(block), SlimAttention) or isinstance(block, TokenBlock) for block in model.blocks):
        return None
    if linear_ends(model):
        return None
    post_norm = any(map(is_post_norm, model.blocks))
    attention = "x + b.norm1(b.attn(x))" if post_norm else "x + b.ls1(b.attn(b.norm1(x)))"
    ffn = "x + b.norm2(b.mlp(x))" if post_norm else "x + b.ls2(b.mlp(b.norm2(x)))"
    lines = [_IMPORT, plain_creation(model), _START]
    without_attention = any(attn_of(block) is None for block in model.blocks)
    if without_attention:
        lines.append(_NO_ATTENTION.format(ffn=ffn, scale="" if post_norm else ", block.ls1"))
    if any(mlp_of(block) is None for block in model.blocks):
        lines.append(_NO_FFN.format(attention=attention, scale="" if post_norm else ", block.ls2"))
    lines.append((_IF_HEADS if without_attention else "    ") + _ATTENTION)
    choice = model.fc_norm
    if isinstance(choice, TokenChoice) and choice.tokens == "class,mean":
        lines += [_FFN, _MEAN.format(prefix=choice.prefix), _END]
        return "".join(lines)
    lines += [_FFN, _END]
    if isinstance(choice, TokenChoice):
        those = f"outputs[:, {choice.prefix}:]"
        if choice.tokens == "class":
            those = "outputs[:, 0]"
        if choice.tokens == "class,patches":
            those = "all" if choice.prefix == 1 else f"outputs[:, :1] and {those}"
        lines.append(_TOKENS.format(those=those))
    return "".join(lines)
