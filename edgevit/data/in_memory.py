"""Images that are not files: arrays, a torch data set, or a loader; written as a folder of classes to the cache.

`without_images` makes a task for methods that need only its classes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from edgevit.data.sources import Part, Reference
from edgevit.data.task import Split, Task
from edgevit.errors import DataError
from edgevit.records.model import TargetClass
from edgevit.records.reading import AS_STORED, Reading
from edgevit.records.writing import cache_folder, new_folder

_EXPECTED = (
    "a folder, a pair (images [N, H, W, 3] of bytes, labels [N]), a data set of (picture, label), or a DataLoader of "
    "batches (images [B, 3, H, W] as the network reads them, labels [B]); for features, labels may be missing"
)
_ROUNDING = 0.02  # how far values of a loader may leave [0, 1] once mean and deviation are undone


@dataclass(frozen=True)
class WrittenImages:
    """The folder of images, and what is known of them."""

    folder: Path
    class_names: tuple[str, ...]  # names of labels 0, 1, ..., without gaps
    resized: bool  # whether they already have the size that the network reads


@dataclass(frozen=True)
class PreparedImages:
    """How the network reads images, as a loader has prepared them."""

    size: Sequence[int]  # [3, H, W]
    mean: Sequence[float]
    std: Sequence[float]


def write_images(data: Any, prepared: PreparedImages, *, function: str, labelled: bool = True) -> WrittenImages:
    """Write images and labels to the cache, under a name by their content; the same images are written once.

    A loader is read once; its values are taken back to bytes by mean and deviation. With `labelled` false the images
    may come without labels, and are of one class.

    Raises:
        TypeError: the data is of another kind.
        DataError: values or labels are wrong, or images of a loader have another size.
    """
    names = getattr(getattr(data, "dataset", data), "classes", None) if labelled else None
    pairs = list(_pairs(data, prepared, function, labelled))
    if not pairs:
        raise DataError(f"the data given to {function} has no images")
    labels = [label for _, label in pairs]
    if names is None:
        width = len(str(max(labels)))
        names = [f"{label:0{width}}" for label in range(max(labels) + 1)]
    if max(labels) >= len(names):
        raise DataError(f"label {max(labels)} is none of the {len(names)} classes of the data given to {function}")
    content = hashlib.sha256("\n".join(sorted(f"{names[label]} {name}" for (name, _), label in pairs)).encode())
    folder = cache_folder("images") / content.hexdigest()[:16]
    if not folder.is_dir():
        with new_folder(folder) as temporary:
            for (name, png), label in pairs:
                (temporary / names[label]).mkdir(exist_ok=True)
                (temporary / names[label] / f"{name}.png").write_bytes(png)
    return WrittenImages(folder, tuple(map(str, names)), isinstance(data, DataLoader))


def write_targets(data: Any, prepared: PreparedImages, *, function: str) -> WrittenImages:
    """Write the batches (images, targets [B, H, W]) of a loader to the cache: `images/`, and `masks/` in NumPy's form.

    Raises:
        TypeError: the data is no loader of such batches.
        DataError: values are wrong, or images have another size.
    """
    expected = (
        f"{function} judges maps by their targets: give a DataLoader of batches (images [B, 3, H, W], targets "
        "[B, H, W]), or a folder with images/ and masks/ of the same names"
    )
    if not isinstance(data, DataLoader):
        raise TypeError(f"{expected}; it was given a {type(data).__name__}")
    pictures, masks = list[bytes](), list[Any]()
    for batch in data:
        pair = [part for part in batch if isinstance(part, torch.Tensor)] if isinstance(batch, (list, tuple)) else []
        if len(pair) != 2:
            raise TypeError(f"{expected}; a batch is a {type(batch).__name__} of {len(pair)} tensors")
        images, targets = pair[0], pair[1].detach().cpu().numpy()
        targets = targets[:, 0] if targets.ndim == 4 and targets.shape[1] == 1 else targets
        if targets.shape != (len(images), *images.shape[2:]):
            raise DataError(f"{expected}; they are {list(images.shape)} and {list(targets.shape)}")
        pictures += [png for _, png in _of_batch(images, prepared, function)]
        masks += [*targets]
    if not pictures:
        raise DataError(f"the data given to {function} has no images")
    content = hashlib.sha256()
    for png, mask in zip(pictures, masks, strict=True):
        content.update(png + str(mask.dtype).encode() + np.ascontiguousarray(mask).tobytes())
    folder = cache_folder("images") / content.hexdigest()[:16]
    if not folder.is_dir():
        with new_folder(folder) as temporary:
            for part in ("images", "masks"):
                (temporary / part).mkdir()
            for i, (png, mask) in enumerate(zip(pictures, masks, strict=True)):
                (temporary / "images" / f"{i:06}.png").write_bytes(png)
                np.save(temporary / "masks" / f"{i:06}.npy", mask)
    return WrittenImages(folder, (), resized=True)


class _Nothing:
    """A source of no images."""

    class_names: Sequence[str] = ()
    parts: tuple[Part, ...] = ("train", "validation", "test")
    files = False

    def references(self, part: Part, class_name: str) -> list[Reference]:
        return []

    def read(self, reference: Reference, reading: Reading = AS_STORED) -> Image.Image:
        raise AssertionError(f"image {reference} is in no list")


def without_images(classes: Sequence[TargetClass], preprocessing: Mapping[str, Any]) -> Task:
    """Make a task of these classes, whose three parts are empty."""
    empty = Split(_Nothing(), (), (), preprocessing)
    return Task(tuple(classes), empty, empty, empty, {})


def _pairs(
    data: Any, prepared: PreparedImages, function: str, labelled: bool
) -> Iterator[tuple[tuple[str, bytes], int]]:
    """Each image as (name by its content, PNG), and its label; with `labelled` false that is 0."""
    if not labelled and (isinstance(data, np.ndarray) or (isinstance(data, tuple) and len(data) == 2)):
        data = _with_zeros(data)
    if isinstance(data, DataLoader):
        for batch in data:
            batch = batch if labelled else _with_zeros(batch)
            if not (isinstance(batch, (list, tuple)) and len(batch) == 2 and isinstance(batch[0], torch.Tensor)):
                raise TypeError(f"{function} takes a DataLoader of batches (images, labels)")
            yield from zip(_of_batch(batch[0], prepared, function), _labels(batch[1]), strict=True)
    elif isinstance(data, tuple) and len(data) == 2:
        images, labels = np.asarray(data[0]), _labels(data[1])
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or len(images) != len(labels):
            raise DataError(
                f"images of type {images.dtype} and shape {list(images.shape)} with {len(labels)} labels, expected "
                f"bytes [N, H, W, 3] and N labels"
            )
        yield from zip(map(_png, images), labels, strict=True)
    elif isinstance(data, Dataset) or (isinstance(data, Sequence) and not isinstance(data, (str, bytes))):
        items: Iterable[Any] = (data[i] for i in range(len(data)))  # type: ignore[arg-type]
        for picture, label in items if labelled else map(_with_zero, items):
            if not isinstance(picture, Image.Image):
                raise TypeError(
                    f"{function} takes a data set of PIL images and labels, and its images are "
                    f"{type(picture).__name__}; give it without a transform, or a DataLoader of it"
                )
            yield _png(np.asarray(picture.convert("RGB"))), int(label)
    else:
        raise TypeError(f"{function} takes as data {_EXPECTED}; it was given a {type(data).__name__}")


def _with_zero(item: Any) -> tuple[Any, int]:
    """An item without its label, and 0."""
    return (item[0] if isinstance(item, (list, tuple)) else item), 0


def _with_zeros(batch: Any) -> tuple[Any, Any]:
    """A batch without its labels, and as many zeros."""
    images = batch[0] if isinstance(batch, (list, tuple)) else batch
    return images, np.zeros(len(images), np.int64)


def _labels(labels: Any) -> list[int]:
    numbers = np.asarray(labels)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer) or (numbers < 0).any():
        raise DataError(f"labels of type {numbers.dtype} and shape {list(numbers.shape)}, expected classes from 0 on")
    return [int(number) for number in numbers]


def _of_batch(images: torch.Tensor, prepared: PreparedImages, function: str) -> Iterator[tuple[str, bytes]]:
    """The images of a batch [B, 3, H, W], whose mean and deviation are undone."""
    if list(images.shape[1:]) != [*prepared.size]:
        size, expected = ("x".join(map(str, size)) for size in (images.shape[1:], prepared.size))
        raise DataError(
            f"the loader given to {function} has images of {size}, and the network reads {expected}: resize them in "
            "its transform, or give its data set of pictures without one"
        )
    mean, std = list(prepared.mean), list(prepared.std)
    scale, shift = (torch.tensor(values).view(1, 3, 1, 1) for values in (std, mean))
    values = images.detach().cpu().float() * scale + shift
    lowest, highest = float(values.min()), float(values.max())
    if not (lowest >= -_ROUNDING and highest <= 1 + _ROUNDING):
        raise DataError(
            f"values from {lowest:.2f} to {highest:.2f} once mean {mean} and deviation {std} are undone, "
            "expected 0 to 1: the loader normalises otherwise; give mean and std as it does"
        )
    for image in (values.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy():
        yield _png(image)


def _png(image: Any) -> tuple[str, bytes]:
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(stream, "png", compress_level=1)
    return hashlib.sha256(stream.getvalue()).hexdigest()[:20], stream.getvalue()
