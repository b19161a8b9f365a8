"""Tokens after several blocks of a ViT."""

from __future__ import annotations

import pytest
import timm
import torch
from small_models import ARGS

from edgevit.errors import UnsupportedModelError
from edgevit.network.families.vit.depths import tokens_after

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tokens", ["class", "patches", "class,patches"])
def test_they_are_those_of_timm_through_the_last_norm(tokens) -> None:
    model = timm.create_model("vit_small_patch16_dinov3", **{**ARGS, "depth": 3}).eval()
    network = tokens_after(model, [1, 3], tokens).eval()
    with torch.inference_mode():
        after = model.forward_intermediates(IMAGES, [0, 2], norm=True, return_prefix_tokens=True, output_fmt="NLC")[1]
        outputs = network(IMAGES)
    for i, (patches, prefix) in enumerate(after):
        both = torch.cat([prefix[:, :1], patches], 1)
        expected = {"class": prefix[:, 0], "patches": patches, "class,patches": both}[tokens]
        torch.testing.assert_close(outputs[:, i], expected)
    assert not any(name.startswith("backbone.head") for name, _ in network.named_parameters())


def test_a_base_without_a_class_token_is_one_line() -> None:
    model = timm.create_model("vit_base_patch16_siglip_224", **{**ARGS, "depth": 3})
    with pytest.raises(UnsupportedModelError, match="has no class token; try --output features:patches@1,3"):
        tokens_after(model, [1, 3], "class,patches")
