"""Detectors whose pictures are scaled to fit and padded, and which of their pixels are no padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from detectors import write_detectors
from PIL import Image
from torch import Tensor

from benchmarks import scenes
from edgevit.data.task import Split, open_unlabelled_task
from edgevit.data.transforms import evaluation_transform
from edgevit.derivation.cache import Cache
from edgevit.derivation.session.imitation import with_units
from edgevit.network.opening import open_network
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


def letterboxed(function: str, folder: Path, *, least: float = 0.4) -> tuple[Any, Split]:
    """A network that `derive` would cut, and its pictures: their shorter side is a share of at least `least`."""
    model: Any = open_network(f"{write_detectors(folder)}:{function}")
    scenes.render(folder / "data", train=12, val=2, size=64, least=least)
    task = open_unlabelled_task(folder / "data", preprocessing=model.preprocessing, outputs=1)
    return with_units(model, task, open_passes(Training(device="cpu")), Cache(None), {}), task.train


def content_of(images: Split, grid: tuple[int, int]) -> Tensor:
    """Which cells of a grid have a pixel of the picture, by where the transform places white ones: [images, cells]."""
    transform = evaluation_transform(images.preprocessing)
    white = [Image.new("RGB", images.picture(i).size, "white") for i in range(len(images))]
    content = torch.stack([(transform(picture) > 1).all(0).float() for picture in white])
    return F.max_pool2d(content, [64 // side for side in grid]).flatten(1) > 0
