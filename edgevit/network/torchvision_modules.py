"""torchvision's VisionTransformer and SwinTransformer, given as modules, as timm's networks of the same function."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchvision.models import SwinTransformer, VisionTransformer

from edgevit.errors import UnsupportedModelError
from edgevit.network.families.swin.torchvision import swin_of_torchvision
from edgevit.network.families.vit.torchvision import vit_of_torchvision
from edgevit.network.weights import misfit


@torch.no_grad()
def as_timm(module: nn.Module) -> Any:
    """Convert torchvision's ViT or Swin with its head to timm's; return others unchanged.

    Raises:
        UnsupportedModelError: it computes something else than timm's network.
    """
    if type(module) not in (VisionTransformer, SwinTransformer):
        return module
    convert: Any = vit_of_torchvision if isinstance(module, VisionTransformer) else swin_of_torchvision
    converted, weights, size = convert(module)
    noun = f"torchvision's {type(module).__name__}"
    if (fault := misfit(converted, weights)) is not None:
        raise UnsupportedModelError(
            f"this is not {noun} as it is made: {fault} (in timm's names); give it with one linear layer as its head, "
            "and nothing else replaced"
        )
    converted.load_state_dict(weights, assign=True)
    images = torch.rand(1, *size, generator=torch.Generator().manual_seed(0))
    was_training = module.training
    expected, actual = (network.eval()(images.to(next(module.parameters()))) for network in (module, converted))
    for network in (module, converted):
        network.train(was_training)
    if not torch.allclose(actual, expected.to(actual), rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
        raise UnsupportedModelError(f"{noun} computes something else here than timm's of its weights; give timm's")
    return converted
