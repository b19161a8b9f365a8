"""Tokens after several blocks of a ViT."""

from __future__ import annotations

import pytest
import timm
import torch
from small_models import ARGS

from edgevit.errors import UnsupportedModelError
from edgevit.network.families.vit.depths import tokens_after

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tokens", ["patches", "class,patches"])
def test_they_are_those_of_timm_through_the_last_norm(tokens) -> None:
    model = timm.create_model("vit_small_patch16_dinov3", **{**ARGS, "depth": 3}).eval()
    network = tokens_after(model, [1, 3], tokens).eval()
    with torch.inference_mode():
        after = model.forward_intermediates(IMAGES, [0, 2], norm=True, return_prefix_tokens=True, output_fmt="NLC")[1]
        outputs = network(IMAGES)
    for i, (patches, prefix) in enumerate(after):
        expected = patches if tokens == "patches" else torch.cat([prefix[:, :1], patches], 1)
        torch.testing.assert_close(outputs[:, i], expected)
    assert not any(name.startswith("backbone.head") for name, _ in network.named_parameters())


def test_what_it_does_not_have_is_one_line() -> None:
    model = timm.create_model("vit_base_patch16_siglip_224", **{**ARGS, "depth": 3})
    for depths, tokens, message in (
        ([1, 9], "patches", "has 3; try 3 for the last"),
        ([1, 2], "patches", "those after 2 would compute nothing; add 3, or give a base of 2 blocks"),
        ([1, 3], "class,patches", "has no class token; try --output features:patches@1,3"),
    ):
        with pytest.raises(UnsupportedModelError, match=message):
            tokens_after(model, depths, tokens)  # type: ignore[arg-type]
