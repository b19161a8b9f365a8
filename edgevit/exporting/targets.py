"""Target maps: for each image of `images/` in a folder, the file of the same name, whatever its suffix, in `masks/`.

A target is a picture of one channel. Its pixels are foreground (where brighter than half of the brightest pixel), the
numbers of classes (pixels of 255, or of less than 0, are not judged), or values from 0 to 1. Values of another unit are
NumPy arrays [H, W] in `.npy` files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_transform
from torch import Tensor, nn

from edgevit.data.sources import IMAGES, MASKS, has_masks, open_pictures
from edgevit.data.task import UNLABELLED, Split
from edgevit.errors import DataError, ModelError, is_out_of_memory
from edgevit.network.output import Map
from edgevit.network.weights import first_line
from edgevit.progress import Progress
from edgevit.records.derivation import MapScore
from edgevit.records.pictures import UNREADABLE, open_picture
from edgevit.records.reading import transform_settings
from edgevit.records.writing import file_sha256

_UNJUDGED = 255  # the number of pixels that belong to no class, as in PASCAL VOC and Cityscapes


@dataclass(frozen=True)
class Targets:
    """Images, each with the file of its target."""

    images: Split
    files: tuple[Path, ...]

    def sha256(self, count: int | None = None) -> str:
        """Hash the files of the first targets, or of all."""
        return hashlib.sha256(" ".join(map(file_sha256, self.files[:count])).encode()).hexdigest()


def find_targets(data: str | Path | None, preprocessing: Mapping[str, Any]) -> Targets | None:
    """Find the images and their targets in a folder; None: it has no masks.

    Raises:
        DataError: an image has no target, or several.
    """
    if data is None or not has_masks(data):
        return None
    source = open_pictures(Path(data) / IMAGES)
    images = [r for part in source.parts for name in source.class_names for r in source.references(part, name)]
    return targets_of(Split(source, tuple(images), (UNLABELLED,) * len(images), preprocessing), data)


def targets_of(images: Split, data: str | Path) -> Targets:
    """Find the targets of some images of a folder that has masks; raises as `find_targets` does."""
    masks: dict[Path, list[Path]] = {}
    for file in sorted((Path(data) / MASKS).rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            masks.setdefault(file.relative_to(Path(data) / MASKS).with_suffix(""), []).append(file)
    files = []
    for image in map(str, images.references):
        stem = Path(image).relative_to(Path(data) / IMAGES).with_suffix("")
        of_image = masks.get(stem, [])
        if len(of_image) != 1:
            named = " and ".join(file.name for file in of_image) or "none"
            raise DataError(f"{image} needs one target, {Path(data) / MASKS / stem}.png or .npy, and has {named}")
        files += of_image
    return Targets(images, tuple(files))


def _values(file: Path, output: Map) -> np.ndarray[Any, Any]:
    """Read a target: [H, W] in fp32.

    Raises:
        DataError: it cannot be read, or not be understood.
    """
    try:
        if file.suffix == ".npy":
            values = np.load(file, allow_pickle=False)
        else:
            with open_picture(file) as picture:
                values = np.asarray(picture)
    except UNREADABLE as error:
        raise DataError(f"cannot read {file}: {error}; replace it, or leave its image out") from error
    if values.ndim != 2 or not (values.dtype == bool or np.issubdtype(values.dtype, np.number)):
        raise DataError(f"{file} has the shape {list(values.shape)}, expected one number per pixel, [height, width]")
    numbers: np.ndarray[Any, Any] = values.astype(np.float32)
    if output.kind == "foreground":
        numbers = (numbers > numbers.max() / 2).astype(np.float32)
        return numbers
    if output.kind == "classes" or file.suffix == ".npy" or values.dtype == bool:
        return numbers
    if values.dtype != np.uint8:
        raise DataError(
            f"{file} has {values.dtype} pixels, and values of a map are from 0 to 1; give a .npy file of them"
        )
    numbers /= 255
    return numbers


def _refuse_others(file: Path, values: np.ndarray[Any, Any], classes: int) -> None:
    """Raise DataError if a target [H, W] has a number that is no class, other than those that are not judged."""
    strange = np.unique(values[(values % 1 != 0) | ((values >= classes) & (values != _UNJUDGED))])
    if len(strange):
        seen = f"{strange[0]:g}" if len(strange) == 1 else f"{strange[0]:g} to {strange[-1]:g}"
        raise DataError(
            f"{file} has labels that are no classes: {seen}, expected 0 to {classes - 1}, or {_UNJUDGED} for pixels "
            "that are not judged; number them as the map's channels"
        )


def read_targets(targets: Targets, output: Map, positions: range, classes: int | None = None) -> Tensor:
    """Read the targets of some images, resized and cropped as the images are: [B, H, W].

    Args:
        classes: the number of classes; None: pixels may have any number.

    Raises:
        DataError: one cannot be read, is not as large as its image, or has a number that is no class.
    """
    settings = transform_settings(targets.images.preprocessing)
    transform: Callable[[Image.Image], Tensor] = create_transform(
        **{**settings, "interpolation": "nearest", "mean": (0.0,), "std": (1.0,)}, is_training=False
    )
    read = []
    for i in positions:
        values, picture = _values(targets.files[i], output), targets.images.picture(i)
        if values.shape[::-1] != picture.size:
            sizes = " x ".join(map(str, values.shape[::-1])), " x ".join(map(str, picture.size))
            raise DataError(f"{targets.files[i]} is {sizes[0]}, and its image {sizes[1]}; resize it to that")
        if classes is not None:
            _refuse_others(targets.files[i], values, classes)
        read.append(transform(Image.fromarray(values))[0])
    return torch.stack(read)


def own_score(module: nn.Module, maps: Tensor, targets: Tensor) -> Tensor:
    """Score maps [B, C, H, W] against their targets [B, H, W] by the function `score` of the user's module: [B].

    Raises:
        DataError: it raises an error, or returns anything but a finite number for each map.
    """
    try:
        scores = module.score(maps, targets)  # type: ignore[operator]
    except Exception as error:  # the user's code may raise any
        if is_out_of_memory(error):
            raise
        raise DataError(
            f"score of {type(module).__name__} raised {type(error).__name__}: {first_line(error, 200)}; correct it"
        ) from error
    if not isinstance(scores, Tensor) or scores.shape != (len(maps),) or not bool(scores.isfinite().all()):
        shown = f"a tensor {list(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise DataError(
            f"score of {type(module).__name__} returns {shown} for {len(maps)} maps, expected a finite number for each"
        )
    return scores.float()


def score_maps(output: Map, maps: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
    """Score maps [B, C, H, W] against their targets [B, H, W], and take their mean absolute errors: [B] each.

    The score is NaN where no pixel is judged.

    Raises:
        DataError: they differ in size.
    """
    channels = maps.shape[1]
    shape, expected = (" x ".join(map(str, sizes)) for sizes in (maps.shape[1:], targets.shape[1:]))
    if maps.shape[-2:] != targets.shape[-2:]:
        raise DataError(
            f"the map of an image is {shape}, and its target {expected}; give targets of that size, or end the head "
            "with an interpolation to the size of the image"
        )
    if channels > 1 and output.kind != "classes":
        raise DataError(
            f"the map of an image is {shape}, and its target {expected}; give a map of one channel, or if its channels "
            "are logits of classes derive or import it with --output map:classes"
        )
    if output.kind == "classes":
        judged = (targets >= 0) & (targets < channels)
        right = (output.answers(maps) == targets) & judged
        return right.flatten(1).sum(1) / judged.flatten(1).sum(1), None
    error = (output.shown(maps)[:, 0] - targets).abs().flatten(1).mean(1)
    return output.score(maps, targets if output.kind == "foreground" else targets[:, None]), error


def class_overlaps(output: Map, maps: Tensor, targets: Tensor) -> Tensor:
    """Count the pixels where maps [B, C, H, W] and targets [B, H, W] both have a class, and where one has: [2, C].

    Pixels whose target is no class of the map are not judged.
    """
    classes = maps.shape[1]
    judged = (targets >= 0) & (targets < classes)
    found, expected = output.answers(maps)[judged], targets[judged]
    both, of_maps, of_targets = (
        chosen.long().bincount(minlength=classes) for chosen in (found[found == expected], found, expected)
    )
    return torch.stack([both, of_maps + of_targets - both])


def mean_iou(overlaps: Tensor) -> float | None:
    """The mean IoU of the classes that occur, by the sum of their `class_overlaps`; None: no pixel is judged."""
    both, either = overlaps[:, overlaps[1] > 0]
    return float((both / either).mean()) if len(either) else None


def judge_maps(
    predict: Callable[[Tensor], Tensor],
    output: Map,
    targets: Targets,
    module: nn.Module | None,
    *,
    owner: str,
    batch_size: int,
    count: int | None = None,
    progress: Progress,
) -> MapScore:
    """Score maps against their targets, by the `score` of the user's module if there is one.

    Args:
        owner: the model, for messages.
        count: how many images, the first; None: all.

    Raises:
        ModelError: a map is not finite.
        DataError: maps and targets differ in size, or no pixel of them is judged.
    """
    images = targets.images
    total = len(images) if count is None else min(count, len(images))
    batches = [range(i, min(i + batch_size, total)) for i in range(0, total, batch_size)]
    scores, errors, overlaps = list[Tensor](), list[Tensor](), list[Tensor]()
    with progress.stage("evaluate", total, "image") as stage, torch.inference_mode():
        for positions, (batch, _) in zip(batches, images.read(batches), strict=True):
            maps = predict(batch).float().cpu()
            if not bool(maps.isfinite().all()):
                raise ModelError(f"{owner}: its maps of test images are not finite; derive or export it again")
            is_of_classes = output.kind == "classes" and module is None
            expected = read_targets(targets, output, positions, maps.shape[1] if is_of_classes else None)
            if module is not None:
                scores.append(own_score(module, maps, expected))
            else:
                score, error = score_maps(output, maps, expected)
                scores.append(score)
                errors += [] if error is None else [error]
                overlaps += [class_overlaps(output, maps, expected)] if output.kind == "classes" else []
            stage.update(positions.stop)
    mean_error = float(torch.cat(errors).mean()) if errors else None
    of_images = torch.cat(scores)
    if output.kind == "classes":
        of_images = of_images[~of_images.isnan()]
        if not len(of_images):
            raise DataError(
                f"none of the {total} targets in {targets.files[0].parent} has a pixel of a class; give others"
            )
    iou = mean_iou(torch.stack(overlaps).sum(0)) if overlaps else None
    own = module is not None
    return MapScore(float(of_images.mean()), mean_error, own, iou, targets.sha256(total))
