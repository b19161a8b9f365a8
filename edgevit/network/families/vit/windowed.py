"""RF-DETR's backbone as a VisionTransformer: a DINOv2 whose blocks, but for some, attend within windows of the image.

Each window has a class token of its own. Tokens are in the order of windows, so that a block without windows attends to
all of them as they are. Both programs that have it are supported, transformers and the package of its authors.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch
from torch import Tensor

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import BlockDims
from edgevit.network.copies import without_values
from edgevit.network.families.vit.backbones import FeatureMaps, check_same, made, set_depths, take_weights
from edgevit.network.families.vit.slim import SlimAttention

_NAMES = ("RfDetrDinov2Backbone", "WindowedDinov2WithRegistersBackbone")


class WindowedBackbone(FeatureMaps):
    """A VisionTransformer that puts out the feature maps [B, d, h, w] of RF-DETR's backbone."""

    side: int  # number of windows in a row, and in a column
    is_plain: bool  # whether it gives a tuple with the maps, and not transformers' class of the output

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        """Compute the maps of images [B, 3, H, W]."""
        outputs = super().forward(pixel_values)
        return (outputs.feature_maps,) if self.is_plain else outputs

    def _pos_embed(self, x: Tensor) -> Any:
        """The tokens [B, windows (1 + n), d] of patches [B, N, d]: of each window the class token and its n patches."""
        side, (rows, columns) = self.side, self.patch_embed.grid_size
        placed = self.pos_embed[:, 1:] + x
        of_class = (self.cls_token + self.pos_embed[:, :1]).expand(x.shape[0], side * side, 1, -1)
        windows = placed.reshape(x.shape[0], side, rows // side, side, columns // side, -1).transpose(2, 3)
        tokens = torch.cat([of_class, windows.reshape(x.shape[0], side * side, -1, placed.shape[-1])], 2)
        return self.pos_drop(tokens.flatten(1, 2))

    def as_map(self, tokens: Tensor) -> Tensor:
        side, (rows, columns) = self.side, self.patch_embed.grid_size
        patches = tokens.reshape(tokens.shape[0], side * side, -1, tokens.shape[-1])[:, :, 1:]
        windows = patches.reshape(tokens.shape[0], side, side, rows // side, columns // side, -1)
        return windows.transpose(2, 3).reshape(tokens.shape[0], rows, columns, -1).permute(0, 3, 1, 2)


def is_windowed(module: Any) -> bool:
    """Whether a module is one of these, without registers, with FFNs of two layers, and puts out maps."""
    if type(module).__name__ not in _NAMES or not hasattr(module, "config"):
        return False
    config = module.config
    plain = not getattr(config, "num_register_tokens", 0) and not config.use_swiglu_ffn
    return plain and config.hidden_act == "gelu" and config.reshape_hidden_states


def adopted(module: Any) -> Any:
    """Convert such a module to a VisionTransformer of the same maps, for images of the size of its positions.

    Blocks after the last map are left out.

    Raises:
        UnsupportedModelError: the size of its images does not divide into windows, or it computes something else.
    """
    config, name = module.config, type(module).__name__
    side, patches = config.num_windows, module.embeddings.position_embeddings.shape[1] - 1
    size, step = isqrt(patches), config.patch_size
    if size * size != patches or size % side:
        raise UnsupportedModelError(
            f"this {name} has {patches} patches, expected as many rows as columns, a multiple of {side} windows"
        )
    depth = max(i for i, stage in enumerate(module.stage_names) if stage in module.out_features)
    with without_values():
        vit = made(WindowedBackbone, config, size * step, depth=depth)
        for number in config.window_block_indexes if side > 1 else ():
            if number < depth:
                _divide(vit.blocks[number], side * side)
    take_weights(vit, module)
    set_depths(vit, module)
    vit.side, vit.num_prefix_tokens, vit.is_plain = side, side * side, not config.return_dict
    check_same(module, vit, lambda network, image: _maps(network(image)))
    vit.train(module.training)
    return vit


def _divide(block: Any, windows: int) -> None:
    """Give a block of timm an attention of the same sizes within windows."""
    attn = block.attn
    width = attn.head_dim
    sizes = BlockDims(attn.num_heads, width, width, 0, windows=windows)
    block.attn = SlimAttention(attn.qkv.in_features, sizes, qkv_bias=attn.qkv.bias is not None)


def _maps(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, tuple) else outputs.feature_maps
