"""Small networks of torchvision with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchvision.models import SwinTransformer, VisionTransformer


def torchvision_vit() -> Any:
    return _randomised(
        lambda: VisionTransformer(
            image_size=64, patch_size=16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=96, num_classes=6
        )
    )


def torchvision_swin() -> Any:
    return _randomised(lambda: SwinTransformer([4, 4], 24, [1, 1, 2, 1], [2, 3, 4, 6], [7, 7], num_classes=6))


def _randomised(make: Any) -> Any:
    torch.manual_seed(0)
    module = make()
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.05, 0.1)
    return module
