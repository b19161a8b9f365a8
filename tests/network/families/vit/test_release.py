"""DINOv2 as its release has it, inside other networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.families.vit.release import adopted, is_dinov2_release

IMAGES = torch.rand(2, 3, 56, 56, generator=torch.Generator().manual_seed(0))


class DinoVisionTransformer(nn.Module):
    """DINOv2 as its release calls it: timm's blocks under its names, with positions times `scale`."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        arguments = {"img_size": 56, "embed_dim": 64, "depth": 3, "num_heads": 2, "num_classes": 0}
        made = timm.create_model("vit_small_patch14_dinov2", **arguments)
        for parameter in made.parameters():
            nn.init.normal_(parameter, 0.1, 0.2)
        self.patch_embed, self.blocks, self.norm = made.patch_embed, nn.ModuleList(made.blocks), made.norm
        self.cls_token, self.pos_embed = made.cls_token, made.pos_embed
        self.mask_token, self.num_heads, self.scale = nn.Parameter(torch.zeros(1, 64)), 2, scale

    def get_intermediate_layers(
        self, x: Tensor, n: Any = 1, reshape: bool = False, return_class_token: bool = False, norm: bool = True
    ) -> Any:
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.patch_embed(x)], 1) + self.scale * self.pos_embed
        chosen: Sequence[int] = range(len(self.blocks) - n, len(self.blocks)) if isinstance(n, int) else n
        found = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in chosen:
                found.append(self.norm(x) if norm else x)
        patches = [each[:, 1:].mT.reshape(len(x), 64, 4, 4) if reshape else each[:, 1:] for each in found]
        return (
            tuple(zip(patches, (each[:, 0] for each in found), strict=True)) if return_class_token else tuple(patches)
        )


@pytest.mark.parametrize("options", [{}, {"n": [0, 2], "norm": False}, {"n": 2, "reshape": True}], ids=str)
@pytest.mark.parametrize("with_class", [False, True])
def test_the_class_of_the_release_puts_out_the_same_tokens(options: dict[str, Any], with_class: bool) -> None:
    release = DinoVisionTransformer().eval()
    assert is_dinov2_release(release)
    vit = adopted(release)
    with torch.no_grad():
        expected, found = (
            each.get_intermediate_layers(IMAGES, return_class_token=with_class, **options) for each in (release, vit)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(vit(IMAGES), release.get_intermediate_layers(IMAGES, 1, False, True)[0][1])


def test_a_class_of_its_name_that_computes_something_else_is_refused() -> None:
    release = DinoVisionTransformer(scale=2.0)
    with pytest.raises(UnsupportedModelError, match="computes something else than the network of this name"):
        adopted(release)
    assert release.training and not is_dinov2_release(nn.Linear(3, 3))
    del release.pos_embed  # as DINOv3's class of this name, which has rotary embeddings
    assert not is_dinov2_release(release)
