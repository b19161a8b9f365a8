"""The arguments of `timm.create_model` that edgevit passes on, whether a person or a model folder gives them.

They say what a network is made of. Others, such as `checkpoint_path`, would have timm open files or connections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any

from edgevit.errors import OptionError

_Check = Callable[[Any], bool]
_MOST_PATCHES = 2**16  # attention looks at all pairs
_LARGEST_SIDE = 2**14
_MOST_STAGES = 16


def _whole_number(least: int, most: int) -> tuple[str, _Check]:
    return f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most


def _number(least: float, most: float) -> tuple[str, _Check]:
    return (
        f"a number from {least:g} to {most:g}",
        lambda value: type(value) in (int, float) and isfinite(value) and least <= value <= most,
    )


def _side(value: Any) -> bool:
    sides = list(value) if isinstance(value, (list, tuple)) else [value]
    return len(sides) in (1, 2) and all(type(side) is int and 1 <= side <= _LARGEST_SIDE for side in sides)


def _or_none(kind: tuple[str, _Check]) -> tuple[str, _Check]:
    return f"{kind[0]}, or None", lambda value: value is None or kind[1](value)


def _by_stage(kind: tuple[str, _Check]) -> tuple[str, _Check]:
    def fits(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and 1 <= len(value) <= _MOST_STAGES and all(map(kind[1], value))

    return f"{kind[0]}, for each stage", fits


def _either(one: tuple[str, _Check], other: tuple[str, _Check]) -> tuple[str, _Check]:
    return f"{one[0]}, or {other[0]}", lambda value: one[1](value) or other[1](value)


_SIDES: tuple[str, _Check] = f"a whole number of pixels up to {_LARGEST_SIDE}, or two as (height, width)", _side
_FLAG: tuple[str, _Check] = "true or false", lambda value: type(value) is bool
_NAME: tuple[str, _Check] = (
    "a name",
    lambda value: isinstance(value, str) and re.fullmatch(r"\w{0,40}", value) is not None,
)
_SHARE = _number(0, 1)
HEADS, WINDOW = _whole_number(1, 4096), _whole_number(1, 2**10)

# What timm's VisionTransformer, VisionTransformerDistilled, Eva and SwinTransformer are made with.
KINDS: dict[str, tuple[str, _Check]] = {
    **dict.fromkeys(("img_size", "patch_size"), _SIDES),
    "in_chans": _whole_number(1, 1024),
    "num_classes": _whole_number(0, 2**31 - 1),
    "embed_dim": _whole_number(1, 2**16),
    "depth": _whole_number(1, 1024),
    "depths": _by_stage(_whole_number(0, 1024)),
    "num_heads": _either(HEADS, _by_stage(HEADS)),
    "window_size": _either(WINDOW, _by_stage(_either(WINDOW, _SIDES))),
    **dict.fromkeys(("reg_tokens", "num_reg_tokens"), _whole_number(0, 4096)),
    "swiglu_align_to": _whole_number(0, 4096),
    "mlp_ratio": _number(2**-10, 2**10),
    "init_values": _or_none(_number(-1e6, 1e6)),
    **dict.fromkeys(
        ("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"), _SHARE
    ),
    **dict.fromkeys(
        (
            "qkv_bias", "qkv_fused", "qk_norm", "scale_attn_norm", "scale_mlp_norm", "proj_bias", "class_token",
            "no_embed_class", "pre_norm", "final_norm", "pool_include_prefix", "dynamic_img_size", "dynamic_img_pad",
            "fix_init", "swiglu_mlp", "scale_mlp", "scale_attn_inner", "attn_only_layer_scale", "use_abs_pos_emb",
            "use_rot_pos_emb", "rope_rotate_half", "use_post_norm", "use_pre_transformer_norm",
            "always_partition", "strict_img_size",
        ),
        _FLAG,
    ),
    **dict.fromkeys(("fc_norm", "use_fc_norm", "use_post_transformer_norm"), _or_none(_FLAG)),
    **dict.fromkeys(("global_pool", "weight_init", "attn_type", "rope_grid_indexing"), _NAME),
    **dict.fromkeys(
        ("pos_embed", "rope_type", "norm_layer", "act_layer", "embed_norm_layer", "mlp_layer", "attn_layer"),
        _or_none(_NAME),
    ),
    # Of BERT, which edgevit adds to timm's networks. Ids up to 2**24 are exact in fp32.
    **dict.fromkeys(("vocab_size", "max_positions", "token_types", "tokens"), _whole_number(1, 2**24)),
    "pad_token": _whole_number(0, 2**24),
    "norm_eps": _number(0, 1),
    "rope_grid_offset": _number(-1e6, 1e6),
    "rope_temperature": _number(1e-6, 1e9),
    **dict.fromkeys(("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords"), _or_none(_number(0, 1e6))),
}  # fmt: skip


def check_arguments(arguments: Mapping[str, Any], prefix: str = "--model-arg ") -> None:
    """Refuse arguments that are not of a network, or that no network can have; `prefix` stands before their names.

    Raises:
        OptionError: there is one.
    """
    for name, value in arguments.items():
        if name not in KINDS:
            near = get_close_matches(name, KINDS, n=1, cutoff=0.75)
            hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(KINDS)}"
            raise OptionError(f"{prefix}{name} is no argument that edgevit passes to timm; {hint}")
        expected, fits = KINDS[name]
        if not fits(value):
            raise OptionError(f"{prefix}{name}={_short(value)} is not possible; give {expected}")
    sides, steps = (_pair(arguments.get(name, usual)) for name, usual in (("img_size", 224), ("patch_size", 16)))
    patches = (sides[0] // steps[0]) * (sides[1] // steps[1])
    if "img_size" in arguments and patches > _MOST_PATCHES:
        raise OptionError(
            f"{prefix}img_size={_short(arguments['img_size'])} makes {patches} patches of {steps[0]} x {steps[1]} "
            f"pixels, expected at most {_MOST_PATCHES}; give smaller images or larger patches"
        )


def _pair(value: Any) -> tuple[int, int]:
    sides = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return sides[0], sides[-1]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
