"""A ViT that puts out its tokens after several of its blocks, for a head that an application has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.copies import bare_copy
from edgevit.network.families import architecture
from edgevit.records.model import TokenOutput

PLACE = "backbone"  # name of the ViT within the module


class Depths(nn.Module):
    """The tokens of a ViT after K of its blocks, each through its last norm: images [B, C, H, W] to [B, K, N, d]."""

    def __init__(self, backbone: Any, depths: Sequence[int], tokens: TokenOutput) -> None:
        """Count `depths` from 1; the last is that of the last block. `tokens` are patches, or class and patches."""
        super().__init__()
        self.backbone, self.depths, self.tokens = backbone, tuple(depths), tokens

    def forward(self, images: Tensor) -> Tensor:
        after = self.backbone.forward_intermediates(
            images, [depth - 1 for depth in self.depths], return_prefix_tokens=True, norm=True, output_fmt="NLC",
            intermediates_only=True,
        )  # fmt: skip
        if not self.backbone.num_prefix_tokens:
            return torch.stack(after, 1)
        if self.tokens == "patches":
            return torch.stack([patches for patches, _ in after], 1)
        return torch.stack([torch.cat([prefix[:, :1], patches], 1) for patches, prefix in after], 1)


def tokens_after(model: Any, depths: Sequence[int], tokens: TokenOutput) -> Depths:
    """A copy of a model, without its classifier, that puts out its tokens after these blocks.

    Raises:
        UnsupportedModelError: it has no such block, or blocks after the last of them, or no such tokens.
    """
    name, blocks, text = architecture(model), len(model.blocks), ",".join(map(str, depths))
    if depths[-1] > blocks:
        raise UnsupportedModelError(f"features after blocks {text}: {name} has {blocks}; try {blocks} for the last")
    if depths[-1] < blocks:
        raise UnsupportedModelError(
            f"features after blocks {text}: {name} has {blocks}, and those after {depths[-1]} would compute nothing; "
            f"add {blocks}, or give a base of {depths[-1]} blocks"
        )
    if tokens != "patches" and model.cls_token is None:
        raise UnsupportedModelError(f"{name} has no class token; try --output features:patches@{text}")
    backbone: Any = bare_copy(model)
    backbone.reset_classifier(0)
    return Depths(backbone, depths, tokens)
