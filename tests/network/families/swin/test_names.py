"""Names of weights of other programs become timm's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from family_examples import SWIN
from foreign_names import microsoft_swin, mmdetection_swin
from safetensors.torch import load_file
from torchvision.models.swin_transformer import SwinTransformer

from edgevit.network.families.swin.names import named


def test_weights_of_the_release_merge_tokens_where_a_stage_ends(small_vit: Any) -> None:
    network = small_vit(SWIN)
    own = network.state_dict()
    given = microsoft_swin(own)
    given["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16)
    given["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    found = named(given)
    assert found.classes == 10 and found.state.keys() == own.keys()
    assert all(torch.equal(found.state[key], own[key]) for key in own)


def of_torchvision() -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    swin = SwinTransformer([4, 4], 8, [2, 2], [2, 4], [4, 4], num_classes=5).eval()
    return swin, {
        name: torch.rand_like(value) if "bias" in name else value for name, value in swin.state_dict().items()
    }


@pytest.mark.parametrize("prefix", ["", "backbone.body."])
def test_weights_of_torchvision_give_the_same_logits(prefix: str) -> None:
    swin, state = of_torchvision()
    swin.load_state_dict(state)
    given = {f"{prefix}{name}": value for name, value in state.items()}
    found = named({**given, **({"rpn.head.conv.weight": torch.zeros(1)} if prefix else {})})
    assert found.origin == "torchvision" and found.classes == 5 and "torchvision's names" in found.notes[0]
    size = {"img_size": 32, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **size).eval()
    model.load_state_dict(found.state, strict=True)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model(images), swin(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("width", "blocks", "resized"), [(96, 6, 232), (96, 18, 246), (128, 18, 238), (192, 18, None)])
def test_torchvision_resizes_each_size_by_its_own_rule(width: int, blocks: int, resized: int | None) -> None:
    state = {"features.0.0.weight": torch.zeros(width, 3, 4, 4), "features.0.0.bias": torch.zeros(width)}
    state |= {f"features.5.{i}.norm1.weight": torch.zeros(4 * width) for i in range(blocks)}
    crop = named(state).preprocessing.get("crop_pct")
    assert crop is None if resized is None else math.floor(224 / crop) == resized  # as timm's transform computes it


def test_weights_of_mmdetection_are_those_of_its_backbone(small_vit: Any) -> None:
    own = small_vit(SWIN, num_classes=0).state_dict()
    found = named(mmdetection_swin(own))
    assert found.origin == "mmdetection" and "of backbone, without neck.lateral_convs.0.conv.weight" in found.notes[1]
    assert "norms of the other outputs of the backbone are left out" in found.notes[2]
    assert found.state.keys() == own.keys() and all(torch.equal(found.state[key], own[key]) for key in own)


def test_names_of_files_and_of_modules_of_transformers_are_read_alike(tmp_path: Path) -> None:
    from transformers import SwinConfig, SwinForImageClassification

    sizes = {"embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4}
    model = SwinForImageClassification(SwinConfig(image_size=32, num_labels=5, **sizes)).eval()
    model.save_pretrained(tmp_path)
    of_file, of_module = named(load_file(tmp_path / "model.safetensors")), named(model.state_dict())
    assert of_file.state.keys() == of_module.state.keys() and of_module.classes == 5
    assert all(torch.equal(value, of_module.state[name]) for name, value in of_file.state.items())
    of_timm = timm.create_model(
        SWIN, img_size=32, num_classes=5, **{k: v for k, v in sizes.items() if k != "image_size"}
    )
    of_timm.eval().load_state_dict(of_module.state)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(of_timm(images), model(images).logits, rtol=1e-5, atol=1e-5)
