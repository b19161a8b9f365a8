"""A rival of networks that find the squares of `write_frames`: what is bright is foreground."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn


def write_bright_map(file: Path, *last: nn.Module, bias: float = 0.0) -> Path:
    """Export the mean of the channels, normalised to [-1, 1], as logits [B, 1, 32, 32], with further layers at the end.

    Args:
        bias: of the logits, which moves the edge of what is foreground.
    """
    mean = nn.Conv2d(3, 1, 1)
    nn.init.constant_(mean.weight, 1 / 3)
    nn.init.constant_(mean.bias, bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            nn.Sequential(mean, *last).eval(), (torch.zeros(2, 3, 32, 32),), file, dynamo=False, opset_version=17,
            input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
        )  # fmt: skip
    return file


def write_masks(images: Path, masks: Path) -> Path:
    """Write where pictures are bright, which is where their squares are."""
    masks.mkdir(parents=True)
    for file in sorted(images.iterdir()):
        Image.fromarray(np.asarray(Image.open(file).convert("L")) > 128).save(masks / file.name)
    return masks
