"""Convert the names of weights of other programs to those of timm.

Supported are timm; torchvision's ViT; Hugging Face's ViT, DeiT and DINOv2, also with registers, with the names in their
files and of the modules of transformers 5, and the image towers of its CLIP and SigLIP; the official release of DINOv2;
and for DINOv3 timm's class, the official release and Hugging Face. Renaming, joining and adding do not change the
function. Only position embeddings may be resampled for another size of images, in the way of the program that wrote the
weights.
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
from torch import Tensor, nn
from torch.nn import functional as F

from edgevit.errors import CheckpointError
from edgevit.network.families.vit.shapes import PATCHES, POOL, REGISTERS
from edgevit.network.weights import State, Weights, first_names

# Replacements in each name, in this order. Blocks of Hugging Face have one of two sets of names: that of files, or that
# of the modules of transformers 5, which is written only with `save_original_format=False`.
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
    (r"\.mlp\.up_proj\.", ".mlp.fc1_x."),  # fc1 without a gate
    (r"\.mlp\.down_proj\.", ".mlp.fc2."),
]
_HUGGING_FACE_TOWER = [  # of CLIP and SigLIP, whose text towers are left out
    (r"^(.*\.)?vision_model\.", ""),
    (r"^embeddings\.class_embedding$", "cls_token"),
    (r"^embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"^embeddings\.position_embedding\.weight$", "pos_embed"),
    (r"^pre_lay(r|er)norm\.", "norm_pre."),  # of CLIP, and of OWL-ViT
    (r"^post_layernorm\.", "norm."),
    (r"^encoder\.layers\.(\d+)\.", r"blocks.\1."),
    (r"\.layer_norm([12])\.", r".norm\1."),
    (r"\.self_attn\.q_proj\.", ".attn.query."),
    (r"\.self_attn\.k_proj\.", ".attn.key."),
    (r"\.self_attn\.v_proj\.", ".attn.value."),
    (r"\.self_attn\.out_proj\.", ".attn.proj."),
    (r"^head\.probe$", POOL),
    (r"^head\.attention\.out_proj\.", "attn_pool.proj."),
    (r"^head\.attention\.", "attn_pool."),
    (r"^head\.layernorm\.", "attn_pool.norm."),
    (r"^head\.mlp\.", "attn_pool.mlp."),
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
_TORCHVISION_PREPROCESSING = {  # settings of torchvision's weights, and of its training recipe
    "mean": list(IMAGENET_DEFAULT_MEAN), "std": list(IMAGENET_DEFAULT_STD), "crop_pct": 0.875,
    "interpolation": "bilinear",
}  # fmt: skip
_OFFICIAL = [  # names of DINOv2 and DINOv3, and those of timm's class of DINOv3 that differ from its ViT
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # chunks, in which blocks keep their numbers
    (r"^storage_tokens$", "reg_token"),
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"\.attn\.q_bias$", ".attn.query.bias"),
    (r"\.attn\.v_bias$", ".attn.value.bias"),
]
_CLASSIFIERS = ("head", "head_dist")
# First parts of names that networks of other classes have, or that have another name in timm.
_ELSEWHERE = ("dist_token", REGISTERS)
_JOINED = {  # rows of one matrix in timm
    "attn.qkv": ("attn.query", "attn.key", "attn.value"),
    "mlp.fc1": ("mlp.gate_proj", "mlp.up_proj"),
}


def named(state: Mapping[str, Tensor]) -> Weights:
    """Rename weights to timm's names, by the program that wrote them."""
    state = _of_network(state)
    rules, notes, origin = _OFFICIAL, list[str](), "timm"
    if ("mask_token" in state or REGISTERS in state) and "blocks.0.ls1.gamma" in state:
        origin = "DINOv2"
    for patches, names in (("projection.weight", _HUGGING_FACE), ("weight", _HUGGING_FACE_DINOV3)):
        if any(name.endswith(f"embeddings.patch_embeddings.{patches}") for name in state):
            rules, origin = names, "transformers"
            notes = ["the weights have Hugging Face's names, and are read as timm's"]
    if any(name.endswith("embeddings.patch_embedding.weight") for name in state):
        rules, origin = _HUGGING_FACE_TOWER, "transformers"
        notes = ["the weights have Hugging Face's names, and are read as timm's"]
    if {"class_token", "conv_proj.weight", "encoder.pos_embedding"} <= state.keys():
        rules, origin = _TORCHVISION, "torchvision"
        notes = ["the weights have torchvision's names, and are read as timm's"]
    renamed = {_renamed(name, rules): value.to(torch.float32) for name, value in state.items()}
    if rules is _HUGGING_FACE_DINOV3 and not any(".mlp.fc1_g." in name for name in renamed):
        renamed = {name.replace(".mlp.fc1_x.", ".mlp.fc1."): value for name, value in renamed.items()}
    if rules is _HUGGING_FACE_TOWER:
        _shape_tower(renamed)
        notes += _tower_classifier(renamed)
    elif rules is not _HUGGING_FACE:
        _without_key_biases(renamed)
    for whole, parts in _JOINED.items():
        _join(renamed, whole, parts)
    if rules is _HUGGING_FACE_TOWER and renamed.pop("visual_projection.weight", None) is not None:
        notes.append("the linear map of CLIP to what images and texts share is left out: features are those before it")
    head, token = renamed.get("head.weight"), renamed.get("cls_token")
    if head is not None and token is not None and head.ndim == 2 and head.shape[1:] == (2 * token.numel(),):
        notes.append(
            "the classifier of the weights reads the class token and the mean of the patches, and timm's reads one of "
            "them: it is left out"
        )
        renamed, head = {name: value for name, value in renamed.items() if not name.startswith("head.")}, None
    usual = _TORCHVISION_PREPROCESSING if origin == "torchvision" else {}
    is_tower = rules is _HUGGING_FACE_TOWER
    return Weights(renamed, tuple(notes), 0 if head is None else len(head), origin, usual, is_tower)


def _of_network(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Remove the prefix of the network from names, if there are also weights of a loss or of other heads."""
    prefixes = [name.removesuffix(PATCHES) for name in state if name.endswith(f".{PATCHES}")]
    if len(prefixes) != 1 or PATCHES in state:
        return state
    others = {name: value for name, value in state.items() if not name.startswith(prefixes[0])}
    return {**others, **{name.removeprefix(prefixes[0]): state[name] for name in state if name not in others}}


def _renamed(name: str, rules: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _join(state: State, whole: str, parts: tuple[str, ...]) -> None:
    """Join the rows of layers that are one in timm, if all of them exist."""
    first = re.compile(rf"(.*\.){re.escape(parts[0])}\.(weight|bias)")
    for match in [m for name in state if (m := first.fullmatch(name))]:
        names = [f"{match[1]}{part}.{match[2]}" for part in parts]
        if all(name in state for name in names):
            state[f"{match[1]}{whole}.{match[2]}"] = torch.cat([state.pop(name) for name in names])


def _shape_tower(state: State) -> None:
    """Give the tokens of an image tower timm's shapes, in place, and split the matrices of its pooling."""
    state |= {
        name: state[name].reshape(1, -1, state[name].shape[-1]) for name in ("cls_token", "pos_embed") if name in state
    }
    for part in ("weight", "bias"):
        if (packed := state.pop(f"attn_pool.in_proj_{part}", None)) is not None:
            rows = len(packed) // 3
            state |= {f"attn_pool.q.{part}": packed[:rows], f"attn_pool.kv.{part}": packed[rows:]}


def _tower_classifier(state: State) -> list[str]:
    """Name the classifier of an image tower as timm does, in place, or remove it with a note if timm has no equal.

    It reads the mean of the patches: a SigLIP's behind the last norm, and a CLIP's before it. Neither uses the pooling.
    """
    names = [name for name in state if name.startswith("classifier.")]
    if names and "cls_token" in state:
        for name in names:
            del state[name]
        return ["the classifier of the weights reads patches before the last norm, and timm's after it: it is left out"]
    if names:
        state |= {name.replace("classifier.", "head."): state.pop(name) for name in names}
        for name in [name for name in state if name.startswith("attn_pool.")]:
            del state[name]
    return []


def _without_key_biases(state: State) -> None:
    """Set the biases of keys of DINOv3, which are missing or masked, to zero."""
    for name in [name for name in state if name.endswith(".attn.qkv.bias_mask")]:
        del state[name]
        query, key, value = state[name.removesuffix("_mask")].chunk(3)
        state[name.removesuffix("_mask")] = torch.cat([query, torch.zeros_like(key), value])
    for name in [name for name in state if name.endswith(".attn.query.bias")]:
        state.setdefault(name.replace(".query.", ".key."), torch.zeros_like(state[name]))


def fitted(weights: Weights, network: Any, name: str, *, resample: bool, trained: Any = None) -> Weights:
    """Convert weights to those of this network as timm does: names of DINOv2, and other numbers of patches.

    Weights that only training needs, such as a mask token, are removed with a note; those of a layer that the network
    could have, but has not, stay, and `fill_network` raises.

    Args:
        name: of the base, for messages.
        resample: whether position embeddings may be resampled, as an option sets the size of images.
        trained: timm's img_size of the weights, if a configuration file states it.

    Raises:
        CheckpointError: they are of another number of patches, and may not be resampled; or of the same number, and
            the number of rows is unknown.
    """
    notes, unused = list(weights.notes), sorted(key for key in weights.state if not _concerns(network, key))
    state = {key: value for key, value in weights.state.items() if key not in unused}
    if unused:
        notes.append(f"left out of the weights, as {name} does not use them: {first_names(unused)}")
    expected = network.state_dict()
    if zeros := [k for k, v in state.items() if k.endswith(".qkv.bias") and k not in expected and not v.any()]:
        state = {key: value for key, value in state.items() if key not in zeros}
        notes.append(f"left out of the weights, as they are zero and {name} has none: {first_names(zeros)}")
    if isinstance(network, VisionTransformer) and _same_patches(state, network):
        if note := _resample(state, network, name, weights.origin, resample=resample, trained=trained):
            notes.append(note)
        if REGISTERS in state and network.reg_token is not None:
            # In timm registers have no position, and that of the class token is added to it.
            first, patches = state["pos_embed"][:, :1], state["pos_embed"][:, 1:]
            state |= {"reg_token": state.pop(REGISTERS), "cls_token": state["cls_token"] + first, "pos_embed": patches}
    return replace(weights, state=state, notes=tuple(notes))


def _concerns(network: Any, key: str) -> bool:
    """Whether the network has the layer of this weight, or would have it with other arguments."""
    leading, _, after = key.partition(".")
    if leading in _CLASSIFIERS:
        return bool(network.num_classes)
    if isinstance(network.norm, nn.Identity) and isinstance(network.fc_norm, nn.Identity):
        # It may end before the last block, as features_only makes it.
        block = after.partition(".")[0]
        if leading in ("norm", "fc_norm") or (leading == "blocks" and not hasattr(network.blocks, block)):
            return False
    return hasattr(network, leading) or leading in _ELSEWHERE


def _same_patches(state: State, network: Any) -> bool:
    """Whether patches have the same size; timm would also resample their embedding, which changes the function."""
    weight, expected = state.get("patch_embed.proj.weight"), network.patch_embed.proj.weight
    return weight is not None and weight.shape[2:] == expected.shape[2:] and min(network.patch_embed.grid_size) > 0


def _resample(state: State, network: Any, name: str, origin: str, *, resample: bool, trained: Any) -> str:
    """Resample position embeddings in place, and describe it; empty: they fit, or their rows are unknown.

    Raises:
        CheckpointError: as by `fitted`.
    """
    positions = state.get("pos_embed")
    if positions is None or network.pos_embed is None or positions.ndim != 3:
        return ""
    # In DINOv2 the class token has a position, and registers have none.
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
                f"{width} of {name}, and neither is stated; write the size of the training to config.json in their "
                f'folder, such as {{"model_args": {{"img_size": [{height * steps[0]}, {width * steps[1]}]}}}}'
            )
    if (rows, columns) == (height, width):
        return ""
    size = rows * steps[0] if rows * steps[0] == columns * steps[1] else (rows * steps[0], columns * steps[1])
    if not resample:
        raise CheckpointError(
            f"the weights do not fit {name}: their position embeddings are of {rows} x {columns} patches, expected "
            f"{height} x {width}; give --model-arg img_size={size} for images as large as they were trained on, or "
            f"another img_size to resample them"
        )
    grid = positions[:, prefix:].reshape(1, rows, columns, -1).permute(0, 3, 1, 2)
    bicubic: dict[str, Any] = {"mode": "bicubic", "align_corners": origin == "torchvision"}
    if origin == "DINOv2" and REGISTERS not in state:
        # As in its release, whose sides are longer by a tenth of a patch.
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
