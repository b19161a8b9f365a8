"""torchvision's VisionTransformer as timm's."""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models import VisionTransformer as TorchvisionViT
from torchvision.models import ViT_B_16_Weights

from edgevit.network.copies import without_values
from edgevit.network.families.vit.names import named
from edgevit.network.torchvision_weights import weights_preprocessing
from edgevit.network.weights import State, mlp_ratio


def vit_of_torchvision(module: TorchvisionViT) -> tuple[Any, State, tuple[int, int, int]]:
    """timm's network of the sizes of torchvision's, without values, the weights under timm's names, [C, H, W]."""
    first: Any = module.encoder.layers[0]
    with without_values():
        vit: Any = VisionTransformer(
            img_size=module.image_size, patch_size=module.patch_size, embed_dim=module.hidden_dim,
            depth=len(module.encoder.layers), num_heads=first.num_heads,
            mlp_ratio=mlp_ratio(module.mlp_dim, module.hidden_dim), num_classes=module.num_classes,
            norm_layer=partial(nn.LayerNorm, eps=module.encoder.ln.eps),
        )  # fmt: skip
    size = 3, module.image_size, module.image_size
    vit.pretrained_cfg = {**weights_preprocessing(ViT_B_16_Weights.IMAGENET1K_V1), "input_size": size}
    return vit, named(module.state_dict()).state, size
