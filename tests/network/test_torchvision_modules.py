"""torchvision's networks, given as modules, are timm's of the same function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from of_torchvision import torchvision_swin, torchvision_vit
from torch import nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.from_module import path_of
from edgevit.network.opening import open_network
from edgevit.network.torchvision_modules import as_timm


@pytest.mark.parametrize(("make", "side"), [(torchvision_vit, 64), (torchvision_swin, 224)], ids=["vit", "swin"])
def test_the_logits_are_those_of_torchvision(make: Any, side: int) -> None:
    module, images = make(), torch.rand(2, 3, side, side)
    opened: Any = open_network(path_of(module, "derive"))
    assert module.training and opened.spec.outputs == 6 and opened.spec.preprocessing["input_size"] == [3, side, side]
    with torch.inference_mode():
        torch.testing.assert_close(opened(images), module.eval()(images), rtol=1e-4, atol=1e-4)


def test_others_are_left_or_refused() -> None:
    layer = nn.Linear(3, 3)
    assert as_timm(layer) is layer
    headless = torchvision_vit()
    headless.heads = nn.Identity()
    with pytest.raises(UnsupportedModelError, match=r"it lacks head\.bias, head\.weight .*one linear layer"):
        as_timm(headless)
    changed = torchvision_vit()
    changed.encoder.layers[0].mlp[1] = nn.ReLU()
    with pytest.raises(UnsupportedModelError, match="computes something else here than timm's"):
        as_timm(changed)
