"""Heads that read tokens of a narrower embedding in several ways, beside the module `Depth` in its file."""

from __future__ import annotations

from pathlib import Path

from dense_networks import write_depth

_HEADS = """

class Linear(Depth):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)

    def forward(self, images):
        return self.first(self.backbone.forward_features(images)[:, 1:]).mT.reshape(-1, 1, 32, 32)

class Convolution(Depth):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(64, 4, 3, padding=1)

    def forward(self, images):
        patches = self.backbone.forward_features(images)[:, 1:].mT
        return self.first(F.dropout2d(patches.unflatten(2, (4, 4)), training=self.training))

class Transposed(Convolution):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.ConvTranspose2d(64, 16, 4, 2, 1), nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, images):
        return F.interpolate(self.last(F.relu(super().forward(images))), size=(32, 32))

class Twice(Convolution):
    def __init__(self):
        super().__init__()
        self.second = nn.Conv2d(64, 4, 1)

    def forward(self, images):
        patches = self.backbone.forward_features(images)[:, 1:].mT.unflatten(2, (4, 4))
        return self.first(patches) + self.second(patches)

class Levels(Depth):
    norm_of = True

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(64, 8, 1), nn.Conv2d(64, 8, 3, padding=1)

    def forward(self, images):
        one, two = self.backbone.forward_intermediates(
            images, indices=[0, 2], intermediates_only=True, norm=self.norm_of
        )
        return F.interpolate(self.last(F.relu(self.one(one) + self.two(two))), size=(32, 32))

class Tied(Levels):
    def forward(self, images):
        levels = self.backbone.forward_intermediates(images, indices=[0, 2], intermediates_only=True, norm=True)
        return F.interpolate(self.last(F.relu(self.one(levels[0]) + self.one(levels[1]))), size=(32, 32))

class Bare(Levels):
    norm_of = False

class Skipped(Convolution):
    def forward(self, images):
        tokens = self.backbone.forward_features(images)[:, 1:]
        return self.first(tokens.mT.unflatten(2, (4, 4))) + tokens.square().mean()

class Bent(Convolution):
    def forward(self, images):
        return self.first(F.relu(self.backbone.forward_features(images)[:, 1:]).mT.unflatten(2, (4, 4)))

class Normed(Convolution):
    def __init__(self):
        super().__init__()
        self.again = nn.LayerNorm(64)

    def forward(self, images):
        return self.first(self.again(self.backbone.forward_features(images)[:, 1:]).mT.unflatten(2, (4, 4)))

class Grouped(Convolution):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(64, 4, 1, groups=2)

class Hard(Convolution):
    def forward(self, images):
        return self.first(self.backbone.forward_features(images)[:, 1:].mT.reshape(-1, 64, 4, 4))
"""


def write_heads(folder: Path) -> Path:
    """Write a file with modules of tokens of 64 channels; each makes a map of an image of 32 px."""
    file = write_depth(folder)
    file.write_text(file.read_text() + _HEADS)
    return file
