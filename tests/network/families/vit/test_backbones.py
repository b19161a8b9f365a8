"""DINOv2 as transformers and its release have it, inside other networks."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from small_models import with_embedding
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.families.vit.backbones import adopted, is_backbone
from edgevit.network.folder import load, save
from edgevit.network.model import Model, derived_spec
from edgevit.network.opening import open_network

IMAGES = torch.rand(2, 3, 56, 56, generator=torch.Generator().manual_seed(0))
DEPTH_ANYTHING = """
import torch
from torch import nn
from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        backbone = Dinov2Config(
            hidden_size=64, num_hidden_layers=4, num_attention_heads=2, image_size=84,
            out_features=["stage1", "stage2", "stage4"], reshape_hidden_states=False, apply_layernorm=True,
        )
        self.net = DepthAnythingForDepthEstimation(DepthAnythingConfig(
            backbone_config=backbone, reassemble_hidden_size=64, reassemble_factors=[4, 2, 1],
            neck_hidden_sizes=[8, 8, 16], fusion_hidden_size=8, head_hidden_size=4,
        ))

    def forward(self, images):
        return self.net(pixel_values=images).predicted_depth[:, None]

def build(size=56):
    torch.manual_seed(0)
    module = Depth().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.1, 0.1)
    backbone = module.net.backbone
    tokens = torch.zeros(1, (size // 14) ** 2 + 1, backbone.config.hidden_size)
    positions = backbone.embeddings.interpolate_pos_encoding(tokens, size, size).detach()
    backbone.embeddings.position_embeddings, backbone.config.image_size = nn.Parameter(positions), size
    return module
"""


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


@pytest.mark.parametrize("reshapes", [False, True])
@pytest.mark.parametrize("normalises", [False, True])
def test_transformers_backbone_puts_out_the_same_maps(reshapes: bool, normalises: bool) -> None:
    from transformers import Dinov2Backbone, Dinov2Config

    torch.manual_seed(0)
    backbone = Dinov2Backbone(Dinov2Config(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=2, image_size=56, layer_norm_eps=1e-3,
        out_features=["stem", "stage2", "stage3"], reshape_hidden_states=reshapes, apply_layernorm=normalises,
    )).eval()  # fmt: skip
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, 0.1, 0.2)
    assert is_backbone(backbone)
    vit = adopted(backbone)
    with torch.no_grad():
        expected, maps = backbone(IMAGES).feature_maps, vit(IMAGES).feature_maps
    assert len(maps) == 3
    for one, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"n": [0, 2], "norm": False}, {"n": 2, "reshape": True}], ids=str)
@pytest.mark.parametrize("with_class", [False, True])
def test_the_class_of_the_release_puts_out_the_same_tokens(options: dict[str, Any], with_class: bool) -> None:
    release = DinoVisionTransformer().eval()
    assert is_backbone(release)
    vit = adopted(release)
    with torch.no_grad():
        expected, found = (
            each.get_intermediate_layers(IMAGES, return_class_token=with_class, **options) for each in (release, vit)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(vit(IMAGES), release.get_intermediate_layers(IMAGES, 1, False, True)[0][1])


def test_a_class_of_its_name_that_computes_something_else_is_refused() -> None:
    release = DinoVisionTransformer(scale=2.0)
    with pytest.raises(UnsupportedModelError, match="computes something else than DINOv2 without registers does"):
        adopted(release)
    assert release.training and not is_backbone(nn.Linear(3, 3))
    del release.pos_embed  # as DINOv3's class of this name, which has rotary embeddings
    assert not is_backbone(release)


def test_depth_anything_is_cut_and_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "depth.py").write_text(DEPTH_ANYTHING)
    opened: Any = open_network(f"{tmp_path / 'depth.py'}:build")
    module = runpy.run_path(str(tmp_path / "depth.py"))["build"]()
    with torch.no_grad():
        torch.testing.assert_close(opened(IMAGES), module(IMAGES), rtol=1e-4, atol=1e-5)
    assert opened.family.read == (0, 1, 3) and opened.geometry.fixed_embed is None
    slim = with_embedding(opened, 32)
    save(Model(slim, derived_spec(opened.spec, slim, "full", ())), tmp_path / "slim")
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path / "slim")(IMAGES), slim(IMAGES))
