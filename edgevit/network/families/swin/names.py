"""Convert the names of weights of other programs to those of timm's Swin.

Supported are timm, Microsoft, Hugging Face with the names in its files and of the modules of transformers 5,
torchvision and mmdetection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from edgevit.network.weights import State, Weights, first_names
from edgevit.records.model import PreprocessingFields

PATCHES = "patch_embed.proj.weight"
_HUGGING_FACE = [
    (r"^swin\.", ""),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.norm\.", "patch_embed.norm."),
    (r"^embeddings\.", ""),  # mask_token
    (r"^encoder\.layers\.", "layers."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.(self|relative_position_bias)\.", ".attn."),
    (r"\.attention\.q_proj\.", ".attn.query."),
    (r"\.attention\.k_proj\.", ".attn.key."),
    (r"\.attention\.v_proj\.", ".attn.value."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
]
_TORCHVISION = [  # torchvision has stages at odd numbers, and the merging of tokens before each at even ones
    (r"^features\.0\.0\.", "patch_embed.proj."),
    (r"^features\.0\.2\.", "patch_embed.norm."),
    (r"^features\.(\d*[13579])\.(\d+)\.", lambda match: f"layers.{int(match[1]) // 2}.blocks.{match[2]}."),
    (r"^features\.(\d+)\.", lambda match: f"layers.{int(match[1]) // 2 - 1}.downsample."),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.3\.", ".mlp.fc2."),
]
_OPENMMLAB = [
    (r"^patch_embed\.projection\.", "patch_embed.proj."),
    (r"^stages\.", "layers."),
    (r"\.attn\.w_msa\.", ".attn."),
    (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."),
    (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
]
_FIRST: Mapping[str, tuple[str, str, list[Any]]] = {  # the name of the patch embedding in programs beside timm
    "embeddings.patch_embeddings.projection.weight": ("Hugging Face's", "transformers", _HUGGING_FACE),
    "features.0.0.weight": ("torchvision's", "torchvision", _TORCHVISION),
    "patch_embed.projection.weight": ("mmdetection's", "mmdetection", _OPENMMLAB),
}
_CONSTANTS = ("relative_position_index", "attn_mask")
_TORCHVISION_RESIZED = {"tiny": 232, "small": 246, "base": 238}  # pixels, of which 224 are cropped
SIZES = {96: "tiny", 128: "base", 192: "large"}  # timm's name of the size, by width of the first stage


def named(state: Mapping[str, Tensor]) -> Weights:
    """Rename weights of timm, Microsoft, Hugging Face, torchvision and mmdetection to timm's names.

    Of a detector those of its backbone are taken; the norm of its last output is the last norm.
    """
    notes, origin, rules = list[str](), "timm", list[Any]()
    for first, (source, program, names) in _FIRST.items():
        if any(name.endswith(first) for name in state):
            notes, origin, rules = [f"the weights have {source} names, and are read as timm's"], program, names
    state = _of_backbone(state, notes)
    if origin == "mmdetection":
        state = {name: _merged_as_timm(name, value) for name, value in state.items()}
    renamed: State = {}
    for name, value in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        if not name.endswith(_CONSTANTS):
            name = re.sub(r"^layers_(\d+)\.", r"layers.\1.", name)  # of a list of timm's
            renamed[re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)] = value.to(torch.float32)
    for name in [name for name in renamed if name.endswith((".attn.query.weight", ".attn.query.bias"))]:
        parts = [name.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        renamed[name.replace(".query.", ".qkv.")] = torch.cat([renamed.pop(part) for part in parts])
    if "layers.0.downsample.reduction.weight" in renamed:  # tokens are merged where a stage ends
        moved = {name: value for name, value in renamed.items() if ".downsample." in name}
        renamed = {name: value for name, value in renamed.items() if name not in moved}
        for name, value in moved.items():
            renamed[re.sub(r"^layers\.(\d+)", lambda match: f"layers.{int(match[1]) + 1}", name)] = value
    head = renamed.get("head.fc.weight")
    usual = _torchvision_preprocessing(renamed) if origin == "torchvision" else {}
    return Weights(renamed, tuple(notes), 0 if head is None else len(head), origin, usual)


def _torchvision_preprocessing(state: Mapping[str, Tensor]) -> PreprocessingFields:
    """The preprocessing of torchvision's weights; a size that it does not have is resized as timm's is."""
    size = SIZES.get(len(state["patch_embed.proj.bias"]), "")
    if size == "tiny" and any(name.startswith("layers.2.blocks.6.") for name in state):
        size = "small"  # small has the width of tiny
    usual: PreprocessingFields = {
        "mean": list(IMAGENET_DEFAULT_MEAN), "std": list(IMAGENET_DEFAULT_STD), "interpolation": "bicubic",
    }  # fmt: skip
    return usual | ({"crop_pct": 224 / _TORCHVISION_RESIZED[size]} if size in _TORCHVISION_RESIZED else {})


def _of_backbone(state: Mapping[str, Tensor], notes: list[str]) -> Mapping[str, Tensor]:
    """The weights of a detector's backbone alone, without their prefix; others as they are."""
    first = next((name for name in state if name.endswith((*_FIRST, PATCHES))), "")
    prefix = re.sub(r"((embeddings\.)?patch_embed|features\.0\.0).*", "", first)
    if prefix and prefix != "swin.":
        others = [name for name in state if not name.startswith(prefix)]
        if others:
            notes.append(f"the weights are those of {prefix[:-1]}, without {first_names(sorted(others))}")
        state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    norms = sorted(name for name in state if re.fullmatch(r"norm\d\.(weight|bias)", name))
    if not norms or "norm.weight" in state:
        return state
    last = norms[-1].partition(".")[0]
    if others := [name for name in norms if not name.startswith(f"{last}.")]:
        notes.append(f"norms of the other outputs of the backbone are left out of the weights: {first_names(others)}")
    without_norms = {name: value for name, value in state.items() if name not in norms}
    return {**without_norms, **{f"norm.{part}": state[f"{last}.{part}"] for part in ("weight", "bias")}}


def _merged_as_timm(name: str, value: Tensor) -> Tensor:
    """Weights that read four merged tokens, channel by channel (torch's unfold), in timm's order, token by token.

    timm has the four tokens column by column.
    """
    if ".downsample." not in name:
        return value
    rows = value.reshape(-1, value.shape[-1] // 4, 2, 2)  # [outputs, channels, row, column]
    return rows.permute(0, 3, 2, 1).reshape(value.shape)
