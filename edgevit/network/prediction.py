"""What a model says of images: names, probabilities, and whether it takes an image for none of its classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike

import torch
from PIL import Image
from torch import Tensor

from edgevit.errors import DataError, ModelError, UnsupportedModelError
from edgevit.network.rejection import OTHER
from edgevit.records.model import ModelSpec
from edgevit.records.pictures import read_picture, reading_picture, to_rgb
from edgevit.records.reading import AS_STORED, Reading

Picture = str | PathLike[str] | Image.Image  # a file's path, or a PIL image of any mode


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image."""

    name: str  # the most probable target class, or `other`
    probabilities: dict[str, float]  # of each target class, the most probable first; they add up to 1
    rejected: bool  # whether the model's own rule calls it `other`; the probabilities are what they are without it


def predictions_of(logits: Tensor, spec: ModelSpec) -> list[Prediction]:
    """Name each image by its logits [B, outputs].

    Raises:
        UnsupportedModelError: the model is a base, which knows no names.
        ModelError: a logit is not a finite number.
    """
    if not spec.classes:
        raise UnsupportedModelError("a base has no class names; give a derived model's folder")
    chosen, names = logits.detach()[:, spec.class_columns].float().cpu(), spec.class_names
    if not bool(torch.isfinite(chosen).all()):
        raise ModelError("the model's logits are not finite numbers; if the images are, derive the model again")
    rejected = spec.rejection.rejects(chosen).tolist() if spec.rejection else [False] * len(chosen)
    judged = []
    for odds, other in zip(chosen.softmax(1), rejected, strict=True):
        order = odds.argsort(descending=True, stable=True).tolist()
        values = odds.tolist()
        judged.append(Prediction(OTHER if other else names[order[0]], {names[i]: values[i] for i in order}, other))
    return judged


def rgb_images(pictures: Picture | Iterable[Picture], reading: Reading = AS_STORED) -> Iterator[Image.Image]:
    """Read pictures one by one, as the data that models are derived from is read.

    Raises:
        DataError: one cannot be read, or is none.
    """
    if isinstance(pictures, (str, PathLike, Image.Image)):
        pictures = [pictures]
    if not isinstance(pictures, Iterable):
        raise DataError(f"cannot predict a {type(pictures).__name__}; give paths of image files, or PIL images")
    for position, picture in enumerate(pictures):
        if isinstance(picture, Image.Image):
            with reading_picture(f"image {position}", "give another, or leave it out"):
                picture.load()  # a file that was opened and not read yet
                rgb = to_rgb(picture, reading)
            yield rgb
        elif isinstance(picture, (str, PathLike)):
            yield read_picture(picture, "give the path of an image file", reading)
        else:
            raise DataError(
                f"image {position} is a {type(picture).__name__}; give paths of image files, or PIL images "
                f"(PIL.Image.fromarray makes one of an array)"
            )
