"""Detectors that take prepared images: modules of the user's that give boxes and have no transform as torchvision's.

They get what torchvision's detectors have, so that the rest of the package need not tell them apart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.transforms.functional import to_pil_image

from edgevit.errors import UnsupportedModelError, is_out_of_memory
from edgevit.network.dense import returning
from edgevit.records.model import PreprocessingFields
from edgevit.records.preparing import image_transform

DETECTIONS = ("boxes", "labels", "scores")
Sizes = Sequence[tuple[int, int]]  # height and width of each image


def is_detections(outputs: object) -> bool:
    """Whether outputs are those of a detector: for each image a dict of boxes, labels and scores."""
    return isinstance(outputs, (list, tuple)) and all(isinstance(o, Mapping) and {*DETECTIONS} <= {*o} for o in outputs)


def has_transform(detector: nn.Module) -> bool:
    """Whether a detector prepares pictures itself, as torchvision's do; others take prepared images."""
    return hasattr(getattr(detector, "transform", None), "fixed_size")


def run_on(module: nn.Module, images: Tensor) -> tuple[Any, bool]:
    """What a module gives for images [B, C, H, W], or where it raises for them, for a list of them; and if it did."""
    try:
        return module(images), False
    except Exception as error:  # the user's code may raise anything
        if is_out_of_memory(error):
            raise
        try:
            return module([*images]), True
        except Exception as of_list:
            raise (of_list if is_out_of_memory(of_list) else error) from None  # mostly that of the usual form


def refuse_relative_boxes(detections: Sequence[Mapping[str, Tensor]], module: nn.Module, images: Tensor) -> None:
    """Refuse a detector whose boxes are not in pixels of these images [B, C, H, W], but in parts of them.

    Raises:
        UnsupportedModelError: all that it finds lies within one pixel.
    """
    largest = max((float(of_image["boxes"].max()) for of_image in detections if len(of_image["boxes"])), default=0.0)
    if 0 < largest <= 1:
        height, width = images.shape[2:]
        raise UnsupportedModelError(
            f"the boxes of this {type(module).__name__} lie within one pixel; give them in pixels of its {height} x "
            f"{width} images, as left, top, right and bottom"
        )


@dataclass(frozen=True)
class Squash:
    """A transform of torchvision's form, as the preprocessing of a model says, which squashes pictures to one size."""

    preprocessing: PreprocessingFields = field(default_factory=lambda: {"crop_pct": 1.0, "crop_mode": "squash"})

    def __call__(self, pictures: Sequence[Tensor], targets: None = None) -> tuple[ImageList, None]:
        """Prepare pictures [3, H, W] of values from 0 to 1; of another size than the network's, in 8 bits."""
        size, change = tuple(self.preprocessing["input_size"][1:]), image_transform(self.preprocessing)
        mean, std = (pictures[0].new_tensor(self.preprocessing[name])[:, None, None] for name in ("mean", "std"))
        prepared = [
            (picture - mean) / std if tuple(picture.shape[1:]) == size else change(to_pil_image(picture)).to(picture)
            for picture in pictures
        ]
        return ImageList(torch.stack(prepared), [size] * len(prepared)), None

    def postprocess(self, found: list[dict[str, Tensor]], sizes: Sizes, wanted: Sizes) -> list[dict[str, Tensor]]:
        """Bring boxes in pixels of prepared images to the sizes of the pictures."""
        placed = []
        for of_image, (height, width), (new_height, new_width) in zip(found, sizes, wanted, strict=True):
            if (height, width) != (new_height, new_width):
                ratios = of_image["boxes"].new_tensor([new_width / width, new_height / height] * 2)
                of_image = {**of_image, "boxes": of_image["boxes"] * ratios}
            placed.append(of_image)
        return placed


class PlainDetector(nn.Module):
    """A module of the user's that finds boxes in prepared images, in the form of torchvision's detectors.

    It finds no masks, and takes targets for images of its network's size alone.
    """

    def __init__(self, module: nn.Module, place: str, *, listed: bool) -> None:
        """`place`: name of the part that gives the levels. `listed`: whether the module takes a list of images."""
        super().__init__()
        self.module, self.place, self.listed = module, place, listed
        self.transform = Squash()

    @property
    def backbone(self) -> nn.Module:
        return self.module.get_submodule(self.place)

    def forward(self, pictures: Sequence[Tensor], targets: Any = None) -> Any:
        images, _ = self.transform(pictures)
        inputs = [*images.tensors] if self.listed else images.tensors
        if targets is not None:
            return self.module(inputs, targets)
        found = [{name: of_image[name] for name in DETECTIONS} for of_image in self.module(inputs)]
        sizes = [(picture.shape[1], picture.shape[2]) for picture in pictures]
        return self.transform.postprocess(found, images.image_sizes, sizes)


@torch.no_grad()
def adapted(module: nn.Module, network: str, input_size: Sequence[int]) -> PlainDetector:
    """Give a detector that takes prepared images the form of torchvision's.

    Its levels are what the part named `backbone` around its network gives, or the outermost such part.

    Args:
        network: the name of the network within the module.

    Raises:
        UnsupportedModelError: there is no such part.
    """
    images = torch.rand(2, *input_size, generator=torch.Generator().manual_seed(0))
    images = images.to(next(module.parameters()))
    names, (_, listed) = network.split("."), run_on(module, images)
    places = [".".join(names[:end]) for end in range(1, len(names) + 1)]
    for place in sorted(places, key=lambda place: place.rpartition(".")[2] != "backbone"):
        detector = PlainDetector(module, place, listed=listed)
        if _reads_levels(detector, images):
            return detector
    raise UnsupportedModelError(
        f"this {type(module).__name__} gives boxes, and none of {', '.join(places)} in it is called once, with the "
        "images alone, and gives features of them ([B, C, H, W] or [B, N, D]; one, a list or a dict) that are all the "
        "rest reads of it; make what computes these one module, its backbone, and call that, not a method of it such "
        "as forward_features"
    )


def _reads_levels(detector: PlainDetector, images: Tensor) -> bool:
    """Whether the backbone gives levels of these images, and the rest reads nothing else of it."""
    backbone, pictures = detector.backbone, [*images] if detector.listed else images
    calls, inside = list[tuple[Any, Any, Any]](), list[nn.Module]()
    with backbone.register_forward_hook(lambda _, *call: calls.append(call), with_kwargs=True):
        detector.module(pictures)
    if len(calls) != 1:
        return False
    ((inputs, options, levels),) = calls
    if options or len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not torch.equal(inputs[0], images):
        return False
    if type(levels) not in (Tensor, list, tuple, dict, OrderedDict) and not hasattr(levels, "feature_maps"):
        return False
    for level in (values := [*levels_by_name(levels).values()]):
        if not isinstance(level, Tensor) or level.ndim < 3 or len(level) != len(images):
            return False
    with ExitStack() as stack:
        for part in [*backbone.modules()][1:]:
            stack.enter_context(part.register_forward_hook(lambda part, *_: inside.append(part)))
        stack.enter_context(returning(backbone, levels))
        detector.module(pictures)
    return bool(values) and not inside


def levels_by_name(levels: Any) -> Mapping[str, Tensor]:
    """The levels that a backbone gives: one, several in order, by their names, or as a backbone of transformers."""
    levels = getattr(levels, "feature_maps", levels)
    if isinstance(levels, Mapping):
        return levels
    return {str(i): level for i, level in enumerate([levels] if isinstance(levels, Tensor) else levels)}


def levels_like(output: Any, levels: Mapping[str, Tensor]) -> Any:
    """Other levels, in the form of those that a backbone gave."""
    in_order = [*levels.values()]
    if isinstance(output, Tensor):
        return in_order[0]
    if hasattr(output, "feature_maps"):
        return type(output)(feature_maps=tuple(in_order))
    return OrderedDict(levels) if isinstance(output, Mapping) else type(output)(in_order)
