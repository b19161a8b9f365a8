"""Detectors: a module of the user's that finds boxes, whose backbone gives a pyramid of features.

What counts in a derivation is the pyramid: what reads it stays as it is, and finds the same boxes where the levels are
the same. So the network that is measured and cut is `Pyramid`, which stops behind the backbone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.models.detection.ssd import SSD
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from edgevit.errors import UnsupportedModelError, is_out_of_memory
from edgevit.network.layers import counted_macs
from edgevit.network.padding import PictureAreas, picture_areas
from edgevit.network.plain_detector import PlainDetector, Squash, levels_by_name, levels_like
from edgevit.network.weights import first_line
from edgevit.records.model import PreprocessingFields
from edgevit.records.preparing import CORNER, fitted_size
from edgevit.records.release import PREPROCESSING_KEYS


class Letterbox(GeneralizedRCNNTransform):  # type: ignore[misc]
    """A detector's transform to images of one size: each is scaled to fit, and padded on the right and below."""

    def __init__(self, transform: GeneralizedRCNNTransform, height: int, width: int) -> None:
        super().__init__(
            transform.min_size, transform.max_size, transform.image_mean, transform.image_std, transform.size_divisible
        )
        self.height, self.width = height, width

    def resize(self, image: Tensor, target: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor] | None]:
        height, width = fitted_size(image.shape[-2], image.shape[-1], (self.height, self.width))
        self.fixed_size: tuple[int, int] | None = (width, height)
        try:
            resized: tuple[Tensor, dict[str, Tensor] | None] = super().resize(image, target)
        finally:
            self.fixed_size = None
        return resized

    def batch_images(self, images: list[Tensor], size_divisible: int = 32) -> Tensor:
        batch = images[0].new_zeros(len(images), images[0].shape[0], self.height, self.width)
        for whole, image in zip(batch, images, strict=True):
            whole[:, : image.shape[1], : image.shape[2]] = image
        return batch


def takes_several_sizes(detector: nn.Module) -> bool:
    """Whether its transform resizes by the shorter side, so that images have several sizes."""
    transform = getattr(detector, "transform", None)
    several = isinstance(transform, GeneralizedRCNNTransform) and transform.fixed_size is None
    return several and not isinstance(transform, Letterbox)


def letterbox(detector: nn.Module, input_size: tuple[int, ...]) -> None:
    """Have a detector take images of one size, that of its network, in place of several."""
    transform = detector.transform
    assert isinstance(transform, GeneralizedRCNNTransform)
    detector.transform = Letterbox(transform, *input_size[1:])


class Pyramid(nn.Module):
    """A detector up to its pyramid: images [B, C, H, W], as its transform prepares them, to all levels [B, values].

    The levels follow each other, in the order in which the backbone gives them.
    """

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor, targets: Any = None) -> Any:
        """With targets, in training mode, also return the detector's own losses by their names."""
        if targets is not None:
            return self._losses(images, targets)
        return _joined(self.detector.backbone(images))  # type: ignore[operator]

    def _losses(self, images: Tensor, targets: Any) -> tuple[Tensor, dict[str, Tensor]]:
        given: list[Any] = []
        backbone: Any = self.detector.backbone
        with backbone.register_forward_hook(lambda _, inputs, levels: given.append(levels)):
            losses = self.detect(images, targets)
        (levels,) = given
        return _joined(levels), losses

    def detect(self, images: Tensor, *targets: Any) -> Any:
        """What the whole detector gives for prepared images [B, C, H, W]: boxes, or with targets its losses."""
        mean, std = (torch.tensor(self.preprocessing[name]).to(images)[:, None, None] for name in ("mean", "std"))
        return self.detector([*(images * std + mean)], *targets)  # its transform normalises them again

    def loss_fault(self, input_size: Sequence[int], label: int) -> str | None:
        """Why a module of the user's has no losses of objects with such a label; None: it has, as torchvision's do."""
        if not isinstance(self.detector, PlainDetector):
            return None
        copied, noun = copy.deepcopy(self).train(), f"this {type(self.detector.module).__name__}"
        image = next(self.parameters()).new_zeros(1, *input_size)
        box = image.new_tensor([[0.0, 0.0, input_size[2] / 2, input_size[1] / 2]])
        try:
            _, losses = copied(image, [{"boxes": box, "labels": torch.tensor([label], device=image.device)}])
            torch.autograd.backward(torch.stack([*losses.values()]).sum())
        except Exception as error:  # the user's code may raise anything
            if is_out_of_memory(error):
                raise
            return (
                f"{noun}, called in training mode with images and targets (label {label}), gives no dict of them "
                f"({first_line(error, 100)})"
            )
        return None

    def areas(self, images: Tensor) -> PictureAreas | None:
        """Where prepared images [B, C, H, W] are no padding; None: no image has any."""
        preprocessing = self.preprocessing
        return picture_areas(images, preprocessing["std"]) if preprocessing["crop_mode"] == CORNER else None

    def levels(self, images: Tensor) -> dict[str, Tensor]:
        """The levels [B, C, H, W] by their names in an exported file."""
        return {f"level_{name}": level for name, level in self._named(images).items()}

    def _named(self, images: Tensor) -> Mapping[str, Tensor]:
        return levels_by_name(self.detector.backbone(images))  # type: ignore[operator]

    def before_boxes(self, images: Tensor) -> list[object]:
        """What the detector computes of prepared images [B, C, H, W] before it knows of boxes.

        These are the levels, and what torchvision's detectors of one or two stages make of all of them.
        """
        levels = [*self._named(images).values()]
        parts = (self.detector, getattr(self.detector, "rpn", None))
        readers = [part for part in parts if isinstance(part, (FCOS, RetinaNet, SSD, RegionProposalNetwork))]
        return [levels, *(reader.head(levels) for reader in readers)]

    @contextmanager
    def reading(self, predict: Callable[[Tensor], Tensor], images: Tensor) -> Iterator[None]:
        """Have the detector read the levels that a function gives [B, values], such as those of a file.

        Args:
            images: one or more, of which only the sizes of the levels matter.
        """
        backbone: Any = self.detector.backbone
        given = backbone(images)
        sizes = {name: level.shape[1:] for name, level in levels_by_name(given).items()}

        def forward(images: Tensor) -> Any:
            parts = torch.split(predict(images).to(images), [size.numel() for size in sizes.values()], 1)
            levels = [part.reshape(-1, *size) for part, size in zip(parts, sizes.values(), strict=True)]
            return levels_like(given, dict(zip(sizes, levels, strict=True)))

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
    def own_preprocessing(self) -> tuple[str, ...]:
        """The settings that are the detector's own, and not stated by a user."""
        return ("crop_pct",) if isinstance(self.detector, PlainDetector) else PREPROCESSING_KEYS

    def prepare_as(self, preprocessing: PreprocessingFields) -> None:
        """Set how pictures are prepared for a detector that does not itself prepare them."""
        if isinstance(self.detector, PlainDetector):
            self.detector.transform = Squash(preprocessing)

    @property
    def preprocessing(self) -> PreprocessingFields:
        """The settings of a transform that prepares images as the detector's does.

        Where all images have one size, it is timm's, which resizes with antialiasing. Those of a detector that takes
        prepared images may lack what its network says.
        """
        transform: Any = self.detector.transform
        if isinstance(transform, Squash):
            return transform.preprocessing
        fits = isinstance(transform, Letterbox)
        return {
            "interpolation": "bilinear", "mean": tuple(map(float, transform.image_mean)),
            "std": tuple(map(float, transform.image_std)), "crop_pct": 1.0, "crop_mode": CORNER if fits else "squash",
        }  # fmt: skip


def _joined(levels: Any) -> Tensor:
    """All levels one after the other, as a backbone gives them: [B, values]."""
    return torch.cat([level.flatten(1) for level in levels_by_name(levels).values()], 1)


@torch.no_grad()
def rest_macs(pyramid: Pyramid, input_size: Sequence[int]) -> tuple[int, int] | None:
    """MACs of what reads the pyramid of one image, and the number of proposals; None: its parts are not torchvision's.

    Heads are counted at the number of boxes that the detector itself is limited to when it is tested, or that a module
    of the user's in place of `rpn` proposes for a random image.
    """
    try:
        macs, runs = 0, rest_runs(pyramid, input_size)
        for times, run in runs:
            macs += times * counted_macs(pyramid, run)
        return macs, runs[1][0] if len(runs) > 1 else 0  # the second runs for each proposal
    except (AttributeError, TypeError):
        return None


def rest_runs(pyramid: Pyramid, input_size: Sequence[int]) -> list[tuple[int, Callable[[], object]]]:
    """The parts that read the pyramid, each as a function that runs it once, with how often it runs for an image.

    Raises:
        AttributeError, TypeError: the parts are not torchvision's.
    """
    detector: Any = pyramid.detector
    levels = pyramid._named(next(pyramid.parameters()).new_zeros(1, *input_size))
    if hasattr(detector, "head"):  # a detector of one stage
        return [(1, lambda: detector.head([*levels.values()]))]
    heads, (propose, proposals) = detector.roi_heads, _proposing(detector, levels, input_size)
    box = next(iter(levels.values())).new_tensor([[0.0, 0.0, 1.0, 1.0]])

    def of_box(pool: Any, *parts: Any) -> None:
        values = pool(levels, [box], [tuple(input_size[1:])])
        for part in parts:
            values = part(values)

    runs: list[tuple[int, Callable[[], object]]] = [
        (1, propose),
        (proposals, lambda: of_box(heads.box_roi_pool, heads.box_head, heads.box_predictor)),
    ]
    if pyramid.has_masks:
        pool = heads.mask_roi_pool or heads.box_roi_pool
        runs.append((heads.detections_per_img, lambda: of_box(pool, heads.mask_head, heads.mask_predictor)))
    return runs


def _proposing(
    detector: Any, levels: Mapping[str, Tensor], input_size: Sequence[int]
) -> tuple[Callable[[], object], int]:
    """A function that runs what proposes boxes for one image, and the most boxes that it proposes.

    That is torchvision's network over the levels, or as in a Fast R-CNN a module of the user's, called alike.

    Raises:
        AttributeError, TypeError: it is neither.
    """
    rpn = detector.rpn
    if hasattr(rpn, "head"):
        return (lambda: rpn.head([*levels.values()])), int(rpn.post_nms_top_n())
    image = torch.rand(1, *input_size, generator=torch.Generator().manual_seed(0))
    images = ImageList(image.to(next(iter(levels.values()))), [(input_size[1], input_size[2])])
    (boxes,), _ = rpn(images, levels)
    if not len(boxes):
        raise TypeError("no box is proposed")
    return (lambda: rpn(images, levels)), len(boxes)


def check_detector(module: nn.Module, input_size: tuple[int, ...]) -> None:
    """Check that a detector with a transform has a backbone, and that it is to the one size that its network takes.

    Raises:
        UnsupportedModelError: it has not.
    """
    noun, (height, width) = f"this {type(module).__name__}", input_size[1:]
    transform: Any = getattr(module, "transform", None)
    if not isinstance(getattr(module, "backbone", None), nn.Module):
        raise UnsupportedModelError(
            f"{noun} has a transform as torchvision's detectors, and no backbone; build it as they are, with its "
            "network in the backbone"
        )
    fixed, divisor = transform.fixed_size, transform.size_divisible
    if isinstance(transform, Letterbox):
        fixed = (transform.width, transform.height)
    if fixed is None or tuple(fixed) != (width, height) or height % divisor or width % divisor:
        size = f"fixed_size={tuple(fixed)}" if fixed is not None else f"min_size={transform.min_size}"
        raise UnsupportedModelError(
            f"{noun} resizes images to {size}, padded to multiples of {divisor}, and its network takes {height} x "
            f"{width}; give it fixed_size=({width}, {height}) and a size_divisible that divides both"
        )
