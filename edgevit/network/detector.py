"""Detectors: a module of the user's that finds boxes, whose backbone gives a pyramid of features.

What counts in a derivation is the pyramid: what reads it stays as it is, and finds the same boxes where the levels are
the same. So the network that is measured and cut is `Pyramid`, which stops behind the backbone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError

DETECTIONS = ("boxes", "labels", "scores")


def is_detections(outputs: object) -> bool:
    """Whether outputs are those of a detector: for each image a dict of boxes, labels and scores."""
    return isinstance(outputs, (list, tuple)) and all(isinstance(o, Mapping) and {*DETECTIONS} <= {*o} for o in outputs)


class Pyramid(nn.Module):
    """A detector up to its pyramid: images [B, C, H, W], as its transform prepares them, to all levels [B, values].

    The levels follow each other, in the order in which the backbone gives them.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector
        self._separate = False

    def forward(self, images: Tensor, targets: Any = None) -> Any:
        """With targets, in training mode, also return the detector's own losses by their names."""
        if targets is not None:
            return self._losses(images, targets)
        levels = self.levels(images)
        if self._separate:
            return tuple(levels.values())
        return torch.cat([level.flatten(1) for level in levels.values()], 1)

    def _losses(self, images: Tensor, targets: Any) -> tuple[Tensor, dict[str, Tensor]]:
        captured: list[Any] = []
        backbone: Any = self.detector.backbone
        hook = backbone.register_forward_hook(lambda _, inputs, levels: captured.append(levels))
        mean, std = (torch.tensor(self.preprocessing[name]).to(images)[:, None, None] for name in ("mean", "std"))
        try:
            losses = self.detector([*(images * std + mean)], targets)  # its transform normalises them again
        finally:
            hook.remove()
        (levels,) = captured
        named = {"0": levels} if isinstance(levels, Tensor) else levels
        return torch.cat([level.flatten(1) for level in named.values()], 1), losses

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        """The levels [B, C, H, W] by their names in an exported file."""
        return {f"level_{name}": level for name, level in self._named(images).items()}

    def _named(self, images: Tensor) -> Mapping[str, Tensor]:
        levels = self.detector.backbone(images)  # type: ignore[operator]
        return {"0": levels} if isinstance(levels, Tensor) else levels

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Give the levels apart within this context, as in an exported file."""
        self._separate = True
        try:
            yield
        finally:
            self._separate = False

    @contextmanager
    def reading(self, predict: Callable[[Tensor], Tensor], images: Tensor) -> Iterator[None]:
        """Have the detector read the levels that a function gives [B, values], such as those of a file.

        Args:
            images: one or more, of which only the sizes of the levels matter.
        """
        shapes = {name: level.shape[1:] for name, level in self._named(images).items()}

        def forward(images: Tensor) -> OrderedDict[str, Tensor]:
            parts = torch.split(predict(images).to(images), [shape.numel() for shape in shapes.values()], 1)
            pairs = zip(shapes.items(), parts, strict=True)
            return OrderedDict((name, part.reshape(-1, *shape)) for (name, shape), part in pairs)

        backbone: Any = self.detector.backbone
        backbone.forward = forward
        try:
            yield
        finally:
            del backbone.forward

    @property
    def has_masks(self) -> bool:
        """Whether the detector finds masks, too, as torchvision's Mask R-CNN does."""
        roi_heads: Any = getattr(self.detector, "roi_heads", None)
        return bool(getattr(roi_heads, "mask_predictor", None))

    @property
    def preprocessing(self) -> dict[str, Any]:
        """The settings of timm's transform that prepares images as the detector's does."""
        transform: Any = self.detector.transform
        return {
            "interpolation": "bilinear", "mean": tuple(map(float, transform.image_mean)),
            "std": tuple(map(float, transform.image_std)), "crop_pct": 1.0, "crop_mode": "squash",
        }  # fmt: skip


def check_detector(module: nn.Module, input_size: tuple[int, int, int]) -> None:
    """Check that a detector has a backbone, and a transform to images of the one size that its network takes.

    Raises:
        UnsupportedModelError: it has not.
    """
    what, (height, width) = f"this {type(module).__name__}", input_size[1:]
    transform: Any = getattr(module, "transform", None)
    if not isinstance(getattr(module, "backbone", None), nn.Module) or not hasattr(transform, "fixed_size"):
        raise UnsupportedModelError(
            f"{what} gives boxes, and has no backbone and transform of these names; build it as torchvision's are, "
            "with its network in the backbone"
        )
    fixed, divisor = transform.fixed_size, transform.size_divisible
    if fixed is None or tuple(fixed) != (width, height) or height % divisor or width % divisor:
        size = f"fixed_size={tuple(fixed)}" if fixed is not None else f"min_size={transform.min_size}"
        raise UnsupportedModelError(
            f"{what} resizes images to {size}, padded to multiples of {divisor}, and its network takes {height} x "
            f"{width}; give it fixed_size=({width}, {height}) and a size_divisible that divides both: images of "
            "several sizes are not possible yet"
        )
