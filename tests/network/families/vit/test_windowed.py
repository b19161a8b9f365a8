"""RF-DETR's backbone, whose blocks attend within windows, inside the detector."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import with_embedding
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import BlockDims
from edgevit.network.families.vit.slim import SlimAttention
from edgevit.network.families.vit.windowed import adopted, is_windowed
from edgevit.network.folder import load, save
from edgevit.network.layers import counted_macs
from edgevit.network.model import Model, derived_spec
from edgevit.network.opening import open_network

IMAGES = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
SIZES = {
    "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 2, "image_size": 64, "patch_size": 8,
    "num_windows": 2, "window_block_indexes": [0, 2, 3], "out_features": ["stage1", "stage4"],
}  # fmt: skip
DETECTOR = f"""
import torch
from torch import nn
from transformers import RfDetrConfig, RfDetrForObjectDetection
from transformers.models.rf_detr.configuration_rf_detr import RfDetrDinov2Config

class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = RfDetrForObjectDetection(RfDetrConfig(
            backbone_config=RfDetrDinov2Config(**{SIZES!r}), d_model=32, decoder_layers=1, num_queries=9, num_labels=3,
            decoder_self_attention_heads=2, decoder_cross_attention_heads=2, decoder_ffn_dim=32,
        ))

    def forward(self, images):
        found = self.net(pixel_values=images)
        scores, labels = found.logits.sigmoid().max(-1)
        centre, size = found.pred_boxes.split(2, -1)
        boxes = torch.cat([centre - size / 2, centre + size / 2], -1) * images.shape[-1]
        return [{{"boxes": b, "scores": s, "labels": l}} for b, s, l in zip(boxes, scores, labels)]

def build():
    torch.manual_seed(0)
    module = Detector().eval()
    for parameter in module.net.model.backbone.backbone.parameters():
        nn.init.normal_(parameter, 0.05, 0.1)
    return module
"""


def backbone_of_transformers(**changes: Any) -> Any:
    from transformers.models.rf_detr.configuration_rf_detr import RfDetrDinov2Config
    from transformers.models.rf_detr.modeling_rf_detr import RfDetrDinov2Backbone

    torch.manual_seed(0)
    backbone = RfDetrDinov2Backbone(RfDetrDinov2Config(**{**SIZES, **changes})).eval()
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, 0.1, 0.2)
    return backbone


class WindowedDinov2WithRegistersBackbone(nn.Module):
    """The class of the package of RF-DETR's authors, by the parts of transformers': it gives a tuple."""

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.layernorm = like.embeddings, like.encoder, like.layernorm
        self.config = SimpleNamespace(**{**like.config.to_dict(), "return_dict": False, "num_register_tokens": 0})
        self.stage_names, self.out_features, self.run = like.stage_names, like.out_features, like.forward

    def forward(self, images: Tensor) -> Any:
        return (self.run(images).feature_maps,)


def test_tokens_attend_within_their_window_alone() -> None:
    torch.manual_seed(0)
    attention = SlimAttention(16, BlockDims(2, 4, 8, 0, windows=3))
    whole, tokens = SlimAttention(16, BlockDims(2, 4, 8, 0)), torch.randn(2, 12, 16)
    whole.load_state_dict(attention.state_dict())
    expected = torch.cat([whole(window) for window in tokens.chunk(3, 1)], 1)
    torch.testing.assert_close(attention(tokens), expected)
    assert not torch.allclose(whole(tokens), expected)
    with pytest.raises(UnsupportedModelError, match="tokens of windows have no weights"):
        attention(tokens, attn_mask=torch.zeros(2, 1, 1, 12))


@pytest.mark.parametrize(
    "changes",
    [
        {"out_features": ["stem", "stage4"]},
        {"apply_layernorm": False, "layer_norm_eps": 1e-3},
        {"num_windows": 4},
        {"num_windows": 1},
        {"qkv_bias": False},
    ],
    ids=str,
)
def test_maps_are_the_same(changes: dict[str, Any]) -> None:
    backbone = backbone_of_transformers(**changes)
    assert is_windowed(backbone)
    vit = adopted(backbone)
    with torch.no_grad():
        expected, maps = backbone(IMAGES).feature_maps, vit(IMAGES).feature_maps
    assert len(maps) == 2 and len(vit.blocks) == 4, "the block after the last map is left out"
    for one, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_maps_are_given_as_a_tuple_where_the_backbone_gives_one() -> None:
    backbone = WindowedDinov2WithRegistersBackbone(backbone_of_transformers())
    assert is_windowed(backbone)
    with torch.no_grad():
        torch.testing.assert_close(adopted(backbone)(IMAGES), backbone(IMAGES), rtol=1e-5, atol=1e-4)


def test_others_are_refused() -> None:
    assert not is_windowed(backbone_of_transformers(use_swiglu_ffn=True))
    assert not is_windowed(backbone_of_transformers(reshape_hidden_states=False))
    for changes, patches in (({"num_windows": 3}, "64 .* 3 windows"), ({"image_size": [64, 96]}, "96 .* 2 windows")):
        with pytest.raises(UnsupportedModelError, match=f"has {patches}"):
            adopted(backbone_of_transformers(**changes))
    changed = backbone_of_transformers()
    changed.encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 1.5,))
    with pytest.raises(UnsupportedModelError, match="computes something else than the network of this name"):
        adopted(changed.train())
    assert changed.training


def test_rf_detr_is_cut_and_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "detector.py").write_text(DETECTOR)
    opened: Any = open_network(f"{tmp_path / 'detector.py'}:build")
    module = runpy.run_path(str(tmp_path / "detector.py"))["build"]()
    with torch.inference_mode():
        found = opened.module.detect(IMAGES)
        torch.testing.assert_close(found, module(IMAGES), rtol=1e-4, atol=1e-4)
        macs = counted_macs(opened, lambda: opened(IMAGES[:1]))
    assert [dims.windows for dims in opened.dims] == [4, 1, 4, 4]
    of_norms, tokens = 2 * 4 * 64, 64 + 4
    assert opened.geometry.macs(list(opened.dims)) == macs + tokens * of_norms + 64
    assert opened.geometry.fixed_embed is None
    with torch.inference_mode():
        levels = opened(IMAGES)
        for factor in (1, 0):
            with opened.module.reading(lambda images, f=factor: f * levels, IMAGES):
                scores = [of_image["scores"] for of_image in opened.module.detect(IMAGES)]
            change = torch.stack(scores) - torch.stack([of_image["scores"] for of_image in found])
            assert (change.abs().max() > 1e-5) == (factor == 0)
    slim = with_embedding(opened, 32)
    save(Model(slim, derived_spec(opened.spec, slim, "full", ())), tmp_path / "slim")
    loaded = load(tmp_path / "slim")
    assert [dims.windows for dims in loaded.dims] == [4, 1, 4, 4]
    with torch.no_grad():
        torch.testing.assert_close(loaded(IMAGES), slim(IMAGES))
