"""Networks that are known by the shapes of their weights."""

from __future__ import annotations

from typing import Any

import pytest
import timm
from family_examples import SWIN

from edgevit.network.copies import without_values
from edgevit.network.families.swin import interchange


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
