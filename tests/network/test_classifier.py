"""A classifier with fewer rows says of these classes what it said before, and features are those of the network."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from edgevit.errors import UnsupportedModelError
from edgevit.network.classifier import with_classes, with_features


def test_dropping_classes_keeps_their_logits_and_the_model_itself(small_vit):
    model = small_vit("deit_tiny_distilled_patch16_224")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(with_classes(model, [5, 2])(images), model(images)[:, [5, 2]])
    assert model.module.head.out_features == 10


@pytest.mark.parametrize("registers", [0, 3])
def test_features_of_tokens_are_those_after_the_last_norm_and_no_registers(small_vit: Any, registers: int) -> None:
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        tokens = small_vit(reg_tokens=registers).forward_features(images)
        patches = with_features(small_vit(reg_tokens=registers), "patches")
        both = with_features(small_vit(reg_tokens=registers), "class,patches")
        torch.testing.assert_close(patches(images), tokens[:, 1 + registers :])
        torch.testing.assert_close(both(images), torch.cat([tokens[:, :1], tokens[:, 1 + registers :]], 1))
        narrow = both.with_embedding(torch.eye(64, dtype=torch.float64)[1:])
        assert narrow(images).shape == both(images).shape
    with FlopCounterMode(display=False) as counter:
        both(images)
    norms = sum(placed.stage.embed * placed.tokens * 2 for placed in both.geometry.placed(both.dims)) + 64
    assert both.geometry.macs(both.dims) == int(counter.get_total_flops()) // 2 + norms
    assert all("all patches are put out" in block.attention.site.frozen["tokens"] for block in both.blocks)


@pytest.mark.parametrize(
    ("name", "args", "tokens", "message"),
    [
        (None, {"class_token": False, "global_pool": "avg", "fc_norm": False}, "class,patches", "no class token; try"),
        (None, {"global_pool": "avg"}, "patches", "does not read tokens one by one"),
        ("deit_tiny_distilled_patch16_224", {}, "patches", "does not read tokens one by one"),
        ("swin_tiny_patch4_window7_224", {}, "patches", "has no tokens of a class and of patches"),
    ],
)
def test_networks_without_such_tokens_are_refused(
    small_vit: Any, name: Any, args: Any, tokens: Any, message: str
) -> None:
    network = small_vit(*([] if name is None else [name]), **args)
    with pytest.raises(UnsupportedModelError, match=message):
        with_features(network, tokens)
