"""Names of weights of Microsoft's release, and networks that are known by the shapes of their weights."""

from __future__ import annotations

import re
from typing import Any

import pytest
import timm
import torch
from family_examples import SWIN

from edgevit.network.copies import without_values
from edgevit.network.families.swin import interchange


def test_weights_of_the_release_merge_tokens_where_a_stage_ends(small_vit: Any) -> None:
    network = small_vit(SWIN)
    own, given = network.state_dict(), dict[str, torch.Tensor]()
    for name, value in own.items():
        name = name.replace("head.fc.", "head.")
        if ".downsample." in name:
            name = re.sub(r"layers\.(\d+)", lambda match: f"layers.{int(match[1]) - 1}", name)
        given[name] = value
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


def test_weights_of_another_family_are_of_no_swin(small_vit: Any) -> None:
    state = small_vit().state_dict()
    assert interchange.guessed_name(interchange.named(state).state) is None


def test_a_classifier_that_the_network_lacks_is_left_out(small_vit: Any) -> None:
    weights, network = interchange.named(small_vit(SWIN).state_dict()), small_vit(SWIN, num_classes=0)
    found = interchange.fitted(weights, network.module, SWIN, resample=False)
    assert found.state.keys() == network.state_dict().keys() and "head.fc.bias, head.fc.weight" in found.notes[0]
