"""How Swins and their weights come from other programs, and go to them (`families.Interchange`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from torch import Tensor, nn

from edgevit.network.families import plain_creation
from edgevit.network.families.swin import backbones
from edgevit.network.families.swin.conversion import on_tokens, reason_against
from edgevit.network.families.swin.embedding import is_narrower
from edgevit.network.families.swin.listed import ListedSwin, is_listed, swin_of_list
from edgevit.network.families.swin.modules import TokenSwin
from edgevit.network.families.swin.names import PATCHES, SIZES
from edgevit.network.families.swin.names import named as named
from edgevit.network.weights import TimmArguments, Weights, first_names, mlp_ratio

model_types = ("swin", "maskformer-swin", "donut-swin")
_IMPORT = """from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention

"""
_START = """blocks = [(name, block) for name, block in model.named_modules() if isinstance(block, SwinTransformerBlock)]
for (name, block), dims in zip(blocks, spec["blocks"]):
    d, sides = block.dim, zip(block.input_resolution, block.window_size)
    block.shift_size = tuple(w // 2 if dims["shifted"] and w < r else 0 for r, w in sides)
    block.attn_mask = block.get_attn_mask(device="cpu", dtype=torch.float32)
"""
_NARROWER = """
merging = [stage.downsample for stage in model.layers[1:]]
model.layers[0].downsample = torch.nn.Linear(model.embed_dim, model.embed_dim)
for layer in merging:
    layer.reduction = torch.nn.Linear(layer.reduction.in_features, layer.reduction.out_features)
""".lstrip()
_NO_ATTENTION = """    if not dims["heads"]:  # only the FFN is left
        del block.norm1, block.attn
        block.forward = lambda x, b=block: x + b.mlp(b.norm2(x))
"""
_NO_FFN = """    if not dims["ffn"]:  # only the attention is left
        del block.norm2, block.mlp
        block.forward = lambda x, b=block: x + b._attn(b.norm1(x))
"""
_REST = """    if dims["heads"]:
        bias = f"{name}.attn.qkv.bias" in state
        block.attn = WindowAttention(d, dims["heads"], dims["qk"], block.window_size, qkv_bias=bias)
    if dims["ffn"]:
        block.mlp.fc1, block.mlp.fc2 = torch.nn.Linear(d, dims["ffn"]), torch.nn.Linear(dims["ffn"], d)
model.load_state_dict(state)
"""
_LOAD = "model.load_state_dict"


def adopted(model: Any) -> Any:
    """Convert timm's Swin or one of transformers to that on tokens; return other modules unchanged.

    Raises:
        UnsupportedModelError: one of transformers computes something else.
    """
    if backbones.is_transformers_swin(model):
        return backbones.adopted(model)
    if isinstance(model, TokenSwin) or reason_against(model) is not None:
        return model
    return on_tokens(swin_of_list(model), ListedSwin) if is_listed(model) else on_tokens(model)


def fitted(weights: Weights, network: Any, name: str, *, resample: bool, trained: Any = None) -> Weights:
    """Leave out weights that the network does not use; a window of another size is another network."""
    used = {name.partition(".")[0] for name in network.state_dict()}
    unused = [key for key in sorted(weights.state) if key.partition(".")[0] not in used]
    if isinstance(network.norm, nn.Identity):  # it may end before the last stage, as features_only makes it
        stages = tuple(f"layers.{number}." for number in range(len(network.layers)))
        later = [key for key in sorted(weights.state) if key.startswith("layers.") and not key.startswith(stages)]
        unused = later + unused
    if not unused:
        return weights
    state = {key: value for key, value in weights.state.items() if key not in unused}
    note = f"left out of the weights, as {name} does not use them: {first_names(unused)}"
    return replace(weights, state=state, notes=(*weights.notes, note))


def shape_arguments(state: Mapping[str, Tensor]) -> TimmArguments:
    """timm's arguments that the shapes of weights under timm's names say."""
    patches = state.get(PATCHES)
    places = [match for name in state if (match := re.fullmatch(r"layers\.(\d+)\.blocks\.(\d+)\.norm2\.bias", name))]
    if patches is None or patches.ndim != 4 or not places:
        return {}
    stages = range(max(int(match[1]) for match in places) + 1)
    depths = [1 + max((int(m[2]) for m in places if int(m[1]) == stage), default=-1) for stage in stages]
    tables = [state.get(f"layers.{stage}.blocks.0.attn.relative_position_bias_table") for stage in stages]
    arguments: TimmArguments = {
        "patch_size": patches.shape[2],
        "in_chans": patches.shape[1],
        "embed_dim": patches.shape[0],
        "depths": depths,
        "qkv_bias": any(name.endswith(".attn.qkv.bias") for name in state),
    }
    if bias_tables := [table for table in tables if table is not None and table.ndim == 2]:  # an empty stage has any
        of_stages = [bias_tables[0] if table is None else table for table in tables]
        arguments["num_heads"] = [table.shape[1] for table in of_stages]
        windows = [(isqrt(len(table)) + 1) // 2 for table in of_stages]
        arguments["window_size"] = windows[0] if len(set(windows)) == 1 else windows
    first = state.get("layers.0.blocks.0.mlp.fc1.weight")
    if first is not None and first.ndim == 2:
        arguments["mlp_ratio"] = mlp_ratio(len(first), patches.shape[0])
    return arguments


def guessed_arguments(
    state: Mapping[str, Tensor], network: Any, network_state: Mapping[str, Tensor], stated: Collection[str]
) -> tuple[TimmArguments, str | None]:
    """The arguments by which a network would have the shapes of these weights; those that are `stated` are left out."""
    now, then = shape_arguments(network_state), shape_arguments(state)
    return {key: value for key, value in then.items() if now.get(key) != value and key not in stated}, None


def guessed_name(state: Mapping[str, Tensor]) -> str | None:
    """timm's name of a Swin similar to these weights; None: they are not of a Swin."""
    arguments = shape_arguments(state)
    if not arguments or "num_heads" not in arguments:
        return None
    size = SIZES[min(SIZES, key=lambda width: abs(width - arguments["embed_dim"]))]
    if size == "tiny" and max(arguments["depths"]) > 6:
        size = "small"
    large = size in ("base", "large") and arguments["window_size"] == 12
    return f"swin_{size}_patch4_window{'12_384' if large else '7_224'}"


def stated_arguments(module: Any) -> TimmArguments:
    arguments: TimmArguments = {"img_size": list(module.patch_embed.img_size)}
    return arguments | ({"norm_eps": module.norm_eps} if hasattr(module, "norm_eps") else {})


def timm_arguments(module: Any, depth: int, embed: int) -> TimmArguments:
    depths = [len(stage.blocks) for stage in module.layers]
    narrower: TimmArguments = {} if module.num_features == embed else {"embed_dim": module.embed_dim}
    return narrower if sum(depths) == depth else {**narrower, "depths": depths}


def plain_loader(model: Any) -> str | None:
    """Lines of Python that make `model` of `spec` (model.json) and `state` (its weights) with torch and timm alone.

    None where timm has no such attention.
    """
    blocks = [block for stage in model.layers for block in stage.blocks]
    if any(block.attn is not None and block.attn.qk_dim != block.attn.vo_dim for block in blocks):
        return None
    lines = [_IMPORT, plain_creation(model), _START]
    lines += [_NO_ATTENTION] * any(block.attn is None for block in blocks)
    lines += [_NO_FFN] * any(block.mlp is None for block in blocks)
    return "".join([*lines, _REST.replace(_LOAD, _NARROWER + _LOAD) if is_narrower(model) else _REST])
