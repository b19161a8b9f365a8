"""How ViTs and their weights come from other programs, and go to them (`families.Interchange`)."""

from __future__ import annotations

from typing import Any

from timm.models.vision_transformer import VisionTransformer

from edgevit.network.families.vit.names import fitted as fitted
from edgevit.network.families.vit.names import named as named
from edgevit.network.families.vit.parts import attn_of
from edgevit.network.families.vit.plain import plain_loader as plain_loader
from edgevit.network.families.vit.rotary import WithoutPositions
from edgevit.network.families.vit.rotary import adopted as adopted
from edgevit.network.families.vit.shapes import guessed_arguments as guessed_arguments
from edgevit.network.families.vit.shapes import guessed_name as guessed_name
from edgevit.network.weights import TimmArguments


def stated_arguments(module: Any) -> TimmArguments:
    arguments: TimmArguments = {"img_size": list(module.patch_embed.img_size)}
    if isinstance(module, VisionTransformer) and not isinstance(module, WithoutPositions):
        arguments |= {"no_embed_class": module.no_embed_class, "global_pool": module.global_pool}
        attention = next((attn for block in module.blocks if (attn := attn_of(block)) is not None), None)
        arguments |= {} if attention is None else {"num_heads": attention.num_heads}
    return arguments


def timm_arguments(module: Any, depth: int, embed: int) -> TimmArguments:
    changed = {} if len(module.blocks) == depth else {"depth": len(module.blocks)}
    if module.embed_dim != embed:
        # timm requires a multiple of the number of heads; the heads of blocks are set by `resize`.
        changed |= {"embed_dim": module.embed_dim, "num_heads": 1}
    return changed
