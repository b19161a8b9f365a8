"""Swins of transformers inside other networks."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import slimmed, with_embedding
from torch import nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.families.swin.backbones import adopted, is_transformers_swin
from edgevit.network.folder import load, save
from edgevit.network.model import Model, derived_spec
from edgevit.network.opening import open_network

SIZES = {"image_size": 64, "embed_dim": 16, "depths": [2, 2, 2], "num_heads": [2, 2, 4], "window_size": 4}
# The last grid of 4 x 4 is one window, or a part of one, or is padded to four.
WINDOWS = {"one window": 4, "a larger window": 7, "padding": 3}
SEGMENTING = """
import torch
from torch import nn
from transformers import SwinConfig, SwinModel, UperNetConfig, UperNetForSemanticSegmentation

SIZES = dict(image_size=64, embed_dim=16, depths=[2, 2, 2, 2], num_heads=[2, 2, 4, 4], window_size=2)

class Segmenting(nn.Module):
    def __init__(self):
        super().__init__()
        backbone = SwinConfig(**SIZES, out_features=["stage1", "stage2", "stage3", "stage4"])
        self.net = UperNetForSemanticSegmentation(UperNetConfig(
            backbone_config=backbone, num_labels=3, hidden_size=16, use_auxiliary_head=False,
        ))

    def forward(self, images):
        return self.net(images).logits

class OnTokens(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.swin, self.head, self.options = SwinModel(SwinConfig(**SIZES)), nn.Conv2d(128, 3, 1), options

    def forward(self, images):
        outputs = self.swin(images, **self.options)
        tokens = outputs.hidden_states[-1] if self.options else outputs.last_hidden_state
        return self.head(tokens.transpose(1, 2).unflatten(2, (2, 2)) + outputs.pooler_output[..., None, None])

def made(module):
    for parameter in module.eval().parameters():
        nn.init.normal_(parameter, 0.05, 0.2)
    return module

def build():
    torch.manual_seed(0)
    return made(Segmenting())

def on_tokens():
    torch.manual_seed(0)
    return made(OnTokens())

def on_states():
    return made(OnTokens(output_hidden_states=True))
"""


def of_transformers(kind: str, **settings: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    module = getattr(transformers, kind)(transformers.SwinConfig(**{**SIZES, **settings})).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.05, 0.2)
    return module


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@torch.inference_mode()
def test_a_backbone_puts_out_the_same_maps(window: int) -> None:
    backbone = of_transformers(
        "SwinBackbone", window_size=window, out_features=["stem", "stage1", "stage3"], layer_norm_eps=1e-3
    )
    assert is_transformers_swin(backbone)
    swin, images = adopted(backbone), torch.rand(2, 3, 64, 64)
    expected, maps = backbone(images).feature_maps, swin(images).feature_maps
    assert [tuple(each.shape[1:]) for each in maps] == [(16, 16, 16), (16, 16, 16), (64, 4, 4)]
    for one, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@torch.inference_mode()
def test_a_model_puts_out_the_same_tokens() -> None:
    model, images = of_transformers("SwinModel", image_size=(48, 80), window_size=3), torch.rand(2, 3, 48, 80)
    for options in ({}, {"return_dict": False}):
        expected, found = (network(images, **options) for network in (model, adopted(model)))
        assert type(found) is type(expected) and len(found) == len(expected) == 2
        for one, other in zip((found[0], found[1]), (expected[0], expected[1]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_others_are_refused() -> None:
    assert not is_transformers_swin(of_transformers("SwinModel", use_absolute_embeddings=True))
    assert not is_transformers_swin(nn.Linear(3, 3))
    with pytest.raises(UnsupportedModelError, match="images of 60 x 60, and sides of multiples of 16 are needed"):
        adopted(of_transformers("SwinModel", image_size=60))
    adapted = of_transformers("SwinModel")
    adapted.encoder.layers[0].blocks[0].attention.q_proj = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(UnsupportedModelError, match=r"it lacks layers\.0\.blocks\.0\.attn\.qkv.*; merge adapters"):
        adopted(adapted)
    changed = of_transformers("SwinModel")
    changed.embeddings.register_forward_hook(lambda module, inputs, outputs: (2 * outputs[0], outputs[1]))
    with pytest.raises(UnsupportedModelError, match="computes something else than the network of this name"):
        adopted(changed)


@pytest.mark.parametrize("function", ["build", "on_tokens"])
def test_a_head_on_a_swin_is_cut_around_it_and_read_from_its_folder(function: str, tmp_path: Path) -> None:
    (tmp_path / "segmenting.py").write_text(SEGMENTING)
    opened: Any = open_network(f"{tmp_path / 'segmenting.py'}:{function}")
    module = runpy.run_path(str(tmp_path / "segmenting.py"))[function]()
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(opened(images), module(images), rtol=1e-4, atol=1e-4)
    for number, slim in enumerate((slimmed(opened, 4, 8), with_embedding(opened, 8))):
        save(Model(slim, derived_spec(opened.spec, slim, "full", ())), tmp_path / f"{number}")
        with torch.inference_mode():
            torch.testing.assert_close(load(tmp_path / f"{number}")(images), slim(images))


def test_a_head_that_reads_all_stages_of_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "segmenting.py").write_text(SEGMENTING)
    with pytest.raises(UnsupportedModelError, match=r"hidden_states of a SwinModel are not given.*SwinBackbone"):
        open_network(f"{tmp_path / 'segmenting.py'}:on_states")
