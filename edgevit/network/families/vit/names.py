"""Weights of others under the names that timm gives them.

timm's own names are taken as they are. Recognised beside them: torchvision's ViT; Hugging Face's ViT, DeiT and DINOv2,
with registers too, as their files have them and as transformers 5 names its modules; the official release of DINOv2; of
DINOv3 timm's names in its own class, the official release and Hugging Face's. What is renamed, joined or added up is
the same function. Only position embeddings may be resampled, where another size of images was asked for, as those do
it who gave the weights their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from edgevit.errors import CheckpointError
from edgevit.network.families.vit.shapes import PATCHES, REGISTERS
from edgevit.network.weights import State, Weights, first_names

# Each is replaced in every name, in this order. A block of Hugging Face's has one of two sets of names: that of files,
# and that of the modules of transformers 5, which are written only where `save_original_format=False` asks for it.
_HUGGING_FACE = [
    (r"^(vit|deit|dinov2|dinov2_with_registers)\.", ""),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.distillation_token$", "dist_token"),
    (r"^embeddings\.", ""),  # cls_token, mask_token, register_tokens
    (r"^(encoder\.layer|layers)\.(\d+)\.", r"blocks.\2."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.attention\.(query|key|value)\.", r".attn.\1."),
    (r"\.attention\.q_proj\.", ".attn.query."),
    (r"\.attention\.k_proj\.", ".attn.key."),
    (r"\.attention\.v_proj\.", ".attn.value."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"\.mlp\.weights_in\.", ".mlp.fc1."),
    (r"\.mlp\.(weights_out|down_proj)\.", ".mlp.fc2."),
    (r"^layernorm\.", "norm."),
    (r"^(cls_)?classifier\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
]
_HUGGING_FACE_DINOV3 = [
    (r"^embeddings\.patch_embeddings\.", "patch_embed.proj."),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^embeddings\.", ""),  # cls_token, mask_token
    (r"^(model\.)?layer\.(\d+)\.", r"blocks.\2."),
    (r"\.attention\.q_proj\.", ".attn.query."),
    (r"\.attention\.k_proj\.", ".attn.key."),
    (r"\.attention\.v_proj\.", ".attn.value."),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"\.mlp\.gate_proj\.", ".mlp.fc1_g."),
    (r"\.mlp\.up_proj\.", ".mlp.fc1_x."),  # fc1 where there is no gate
    (r"\.mlp\.down_proj\.", ".mlp.fc2."),
]
_TORCHVISION = [
    (r"^class_token$", "cls_token"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"^encoder\.ln\.", "norm."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"^(blocks\.\d+)\.mlp\.(0|linear_1)\.", r"\1.mlp.fc1."),
    (r"^(blocks\.\d+)\.mlp\.(3|linear_2)\.", r"\1.mlp.fc2."),
    (r"^heads\.(head|0)\.", "head."),
]
TORCHVISION_PREPROCESSING = {  # of its own weights, and of what is trained from them by its recipe
    "mean": list(IMAGENET_DEFAULT_MEAN), "std": list(IMAGENET_DEFAULT_STD), "crop_pct": 0.875,
    "interpolation": "bilinear",
}  # fmt: skip
_OFFICIAL = [  # of DINOv2 and DINOv3, and what timm's class of the latter calls otherwise than its ViT
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # chunks, in which blocks keep their own numbers
    (r"^storage_tokens$", "reg_token"),
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"\.attn\.q_bias$", ".attn.query.bias"),
    (r"\.attn\.v_bias$", ".attn.value.bias"),
]
CLASSIFIERS = ("head", "head_dist")
ELSEWHERE = ("dist_token", REGISTERS)  # what a network of another class has, or has under another name
_JOINED = {  # what timm has as rows of one matrix
    "attn.qkv": ("attn.query", "attn.key", "attn.value"),
    "mlp.fc1": ("mlp.gate_proj", "mlp.up_proj"),
}


def named(state: Mapping[str, Tensor]) -> Weights:
    """Give weights timm's names, by whose they have."""
    state = _of_network(state)
    rules, notes, origin = _OFFICIAL, list[str](), "timm"
    if ("mask_token" in state or REGISTERS in state) and "blocks.0.ls1.gamma" in state:
        origin = "DINOv2"
    for patches, those in (("projection.weight", _HUGGING_FACE), ("weight", _HUGGING_FACE_DINOV3)):
        if any(name.endswith(f"embeddings.patch_embeddings.{patches}") for name in state):
            rules, origin = those, "transformers"
            notes = ["the weights have Hugging Face's names, and are read as timm's"]
    if {"class_token", "conv_proj.weight", "encoder.pos_embedding"} <= state.keys():
        rules, origin = _TORCHVISION, "torchvision"
        notes = ["the weights have torchvision's names, and are read as timm's"]
    found = {_renamed(name, rules): value.to(torch.float32) for name, value in state.items()}
    if rules is _HUGGING_FACE_DINOV3 and not any(".mlp.fc1_g." in name for name in found):
        found = {name.replace(".mlp.fc1_x.", ".mlp.fc1."): value for name, value in found.items()}
    if rules is not _HUGGING_FACE:
        _without_key_biases(found)
    for whole, parts in _JOINED.items():
        _join(found, whole, parts)
    head, token = found.get("head.weight"), found.get("cls_token")
    if head is not None and token is not None and head.ndim == 2 and head.shape[1:] == (2 * token.numel(),):
        notes.append(
            "the classifier of the weights reads the class token and the mean of the patches, and timm's reads one of "
            "them: it is left out"
        )
        found, head = {name: value for name, value in found.items() if not name.startswith("head.")}, None
    usual = TORCHVISION_PREPROCESSING if origin == "torchvision" else {}
    return Weights(found, tuple(notes), 0 if head is None else len(head), origin, usual)


def _of_network(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Take off what the names of the one network begin with, beside those of a loss or of other heads."""
    found = [name.removesuffix(PATCHES) for name in state if name.endswith(f".{PATCHES}")]
    if len(found) != 1 or PATCHES in state:
        return state
    beside = {name: value for name, value in state.items() if not name.startswith(found[0])}
    return {**beside, **{name.removeprefix(found[0]): state[name] for name in state if name not in beside}}


def _renamed(name: str, rules: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _join(state: State, whole: str, parts: tuple[str, ...]) -> None:
    """Join the rows of layers that timm has as one, where all of them are there."""
    first = re.compile(rf"(.*\.){re.escape(parts[0])}\.(weight|bias)")
    for match in [m for name in state if (m := first.fullmatch(name))]:
        names = [f"{match[1]}{part}.{match[2]}" for part in parts]
        if all(name in state for name in names):
            state[f"{match[1]}{whole}.{match[2]}"] = torch.cat([state.pop(name) for name in names])


def _without_key_biases(state: State) -> None:
    """Put zeros where DINOv3 has no biases of keys, or a mask over them."""
    for name in [name for name in state if name.endswith(".attn.qkv.bias_mask")]:
        del state[name]
        query, key, value = state[name.removesuffix("_mask")].chunk(3)
        state[name.removesuffix("_mask")] = torch.cat([query, torch.zeros_like(key), value])
    for name in [name for name in state if name.endswith(".attn.query.bias")]:
        state.setdefault(name.replace(".query.", ".key."), torch.zeros_like(state[name]))


def fitted(weights: Weights, network: Any, name: str, *, resample: bool, trained: Any = None) -> Weights:
    """Make weights those of this network as far as timm can: other names of DINOv2, and other numbers of patches.

    What only training needed, such as a mask token, is left out and named; a layer that the network could have and has
    not stays, for `fill_network` to refuse.

    Args:
        name: of the base, for messages.
        resample: whether position embeddings may be resampled, because the size of images was asked for.
        trained: timm's img_size of the weights, where a file beside them says it.

    Raises:
        CheckpointError: they are of another number of patches, and are not to be resampled; or of as many, and nothing
            says in how many rows.
    """
    notes, unused = list(weights.notes), sorted(key for key in weights.state if not _concerns(network, key))
    state = {key: value for key, value in weights.state.items() if key not in unused}
    if unused:
        notes.append(f"left out of the weights, as {name} has no use for them: {first_names(unused)}")
    own = network.state_dict()
    if zeros := [k for k, v in state.items() if k.endswith(".qkv.bias") and k not in own and not v.any()]:
        state = {key: value for key, value in state.items() if key not in zeros}
        notes.append(f"left out of the weights, as they are zero and {name} has none: {first_names(zeros)}")
    if isinstance(network, VisionTransformer) and _same_patches(state, network):
        if note := _resample(state, network, name, weights.origin, resample=resample, trained=trained):
            notes.append(note)
        if REGISTERS in state and network.reg_token is not None:
            # timm adds to registers no position, and to the class token its own beforehand.
            first, rest = state["pos_embed"][:, :1], state["pos_embed"][:, 1:]
            state |= {"reg_token": state.pop(REGISTERS), "cls_token": state["cls_token"] + first, "pos_embed": rest}
    return replace(weights, state=state, notes=tuple(notes))


def _concerns(network: Any, key: str) -> bool:
    """Whether the network has, or with other arguments would have, what this weight is of."""
    leading = key.partition(".")[0]
    if leading in CLASSIFIERS:
        return bool(network.num_classes)
    return hasattr(network, leading) or leading in ELSEWHERE


def _same_patches(state: State, network: Any) -> bool:
    """Whether patches have one size: timm resamples the embedding of others, too, which is another function."""
    held, own = state.get("patch_embed.proj.weight"), network.patch_embed.proj.weight
    return held is not None and held.shape[2:] == own.shape[2:] and min(network.patch_embed.grid_size) > 0


def _resample(state: State, network: Any, name: str, origin: str, *, resample: bool, trained: Any) -> str:
    """Resample position embeddings in place and say how; nothing where they fit, or where their rows are not known.

    Raises:
        CheckpointError: as `fitted` says.
    """
    positions, own = state.get("pos_embed"), network.pos_embed
    if positions is None or own is None or positions.ndim != 3:
        return ""
    # DINOv2 has a position of the class token, and none of registers.
    prefix = 1 if REGISTERS in state else 0 if network.no_embed_class else network.num_prefix_tokens
    patches, (height, width) = positions.shape[1] - prefix, network.patch_embed.grid_size
    side, steps = isqrt(max(patches, 0)), network.patch_embed.patch_size
    sizes = trained if isinstance(trained, (list, tuple)) else (trained or 0,) * 2
    rows, columns = (size // step for size, step in zip(sizes, steps, strict=True))
    if rows * columns != patches or not patches:
        if side * side != patches:
            return ""
        rows = columns = side
        if patches == height * width and height != width:
            raise CheckpointError(
                f"the {patches} position embeddings of the weights may be {side} x {side} patches or the {height} x "
                f"{width} of {name}, and nothing says which; write how the weights were trained to config.json beside "
                f'them, such as {{"model_args": {{"img_size": [{height * steps[0]}, {width * steps[1]}]}}}}'
            )
    if (rows, columns) == (height, width):
        return ""
    size = rows * steps[0] if rows * steps[0] == columns * steps[1] else (rows * steps[0], columns * steps[1])
    if not resample:
        raise CheckpointError(
            f"the weights do not fit {name}: their position embeddings are of {rows} x {columns} patches, expected "
            f"{height} x {width}; give --model-arg img_size={size} for images as large as they were trained on, or "
            f"another img_size to have them resampled"
        )
    grid = positions[:, prefix:].reshape(1, rows, columns, -1).permute(0, 3, 1, 2)
    bicubic: dict[str, Any] = {"mode": "bicubic", "align_corners": origin == "torchvision"}
    if origin == "DINOv2" and REGISTERS not in state:
        # As its release does, which has sides that are longer by a tenth of a patch.
        scale = ((height + 0.1) / rows, (width + 0.1) / columns)
        grid = F.interpolate(grid, scale_factor=scale, recompute_scale_factor=False, **bicubic)
    else:
        antialias = origin in ("timm", "DINOv2")
        grid = F.interpolate(grid, size=(height, width), antialias=antialias, **bicubic)
    flat = grid.permute(0, 2, 3, 1).flatten(1, 2)
    state["pos_embed"] = torch.cat([positions[:, :prefix], flat], dim=1)
    return (
        f"position embeddings are resampled from {rows} x {columns} patches to {height} x {width}, for img_size, as "
        f"{origin} does"
    )
