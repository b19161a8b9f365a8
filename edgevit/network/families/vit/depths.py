"""A ViT that puts out its tokens after several of its blocks, for a head that an application has, or a linear one."""

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

    Class tokens alone are [B, K, d], and class token and mean of the patches [B, K, 2 d]. A linear head that reads all
    of these side by side gives logits [B, C].
    """

    head: nn.Linear | None

    def __init__(self, backbone: Any, depths: Sequence[int], tokens: TokenOutput) -> None:
        """Count `depths` from 1; the last is that of the last block."""
        super().__init__()
        self.backbone, self.depths = backbone, tuple(depths)
        self.choice = TokenChoice(tokens, backbone.num_prefix_tokens)
        self.head = None

    @property
    def tokens(self) -> TokenOutput:
        return self.choice.tokens

    def make_head(self, classes: int) -> None:
        """Add a linear head with random weights, or replace it."""
        width = len(self.depths) * self.choice.joined * self.backbone.num_features
        self.head = nn.Linear(width, classes).to(next(self.backbone.parameters()))

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.read(images)
        return outputs if self.head is None else self.head(outputs.flatten(1))

    def read(self, images: Tensor) -> Tensor:
        """The chosen tokens after each of the blocks."""
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
    backbone.attn_pool = None
    return Depths(backbone, depths, tokens)
