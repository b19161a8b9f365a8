"""What a detector learns from: training images with boxes, labels and masks of their objects, changed together."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from edgevit.data.batches import make_loader, seeded
from edgevit.data.request import Augment
from edgevit.data.sources import Reference
from edgevit.data.sources.coco import CocoImages, CocoObject
from edgevit.errors import DataError
from edgevit.records.preparing import CORNER, fitted_size
from edgevit.records.reading import Reading

# Targets of each image: boxes [n, 4] by their corners, labels [n], perhaps masks [n, H, W].
Targets = list[dict[str, Tensor]]


@dataclass(frozen=True)
class LearntObjects:
    """The objects that a detector's own losses read: those of some categories, without regions of many (crowds)."""

    label_of: Mapping[int, int]  # label in the detector of each category that it learns, by the category's id
    masks: bool  # whether the detector also learns masks

    def of(self, source: Any, reference: Reference) -> list[CocoObject]:
        """The objects in an image that count."""
        assert isinstance(source, CocoImages)
        return [entry for entry in source.objects(reference) if entry.category in self.label_of and not entry.crowd]

    def sha256(self, source: Any, references: Sequence[Reference]) -> str:
        """Hash what is learnt of these images, for keys."""
        digest = hashlib.sha256(repr((sorted(self.label_of.items()), self.masks)).encode())
        for reference in references:
            digest.update(repr(self.of(source, reference)).encode())
        return digest.hexdigest()

    def batches(
        self,
        source: Any,
        references: Sequence[Reference],
        preprocessing: Mapping[str, Any],
        order: Iterable[Sequence[tuple[int, int]]],
        augment: Augment,
        workers: int,
    ) -> Iterator[tuple[Tensor, Targets]]:
        """Yield the images at these positions, augmented by these seeds: float32 [B, C, H, W], with their targets."""
        images = _AnnotatedImages(self, source, references, preprocessing, augment)
        yield from make_loader(images, order, workers, _collated)


class _AnnotatedImages(Dataset[tuple[Tensor, dict[str, Tensor]]]):
    """Reads an image and its objects, and changes both by a seed."""

    def __init__(
        self,
        objects: LearntObjects,
        source: Any,
        references: Sequence[Reference],
        preprocessing: Mapping[str, Any],
        augment: Augment,
    ) -> None:
        self.objects, self.source, self.references = objects, source, references
        self.reading, self.transform = Reading.of(preprocessing), _transform(preprocessing, augment)
        fits = preprocessing.get("crop_mode") == CORNER and augment == "none"  # a crop has the size already
        height, width = preprocessing["input_size"][1:]
        self.size: tuple[int, int] | None = (height, width) if fits else None
        self.colour = [round(255 * mean) for mean in preprocessing["mean"]]

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
        position, seed = key
        picture = self.source.read(self.references[position], self.reading)
        objects = self.objects.of(self.source, self.references[position])
        size = (picture.height, picture.width)
        boxes = torch.tensor([entry.box for entry in objects], dtype=torch.float32).reshape(-1, 4)
        target: dict[str, Tensor] = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=size),
            "labels": torch.tensor([self.objects.label_of[entry.category] for entry in objects], dtype=torch.int64),
        }
        if self.objects.masks:
            masks = [mask_of(entry, *size) for entry in objects]
            target["masks"] = tv_tensors.Mask(torch.stack(masks) if masks else torch.zeros(0, *size, dtype=torch.uint8))
        if self.size is not None:
            picture, target = _fitted(picture, target, *self.size, self.colour)
        with seeded(seed):
            image, target = self.transform(picture, target)
        return image.as_subclass(Tensor), {name: value.as_subclass(Tensor) for name, value in target.items()}


def mask_of(entry: CocoObject, height: int, width: int) -> Tensor:
    """The mask of an object, of polygons or run lengths: ones and zeros [H, W].

    Raises:
        DataError: it is neither.
    """
    try:
        return torch.from_numpy(np.ascontiguousarray(_decoded(entry.mask, height, width)))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise DataError(
            f"an object of category {entry.category} has a mask that is neither polygons nor run lengths "
            f"({str(error)[:60]}); correct it, or write it again"
        ) from error


def _decoded(parts: Any, height: int, width: int) -> Any:
    from pycocotools import mask

    if isinstance(parts, list) or isinstance(parts["counts"], list):
        parts = mask.frPyObjects(parts, height, width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a warning of NumPy 2 about how pycocotools makes an array
        return mask.decode(mask.merge(parts) if isinstance(parts, list) else parts)


def _fitted(
    picture: Any, target: dict[str, Tensor], height: int, width: int, colour: list[int]
) -> tuple[Any, dict[str, Tensor]]:
    """Scale a picture and its objects to fit this size, and pad them on the right and below like `Letterbox`."""
    size = [*fitted_size(picture.height, picture.width, (height, width))]
    padding = [0, 0, width - size[1], height - size[0]]

    def fit(value: Any, fill: Any) -> Any:
        return v2.functional.pad(v2.functional.resize(value, size, antialias=False), padding, fill=fill)

    changed = {name: value if name == "labels" else fit(value, 0) for name, value in target.items()}
    return fit(v2.functional.to_image(picture), colour), changed


def _transform(preprocessing: Mapping[str, Any], augment: Augment) -> Any:
    """The training transform of images with objects; `training_transform` is that of images alone."""
    size, interpolation = list(preprocessing["input_size"][1:]), InterpolationMode(preprocessing["interpolation"])
    resize = (
        v2.Resize(size, interpolation)
        if augment == "none"
        else v2.RandomResizedCrop(size, (0.7, 1.0), interpolation=interpolation)
    )
    return v2.Compose([
        resize,
        *([v2.RandomHorizontalFlip()] if augment == "flip" else []),
        v2.ConvertBoundingBoxFormat("XYXY"),
        v2.ClampBoundingBoxes(),
        v2.SanitizeBoundingBoxes(),  # leaves out objects that the crop has cut off
        v2.ToImage(),
        v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        v2.Normalize([*preprocessing["mean"]], [*preprocessing["std"]]),
    ])  # fmt: skip


def _collated(items: list[tuple[Tensor, dict[str, Tensor]]]) -> tuple[Tensor, Targets]:
    images, targets = zip(*items, strict=True)
    return torch.stack(images), list(targets)
