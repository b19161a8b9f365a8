"""DINOv3 as timm's VisionTransformer: every attention rotates queries and keys of patches by their position.

In timm these networks are `Eva`. `adopted` converts them to the VisionTransformer of the same function, for images of
one size, so that the functions of the family apply. Sines and cosines are constants of each attention, computed at its
creation, not weights. Changes of coordinates during training (shift, jitter, rescale) are omitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import LayerScale
from timm.models.eva import Eva, EvaAttention, EvaBlock
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from edgevit.network.anatomy import BlockDims
from edgevit.network.copies import without_values
from edgevit.network.families.vit.slim import SlimAttention

# Modules of both classes; the others are created.
_OUTSIDE = (
    "cls_token", "reg_token", "norm_pre", "norm", "fc_norm", "head_drop", "head", "pretrained_cfg", "default_cfg",
)  # fmt: skip


@dataclass(frozen=True)
class Rotation:
    """The rotation of queries and keys of patches by their position; tokens before them are not rotated."""

    grid: tuple[int, int]  # rows and columns of patches
    prefix: int  # number of tokens before the patches
    temperature: float  # base of the periods: its powers with exponents in [0, 1), in half sides of the image

    def table(self, width: int) -> Tensor:
        """Cosines, and sines with the sign of `RotaryAttention.placed`, for heads of this width: [2, N, width].

        A quarter of the frequencies is for rows and a quarter for columns; the second half repeats the first.
        """
        centres = [torch.arange(0.5, side, device="cpu") / side * 2 - 1 for side in self.grid]
        places = torch.cartesian_prod(*centres)  # [patches, 2]
        periods = self.temperature ** (torch.arange(width // 4, device="cpu") * 4 / width)
        angles = (2 * math.pi * places.unsqueeze(-1) / periods).flatten(1)  # [patches, width / 2]
        angles = torch.cat([angles.new_zeros(self.prefix, angles.shape[1]), angles])
        cos, sin = angles.cos(), angles.sin()
        return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)])


class RotaryAttention(SlimAttention):
    """An attention that rotates queries and keys by position, in pairs of dimensions i and i + q / 2."""

    table: Tensor

    def __init__(self, rotation: Rotation, dim: int, dims: BlockDims, **biases: bool) -> None:
        super().__init__(dim, dims, **biases)
        self.rotation = rotation
        self.register_buffer("table", rotation.table(self.qk_dim), persistent=False)

    def placed(self, part: Tensor) -> Tensor:
        cos, sin = self.table
        first, second = part.chunk(2, -1)
        turned: Tensor = part * cos + torch.cat([second, first], -1) * sin
        return turned.to(part.dtype)


class WithoutPositions(VisionTransformer):  # type: ignore[misc]
    """A VisionTransformer without position embeddings; timm 1.0.25 loses the class token without them."""

    def _pos_embed(self, x: Tensor) -> Any:
        before = [t.expand(x.shape[0], -1, -1) for t in (self.cls_token, self.reg_token) if t is not None]
        return self.pos_drop(torch.cat([*before, x], dim=1))


def reason_against(model: Eva) -> str | None:
    """The reason why an Eva is not a DINOv3, the only supported network with rotary embeddings; None: it is one."""
    rope = model.rope
    usual = {"normalize_coords": "separate", "grid_offset": 0.0, "grid_indexing": "ij", "rotate_half": True}
    if type(rope).__name__ != "RotaryEmbeddingDinoV3":
        return f"its positions are {type(rope).__name__}"
    if differing := [f"{name}={getattr(rope, name)}" for name, value in usual.items() if getattr(rope, name) != value]:
        return f"its rotary embeddings have {differing[0]}"
    for has, reason in (
        (model.pos_embed is not None, "it has learned positions, too"),
        (model.attn_pool is not None, "its head pools by attention"),
        (model.patch_drop is not None, "it leaves out patches in training"),
        (model.patch_embed.dynamic_img_pad, "it pads images"),
    ):
        if has:
            return reason
    for block in model.blocks:
        attn = block.attn
        if type(block) is not EvaBlock or type(attn) is not EvaAttention or attn.qkv is None:
            return f"its blocks are {type(block).__name__} with {type(attn).__name__}, and not all with one qkv layer"
        if not all(isinstance(norm, nn.Identity) for norm in (attn.q_norm, attn.norm)) or getattr(attn, "gate", None):
            return "its attention has a norm or a gate"
        if not attn.rotate_half:
            return "its attention rotates neighbours, not the halves of a head"
    return None


def adopted(model: Any, kind: type[WithoutPositions] = WithoutPositions) -> Any:
    """Convert timm's DINOv3 to the VisionTransformer of the same function; return other models unchanged.

    Args:
        kind: the class of the VisionTransformer.
    """
    if not isinstance(model, Eva) or reason_against(model) is not None:
        return model
    patch = model.patch_embed
    rotation = Rotation(patch.grid_size, model.num_prefix_tokens, model.rope.temperature)
    with without_values():
        vit: Any = kind(
            img_size=patch.img_size, patch_size=patch.patch_size, num_classes=model.num_classes,
            global_pool=model.global_pool, embed_dim=model.embed_dim, depth=0, class_token=model.cls_token is not None,
            reg_tokens=0 if model.reg_token is None else model.reg_token.shape[1], pos_embed="none",
        )  # fmt: skip
    for name in _OUTSIDE:
        if hasattr(model, name):
            setattr(vit, name, getattr(model, name))
    vit.patch_embed.proj, vit.pos_drop = patch.proj, model.pos_drop
    vit.blocks = nn.Sequential(*(_block(block, rotation) for block in model.blocks))
    return vit.train(model.training)


def _block(block: Any, rotation: Rotation) -> Any:
    attn, dim = block.attn, block.attn.proj.out_features
    with without_values():
        converted: Any = TimmBlock(dim, 1)
        width = attn.qkv.out_features // (3 * attn.num_heads)
        converted.attn = RotaryAttention(rotation, dim, BlockDims(attn.num_heads, width, width, 0))
    converted.attn.qkv, converted.attn.proj = attn.qkv, attn.proj
    converted.attn.attn_drop, converted.attn.proj_drop = attn.attn_drop, attn.proj_drop
    if attn.q_bias is not None:  # keys have no bias
        attn.qkv.bias = nn.Parameter(torch.cat([attn.q_bias, torch.zeros_like(attn.q_bias), attn.v_bias]).detach())
    for name in ("norm1", "norm2", "mlp", "drop_path1", "drop_path2"):
        setattr(converted, name, getattr(block, name))
    for name, gamma in (("ls1", block.gamma_1), ("ls2", block.gamma_2)):
        if gamma is not None:
            with without_values():
                setattr(converted, name, LayerScale(dim))
            getattr(converted, name).gamma = gamma
    return converted.train(block.training)
