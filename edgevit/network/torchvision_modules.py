"""torchvision's VisionTransformer and SwinTransformer, given as modules, as timm's networks of the same function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models import SwinTransformer as TorchvisionSwin
from torchvision.models import VisionTransformer as TorchvisionViT
from torchvision.models import ViT_B_16_Weights

from edgevit.errors import UnsupportedModelError
from edgevit.network.copies import without_values
from edgevit.network.families.swin.names import named as named_swin
from edgevit.network.families.vit.names import named as named_vit
from edgevit.network.torchvision_weights import weights_preprocessing
from edgevit.network.weights import misfit, mlp_ratio

_SIDE = 224  # pixels of the images of a Swin, which torchvision's takes in any size


@torch.no_grad()
def as_timm(module: nn.Module) -> Any:
    """Convert torchvision's ViT or Swin with its head to timm's, for its images or of 224 px; return others unchanged.

    Raises:
        UnsupportedModelError: it computes something else than timm's network.
    """
    if type(module) not in (TorchvisionViT, TorchvisionSwin):
        return module
    weights = named_vit(module.state_dict()) if isinstance(module, TorchvisionViT) else named_swin(module.state_dict())
    converted: Any
    preprocessing: Mapping[str, Any]
    if isinstance(module, TorchvisionViT):
        converted, preprocessing = _vit(module), weights_preprocessing(ViT_B_16_Weights.IMAGENET1K_V1)
    else:
        converted, preprocessing = _swin(module), weights.preprocessing
    noun = f"torchvision's {type(module).__name__}"
    if (fault := misfit(converted, weights.state)) is not None:
        raise UnsupportedModelError(
            f"this is not {noun} as it is made: {fault} (in timm's names); give it with one linear layer as its head, "
            "and nothing else replaced"
        )
    converted.load_state_dict(weights.state, assign=True)
    converted.pretrained_cfg = {**preprocessing, "input_size": (3, *converted.patch_embed.img_size)}
    images = torch.rand(1, 3, *converted.patch_embed.img_size, generator=torch.Generator().manual_seed(0))
    was_training = module.training
    expected, found = (network.eval()(images.to(next(module.parameters()))) for network in (module, converted))
    module.train(was_training)
    if not torch.allclose(found, expected.to(found), rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
        raise UnsupportedModelError(
            f"{noun} computes something else here than timm's network of its weights; give that"
        )
    return converted.train(was_training)


def _vit(module: TorchvisionViT) -> Any:
    first: Any = module.encoder.layers[0]
    with without_values():
        return VisionTransformer(
            img_size=module.image_size, patch_size=module.patch_size, embed_dim=module.hidden_dim,
            depth=len(module.encoder.layers), num_heads=first.num_heads,
            mlp_ratio=mlp_ratio(module.mlp_dim, module.hidden_dim), num_classes=module.num_classes,
            norm_layer=partial(nn.LayerNorm, eps=module.encoder.ln.eps),
        )  # fmt: skip


def _swin(module: TorchvisionSwin) -> Any:
    stages: list[Any] = [module.features[i] for i in range(1, len(module.features), 2)]
    attention: Any = stages[0][0].attn
    embed = module.features[0][0].out_channels
    return SwinTransformer(
        img_size=_SIDE, patch_size=module.features[0][0].kernel_size, embed_dim=embed,
        depths=[len(stage) for stage in stages], num_heads=[stage[0].attn.num_heads for stage in stages],
        window_size=attention.window_size[0], mlp_ratio=stages[0][0].mlp[0].out_features / embed,
        num_classes=module.head.out_features,
    )  # fmt: skip
