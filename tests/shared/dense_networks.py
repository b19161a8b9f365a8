"""Small networks with a head of the user's, written as their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

import edgevit
from edgevit.train.settings import Training

DEPTH = """
import timm
import torch
from torch import nn
from torch.nn import functional as F


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, embed_dim=64, num_heads=2, num_classes=0
        )
        self.reduce = nn.Conv2d(128, 16, 1)
        self.norm = nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 8, 4, 2, 1)
        self.last = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, images):
        features = self.backbone.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
        x = F.relu(self.up(F.relu(self.norm(self.reduce(torch.cat(features, 1))))))
        return F.interpolate(self.last(x), size=images.shape[-2:], mode="bilinear")


def build():
    torch.manual_seed(0)
    module = Depth()
    with torch.no_grad():
        module.last.weight.mul_(100)
    return module


class Coarse(Depth):
    def forward(self, images):
        return F.avg_pool2d(super().forward(images), 4)


def build_coarse():
    module = Coarse()
    module.load_state_dict(build().state_dict())
    return module
"""
WRONG = """

class Constant(Depth):
    def forward(self, images):
        self.backbone(images)
        return torch.zeros_like(images)

class Hooked(Depth):
    def __init__(self):
        super().__init__()
        self.backbone.blocks[2].register_forward_hook(self.see)

    def see(self, module, inputs, output):
        self.seen = output

    def forward(self, images):
        self.backbone(images)
        return self.seen[:, 1:].transpose(1, 2).unflatten(2, (4, 4))

class Early(Depth):
    def forward(self, images):
        (x,) = self.backbone.forward_intermediates(images, indices=[0], intermediates_only=True, stop_early=True)
        return x

class Resized(Depth):
    def __init__(self):
        super().__init__()
        self.backbone.set_input_size((64, 64))
        self.backbone.patch_embed.img_size = (32, 32)
        self.backbone.patch_embed.strict_img_size = False
        self.backbone.patch_embed.num_patches = 16

    def forward(self, images):
        return super().forward(F.interpolate(images, size=(64, 64)))

class First(Depth):
    def forward(self, images):
        return super().forward(images) + self.mix(self.backbone.patch_embed(images)).mean(1)[:, None, None]

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(64, 1)

class Positions(Depth):
    def forward(self, images):
        return super().forward(images) + self.backbone.pos_embed.norm()

class Width(Depth):
    def forward(self, images):
        return super().forward(images) / self.backbone.embed_dim**0.5

class Bent(Depth):
    def forward(self, images):
        backbone = self.backbone
        first = backbone._pos_embed(backbone.patch_embed(images))
        features = backbone.blocks(first + first.abs())
        return self.last(features[:, 1:, :8].transpose(1, 2).unflatten(2, (4, 4)))

class Limit(Depth):
    def forward(self, images):
        early, late = self.backbone.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
        return self.last(late[:, :8] * (early.mean(1, keepdim=True) < 3))

class Shallow(Depth):
    def forward(self, images):
        (x,) = self.backbone.forward_intermediates(images, indices=[1], intermediates_only=True)
        return x

class Frozen(Depth):
    def forward(self, images):
        with torch.no_grad():
            tokens = self.backbone.forward_features(images)
        return self.last(tokens[:, 1:, :8].transpose(1, 2).unflatten(2, (4, 4)))

class Bound(Depth):
    def __init__(self):
        super().__init__()
        self.features = self.backbone.forward_features

    def forward(self, images):
        return self.features(images)[:, 1:].transpose(1, 2).unflatten(2, (4, 4))

class Named(Depth):
    def __init__(self):
        super().__init__()
        self.second = self.backbone.norm

class Inner(Depth):
    def forward(self, images):
        seen = []
        hook = self.backbone.blocks[2].attn.register_forward_hook(lambda *given: seen.append(given[2].mean()))
        x = super().forward(images)
        hook.remove()
        return x + seen[0]

class Flipped(Depth):
    def forward(self, images):
        one, other = super().forward(torch.cat([images, images.flip(-1)])).chunk(2)
        return one + other.flip(-1)

class Auxiliary(Depth):
    def forward(self, images):
        x = super().forward(images)
        return (x, x.mean()) if self.training else x

class Pooled(Depth):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, embed_dim=64, num_heads=2, num_classes=0,
            global_pool="map", class_token=False,
        )

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Depth(), Depth()

class Without(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Conv2d(3, 1, 1)

class Tokens(Depth):
    def forward(self, images):
        return self.backbone.forward_features(images)

class Failing(Depth):
    def __init__(self):
        raise ValueError("no such size")

class Detached(Depth):
    def forward(self, images):
        early, late = self.backbone.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
        return self.last(early[:, :8] + late[:, :8].detach())

class Chosen(Depth):
    def forward(self, images):
        return self.backbone.forward_features(images)[:, 1:].argmax(-1).unflatten(1, (1, 4, 4)).float()

class Batch(Depth):
    def forward(self, images):
        x = super().forward(images)
        return (x - x.mean()) / x.std()

class Mixed(Depth):
    def forward(self, images):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(images).float()

class Pair(Depth):
    def forward(self, images, others):
        return super().forward(images) - super().forward(others)

class TwoHeads(Depth):
    def forward(self, images):
        return {"depth": super().forward(images), "normals": super().forward(images).expand(-1, 3, -1, -1)}

class Squeezed(Depth):
    def forward(self, images):
        return super().forward(images)[:, 0]

class Normalising(Depth):
    def forward(self, images):
        mean, std = (torch.tensor(values)[:, None, None] for values in ([0.5, 0.4, 0.3], [0.25, 0.2, 0.1]))
        return super().forward((images - mean) / std)

class Sized(Depth):
    def __init__(self, size):
        super().__init__()
"""


def write_depth(folder: Path, wrong: bool = False) -> Path:
    """Write a file with `build`, which makes a map [B, 1, 32, 32], and with `wrong` modules that are refused."""
    file = folder / "my_depth.py"
    file.write_text(DEPTH + WRONG * wrong)
    return file


def write_frames(folder: Path, count: int = 60) -> Path:
    """Write pictures of 32 px: a bright square on dark noise, at a different place in each."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        picture = torch.randint(0, 80, (32, 32, 3), generator=generator, dtype=torch.uint8)
        x, y = torch.randint(0, 20, (2,), generator=generator).tolist()
        picture[y : y + 12, x : x + 12] = 230
        Image.fromarray(picture.numpy()).save(folder / f"{i:03}.png")
    return folder


FEW = {"calibration_images": 40, "sensitivity_images": 16, "measured_images": 10}  # options of forge, for few frames


def derive_map(base: Any, frames: Path, out: Path, **options: Any) -> Any:
    """Derive from a network with a head of the user's, in closed form unless options say otherwise."""
    given: dict[str, Any] = {
        "data": frames, "output": "map", "out": out, "options": FEW, "training": Training(device="cpu", steps=0),
    }  # fmt: skip
    return edgevit.derive(base, **{**given, **options})
