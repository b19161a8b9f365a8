"""A ViT that puts out its tokens after several of its blocks, for a head that an application has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.copies import bare_copy
from edgevit.network.families import architecture
from edgevit.network.families.vit.tokens import TokenChoice
from edgevit.records.model import TokenOutput

PLACE = "backbone"  # name of the ViT within the module


class Depths(nn.Module):
    """Tokens of a ViT after K of its blocks, each through its last norm: images [B, C, H, W] to [B, K, N, d].

    Class tokens alone are [B, K, d].
    """

    def __init__(self, backbone: Any, depths: Sequence[int], tokens: TokenOutput) -> None:
        """Count `depths` from 1; the last is that of the last block."""
        super().__init__()
        self.backbone, self.depths = backbone, tuple(depths)
        self.choice = TokenChoice(tokens, backbone.num_prefix_tokens)

    @property
    def tokens(self) -> TokenOutput:
        return self.choice.tokens

    def forward(self, images: Tensor) -> Tensor:
        after = self.backbone.forward_intermediates(
            images, [depth - 1 for depth in self.depths], return_prefix_tokens=True, norm=True, output_fmt="NLC",
            intermediates_only=True,
        )  # fmt: skip
        if not self.choice.prefix:
            return torch.stack(after, 1)
        if self.tokens == "patches":
            return torch.stack([patches for patches, _ in after], 1)
        return torch.stack([self.choice(torch.cat([prefix, patches], 1)) for patches, prefix in after], 1)


def tokens_after(model: Any, depths: Sequence[int], tokens: TokenOutput) -> Depths:
    """A copy of a model, without its classifier, that puts out its tokens after these blocks, the last one among them.

    Raises:
        UnsupportedModelError: it has no such tokens.
    """
    if tokens != "patches" and model.cls_token is None:
        text = ",".join(map(str, depths))
        raise UnsupportedModelError(f"{architecture(model)} has no class token; try --output features:patches@{text}")
    backbone: Any = bare_copy(model)
    backbone.reset_classifier(0)
    return Depths(backbone, depths, tokens)
