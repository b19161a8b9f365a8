"""Names of weights of Microsoft's release, and networks that are known by the shapes of their weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import timm
import torch
from family_examples import SWIN
from foreign_names import microsoft_swin, mmdetection_swin
from torchvision.models.swin_transformer import SwinTransformer

from edgevit.network.copies import without_values
from edgevit.network.families.swin import interchange


def test_weights_of_the_release_merge_tokens_where_a_stage_ends(small_vit: Any) -> None:
    network = small_vit(SWIN)
    own = network.state_dict()
    given = microsoft_swin(own)
    given["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16)
    given["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    found = interchange.named(given)
    assert found.classes == 10 and found.state.keys() == own.keys()
    assert all(torch.equal(found.state[key], own[key]) for key in own)


@pytest.mark.parametrize(
    "name", [f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base", "large")] + [
        "swin_base_patch4_window12_384"
    ],
)  # fmt: skip
def test_a_usual_network_is_known_by_its_shapes(name: str) -> None:
    with without_values():
        model = timm.create_model(name)
    state = model.state_dict()
    assert interchange.guessed_name(state) == name
    assert interchange.guessed_arguments(state, model, state, ()) == ({}, None)


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
    found = interchange.named({**given, **({"rpn.head.conv.weight": torch.zeros(1)} if prefix else {})})
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
    crop = interchange.named(state).preprocessing.get("crop_pct")
    assert crop is None if resized is None else math.floor(224 / crop) == resized  # as timm's transform computes it


def test_weights_of_mmdetection_are_those_of_its_backbone(small_vit: Any) -> None:
    own = small_vit(SWIN, num_classes=0).state_dict()
    found = interchange.named(mmdetection_swin(own))
    assert found.origin == "mmdetection" and "of backbone, without neck.lateral_convs.0.conv.weight" in found.notes[1]
    assert "norms of the other outputs of the backbone are left out" in found.notes[2]
    assert found.state.keys() == own.keys() and all(torch.equal(found.state[key], own[key]) for key in own)


def test_weights_of_another_family_are_of_no_swin(small_vit: Any) -> None:
    state = small_vit().state_dict()
    assert interchange.guessed_name(interchange.named(state).state) is None


def test_a_classifier_that_the_network_lacks_is_left_out(small_vit: Any) -> None:
    weights, network = interchange.named(small_vit(SWIN).state_dict()), small_vit(SWIN, num_classes=0)
    found = interchange.fitted(weights, network.module, SWIN, resample=False)
    assert found.state.keys() == network.state_dict().keys() and "head.fc.bias, head.fc.weight" in found.notes[0]
