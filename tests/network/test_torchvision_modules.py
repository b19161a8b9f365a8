"""torchvision's networks, given as modules, are timm's of the same function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import SwinTransformer, VisionTransformer

from edgevit.errors import UnsupportedModelError
from edgevit.network.from_module import path_of
from edgevit.network.opening import open_network
from edgevit.network.torchvision_modules import as_timm


def vit(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"image_size": 64, "patch_size": 16, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 96}
    return randomised(VisionTransformer(**{**sizes, "num_classes": 6, **options}))


def swin() -> Any:
    torch.manual_seed(0)
    return randomised(SwinTransformer([4, 4], 24, [1, 1, 2, 1], [2, 3, 4, 6], [7, 7], num_classes=6))


def randomised(module: Any) -> Any:
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.05, 0.1)
    return module


@pytest.mark.parametrize(("module", "side"), [(vit(), 64), (swin(), 224)], ids=["vit", "swin"])
def test_the_logits_are_those_of_torchvision(module: Any, side: int) -> None:
    images = torch.rand(2, 3, side, side)
    opened: Any = open_network(path_of(module, "derive"))
    assert module.training and opened.spec.outputs == 6 and opened.spec.preprocessing["input_size"] == [3, side, side]
    with torch.inference_mode():
        torch.testing.assert_close(opened(images), module.eval()(images), rtol=1e-4, atol=1e-4)


def test_others_are_left_or_refused() -> None:
    layer = nn.Linear(3, 3)
    assert as_timm(layer) is layer
    headless = vit()
    headless.heads = nn.Identity()
    with pytest.raises(UnsupportedModelError, match=r"it lacks head\.bias, head\.weight .*one linear layer"):
        as_timm(headless)
    changed = vit()
    changed.encoder.layers[0].mlp[1] = nn.ReLU()
    with pytest.raises(UnsupportedModelError, match="computes something else here than timm's"):
        as_timm(changed)
