"""Guess timm's arguments for a ViT, and the name of a similar network, from the shapes of weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import isqrt
from typing import Any

from timm.models.deit import VisionTransformerDistilled
from torch import Tensor

from edgevit.errors import CheckpointError
from edgevit.network.families.vit.rotary import WithoutPositions
from edgevit.network.weights import TimmArguments, mlp_ratio

_HEAD_WIDTH = 64  # width of a head in nearly every ViT
PATCHES = "patch_embed.proj.weight"
POOL = "attn_pool.latent"
REGISTERS = "register_tokens"  # name of DINOv2's registers; its positions count the class token and no register
# Timm's name of the size, by embedding width.
_SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge", 1536: "giant"}

_CLIP = {  # timm's name of the network, by embedding width and size of a patch
    (768, 32): "vit_base_patch32_clip_224", (1024, 14): "vit_large_patch14_clip_224",
    (1280, 14): "vit_huge_patch14_clip_224",
}  # fmt: skip
_SIGLIP = {  # timm's name of the network, by embedding width and size of a patch
    (768, 32): "vit_base_patch32_siglip_256", (1024, 16): "vit_large_patch16_siglip_256",
    (1152, 14): "vit_so400m_patch14_siglip_224", (1152, 16): "vit_so400m_patch16_siglip_256",
    (1536, 16): "vit_giantopt_patch16_siglip_256",
}  # fmt: skip


def shape_arguments(state: Mapping[str, Tensor], *, no_embed_class: bool = False) -> TimmArguments:
    """Read timm's arguments from the shapes of weights under timm's names; the size of images only if it is square.

    Args:
        no_embed_class: whether positions are of patches alone, where their number allows both.
    """
    patches = state.get(PATCHES)
    if patches is None or patches.ndim != 4:
        return {}
    embed, channels, height, width = patches.shape
    numbers = {int(match[1]) for name in state if (match := re.match(r"blocks\.(\d+)\.", name))}
    arguments: TimmArguments = {
        "patch_size": height if height == width else (height, width),
        "in_chans": channels,
        "embed_dim": embed,
        "depth": len(numbers),
        "qkv_bias": _any(state, "attn.qkv.bias"),
        "proj_bias": _any(state, "attn.proj.bias"),
        "qk_norm": _any(state, "attn.q_norm.weight"),
        "init_values": 1e-5 if _any(state, "ls1.gamma") else None,
        "class_token": "cls_token" in state,
        "pre_norm": "norm_pre.weight" in state,
        "reg_tokens": _registers(state),
        "pos_embed": "learn" if "pos_embed" in state else "none",
    }
    hidden = state.get("blocks.0.mlp.fc2.weight")
    if hidden is not None and hidden.ndim == 2:
        packed = state.get("blocks.0.mlp.fc1.weight")
        rows = hidden.shape[1] if packed is None else len(packed)  # with those of a gate
        arguments["mlp_ratio"] = mlp_ratio(rows, embed)
    if "fc_norm.weight" in state and "norm.weight" not in state:
        arguments["global_pool"] = "avg"
    elif "norm.weight" in state and "fc_norm.weight" not in state:
        arguments["fc_norm"] = False
    if POOL in state:
        arguments["global_pool"] = "map"
    elif not arguments["class_token"]:
        arguments |= {"global_pool": "avg", "fc_norm": "fc_norm.weight" in state}
    arguments |= _of_positions(state, arguments, (height, width), no_embed_class=no_embed_class)
    return arguments


def _any(state: Mapping[str, Tensor], end: str) -> bool:
    return any(name.startswith("blocks.") and name.endswith(f".{end}") for name in state)


def _registers(state: Mapping[str, Tensor]) -> int:
    tokens = state.get(REGISTERS, state.get("reg_token"))
    return 0 if tokens is None or tokens.ndim != 3 else tokens.shape[1]


def _of_positions(
    state: Mapping[str, Tensor], arguments: Mapping[str, Any], patch: tuple[int, int], *, no_embed_class: bool
) -> TimmArguments:
    """The size of images, and whether positions are of patches alone."""
    positions = state.get("pos_embed")
    if positions is None or positions.ndim != 3:
        return {}
    count, tokens = positions.shape[1], int(arguments["class_token"]) + int("dist_token" in state)
    if REGISTERS in state:
        readings = [(True, count - tokens)]
    else:
        readings = [(False, count - tokens - arguments["reg_tokens"]), (True, count)]
        readings.sort(key=lambda reading: reading[0] != no_embed_class)
    for alone, patches in readings:
        side = isqrt(max(patches, 0))
        if side and side * side == patches:
            sides = (side * patch[0], side * patch[1])
            size = {"img_size": sides[0] if sides[0] == sides[1] else sides}
            return size if alone and not tokens + arguments["reg_tokens"] else {**size, "no_embed_class": alone}
    return {}


def guessed_arguments(
    state: Mapping[str, Tensor], network: Any, network_state: Mapping[str, Tensor], stated: Collection[str]
) -> tuple[TimmArguments, str | None]:
    """timm's arguments that give a network weights of these shapes, and a note if the number of heads is assumed.

    Args:
        network_state: the network's weights; only their shapes are read.
        stated: arguments that are known otherwise, and are not guessed.

    Raises:
        CheckpointError: the heads cannot be guessed.
    """
    if isinstance(network, VisionTransformerDistilled) != ("dist_token" in state):
        return {}, None  # another class of timm's
    alone = bool(network.no_embed_class)
    now, then = shape_arguments(network_state, no_embed_class=alone), shape_arguments(state, no_embed_class=alone)
    differing = {name: value for name, value in then.items() if now.get(name) != value}
    if differing.get("global_pool") == "avg" and "fc_norm" in then:
        differing["fc_norm"] = then["fc_norm"]  # which timm would otherwise have for this pooling
    elif differing.get("fc_norm") is False and "fc_norm.weight" not in network_state:
        del differing["fc_norm"]
    if isinstance(network, WithoutPositions):
        differing = _of_eva(differing)
    guessed = {name: value for name, value in differing.items() if name not in stated}
    if "embed_dim" not in guessed or "num_heads" in stated:
        return guessed, None
    width = guessed["embed_dim"]
    if width % _HEAD_WIDTH:
        raise CheckpointError(
            f"no shape of the weights tells their number of heads, and {width} channels are no multiple of "
            f"{_HEAD_WIDTH}; give --model-arg num_heads=N"
        )
    guessed["num_heads"] = width // _HEAD_WIDTH
    return guessed, (
        f"no shape tells num_heads={guessed['num_heads']}, which is assumed as {_HEAD_WIDTH} channels each; "
        "--model-arg num_heads=N gives another number"
    )


def _of_eva(arguments: Mapping[str, Any]) -> TimmArguments:
    """The arguments that timm's Eva has, too, under its names."""
    names = {"patch_size": "patch_size", "embed_dim": "embed_dim", "depth": "depth", "reg_tokens": "num_reg_tokens"}
    return {names[name]: value for name, value in arguments.items() if name in names}


def guessed_name(state: Mapping[str, Tensor]) -> str | None:
    """timm's name of a network similar to these weights, which have timm's names; None: they are not of a ViT."""
    arguments = shape_arguments(state)
    if not arguments or not arguments["depth"]:
        return None
    nearest = min(_SIZES, key=lambda width: abs(width - arguments["embed_dim"]))
    size, patch = _SIZES[nearest], arguments["patch_size"]
    if arguments["pos_embed"] == "none":
        return f"vit_{size if size in ('small', 'base', 'large') else 'base'}_patch16_dinov3"
    if "dist_token" in state:
        return f"deit_{size if size in ('tiny', 'small', 'base') else 'base'}_distilled_patch16_224"
    if POOL in state:
        return _SIGLIP.get((arguments["embed_dim"], patch), "vit_base_patch16_siglip_224")
    if arguments["init_values"] is not None and patch == 14:
        registers = "_reg4" if arguments["reg_tokens"] else ""
        return f"vit_{size if size in ('small', 'base', 'large', 'giant') else 'base'}_patch14{registers}_dinov2"
    if arguments["pre_norm"]:
        return _CLIP.get((arguments["embed_dim"], patch), "vit_base_patch16_clip_224")
    if size in ("huge", "giant"):
        return f"vit_{size}_patch14_224"
    return f"vit_{size}_patch32_224" if patch == 32 and size != "tiny" else f"vit_{size}_patch16_224"
