"""What a base says of its preprocessing."""

from __future__ import annotations

from typing import Any

from small_base import ARGS, NAME

from edgevit.network.model import describe


def test_preprocessing_is_the_bases_own_but_for_what_was_given(small_vit: Any) -> None:
    network = small_vit()
    own = describe(network, NAME, ARGS).preprocessing
    assert own["input_size"] == [3, 32, 32] and own["mean"] == [0.5, 0.5, 0.5] and own["crop_pct"] == 0.9
    changed = describe(network, NAME, ARGS, {"mean": [0.1, 0.2, 0.3], "crop_pct": 1.0}).preprocessing
    assert changed == {**own, "mean": [0.1, 0.2, 0.3], "crop_pct": 1.0}
    deit = describe(small_vit("deit_tiny_distilled_patch16_224"), "deit_tiny_distilled_patch16_224", ARGS)
    assert deit.preprocessing["mean"] == [0.485, 0.456, 0.406]
