"""torchvision's SwinTransformer as timm's."""

from __future__ import annotations

from typing import Any

from timm.models.swin_transformer import SwinTransformer
from torchvision.models import SwinTransformer as TorchvisionSwin

from edgevit.network.families.swin.names import named
from edgevit.network.weights import State, mlp_ratio

_SIDE = 224  # pixels of the images, which torchvision's takes in any size


def swin_of_torchvision(module: TorchvisionSwin) -> tuple[Any, State, tuple[int, int, int]]:
    """timm's network of the sizes of torchvision's, for images of 224 px, the weights under its names, [C, H, W]."""
    weights = named(module.state_dict())
    stages: list[Any] = [module.features[i] for i in range(1, len(module.features), 2)]
    patch: Any = module.features[0][0]
    swin: Any = SwinTransformer(
        img_size=_SIDE, patch_size=patch.kernel_size, embed_dim=patch.out_channels,
        depths=[len(stage) for stage in stages], num_heads=[stage[0].attn.num_heads for stage in stages],
        window_size=stages[0][0].attn.window_size[0],
        mlp_ratio=mlp_ratio(stages[0][0].mlp[0].out_features, patch.out_channels), num_classes=weights.classes,
    )  # fmt: skip
    size = 3, _SIDE, _SIDE
    swin.pretrained_cfg = {**weights.preprocessing, "input_size": size}
    return swin, weights.state, size
