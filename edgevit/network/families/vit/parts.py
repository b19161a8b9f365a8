"""Read the weights of a block of timm as parts, and write parts to a block.

Queries, keys and values of an attention are rows of one layer, in this order. The two inputs of a gated FFN are two
layers, or the halves of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from timm.layers import GluMlp, Mlp, SwiGLU
from timm.models.vision_transformer import Attention as TimmAttention
from timm.models.vision_transformer import ResPostBlock
from torch import Tensor, nn

from edgevit.network.anatomy import Attention, BlockDims, Ffn, packed_widths, unpack
from edgevit.network.families.vit.rotary import RotaryAttention
from edgevit.network.families.vit.slim import SlimAttention


def attn_of(block: Any) -> Any:
    """The attention of a block; None: removed."""
    return getattr(block, "attn", None)


def mlp_of(block: Any) -> Any:
    """The FFN of a block; None: removed."""
    return getattr(block, "mlp", None)


def windows_of(attn: Any) -> int:
    """The number of windows within which the tokens of an attention attend to one another; 1 for None."""
    return int(getattr(attn, "window_count", 1))


def is_post_norm(block: Any) -> bool:
    """Whether its norms follow the outputs of its sites."""
    return isinstance(block, ResPostBlock) or bool(getattr(block, "post_norm", False))


# -- reading -----------------------------------------------------------------------------------------------------------


def read_attention(attn: Any) -> Attention:
    heads = attn.num_heads
    qk, vo = (attn.qk_dim, attn.vo_dim) if isinstance(attn, SlimAttention) else [attn.attn_dim // heads] * 2
    dims = BlockDims(heads, qk, vo, 0)
    weight: Tensor = attn.qkv.weight
    wq, wk, wv = (torch.unflatten(w, 0, (heads, -1)) for w in torch.split(weight, packed_widths(dims)))
    bq, bk, bv = (None, None, None) if attn.qkv.bias is None else unpack(attn.qkv.bias, dims)
    wo = attn.proj.weight.unflatten(1, (heads, -1)).permute(1, 0, 2)  # [d, H * v] -> [H, d, v]
    rotary = attn.table if isinstance(attn, RotaryAttention) else None
    return Attention(wq=wq, bq=bq, wk=wk, bk=bk, wv=wv, bv=bv, wo=wo, bo=attn.proj.bias, rotary=rotary)


def _halves(tensor: Tensor | None, mlp: Any) -> tuple[Tensor | None, Tensor | None]:
    """The rows of a packed input layer before the activation, and the rows of the gate."""
    if tensor is None:
        return None, None
    first, second = tensor.chunk(2)
    return (second, first) if mlp.gate_last else (first, second)


def read_ffn(mlp: Any) -> Ffn:
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


# -- writing -----------------------------------------------------------------------------------------------------------


def make_attention(dim: int, dims: BlockDims, *, qkv_bias: bool, proj_bias: bool, like: Any = None) -> nn.Module:
    """An attention of these sizes, with the rotation or the windows of the one that it replaces."""
    biases = {"qkv_bias": qkv_bias, "proj_bias": proj_bias}
    if isinstance(like, RotaryAttention):
        rotary = RotaryAttention(like.rotation, dim, dims, **biases)
        rotary.table = rotary.table.to(like.table)
        return rotary
    if windows_of(like) > 1:
        return SlimAttention(dim, replace(dims, windows=windows_of(like)), **biases)
    if dims.qk == dims.vo:
        timm_attention: nn.Module = TimmAttention(dim, num_heads=dims.heads, attn_head_dim=dims.qk, **biases)
        return timm_attention
    return SlimAttention(dim, dims, **biases)


def input_layers(mlp: Any) -> dict[str, int]:
    """The linear layers that read the tokens, with their rows per neuron."""
    if isinstance(mlp, SwiGLU):
        return {"fc1_g": 1, "fc1_x": 1}
    return {"fc1": 2 if isinstance(mlp, GluMlp) else 1}


def has_input_bias(mlp: Any) -> bool:
    return all(getattr(mlp, layer).bias is not None for layer in input_layers(mlp))


def parameter(weight: Tensor) -> nn.Parameter:
    """Return a tensor as a parameter, copied if it is a view of another parameter."""
    shared = isinstance(weight, nn.Parameter) or weight._base is not None
    weight = weight.detach()
    return nn.Parameter(weight.clone(memory_format=torch.contiguous_format) if shared else weight.contiguous())


def _filled(bias: Tensor | None, like: Tensor) -> Tensor:
    """A bias with one entry per row of `like` [H, w, d]; zero without a bias."""
    return like.new_zeros(like.shape[0] * like.shape[1]) if bias is None else bias.flatten()


def write_attention(attn: Any, weights: Attention) -> None:
    attn.qkv.weight = parameter(torch.cat([w.flatten(0, 1) for w in (weights.wq, weights.wk, weights.wv)]))
    if attn.qkv.bias is not None:
        pairs = ((weights.bq, weights.wq), (weights.bk, weights.wk), (weights.bv, weights.wv))
        attn.qkv.bias = parameter(torch.cat([_filled(bias, like) for bias, like in pairs]))
    attn.proj.weight = parameter(weights.wo.permute(1, 0, 2).flatten(1))  # [H, d, v] -> [d, H * v]
    if weights.bo is not None:
        attn.proj.bias = parameter(weights.bo)


def write_ffn(mlp: Any, weights: Ffn) -> None:
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
        layer.weight = parameter(weight)
        if bias is not None:
            layer.bias = parameter(bias)


def keep_rows(head: Any, classes: Sequence[int]) -> None:
    """Keep these rows of a classifier, in this order."""
    index = torch.as_tensor(classes, device=head.weight.device)
    head.weight = nn.Parameter(head.weight.detach()[index].clone())
    if head.bias is not None:
        head.bias = nn.Parameter(head.bias.detach()[index].clone())
    head.out_features = len(classes)


def odd_linear(*sites: nn.Module) -> str | None:
    """The reason why the weights of linear layers do not say what they compute, as of one with LoRA's, or None."""
    for site in sites:
        for name in ("qkv", "proj", "fc1", "fc1_g", "fc1_x", "fc2"):
            kind: Any = type(getattr(site, name, None))
            if issubclass(kind, nn.Module) and kind.forward is not nn.Linear.forward:
                return (
                    f"its {name} is {kind.__module__}.{kind.__name__}, expected torch.nn.Linear; merge adapters such "
                    "as LoRA's into its layers"
                )
    return None
