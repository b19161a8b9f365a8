"""Predictions of images: names, probabilities, and rejection."""

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

Picture = str | PathLike[str] | Image.Image  # path of a file, or a PIL image of any mode


@dataclass(frozen=True)
class Prediction:
    """The prediction of one image."""

    name: str  # the most probable target class, or `other`
    probabilities: dict[str, float]  # of the target classes in descending order; their sum is 1
    rejected: bool  # whether the rule of the model classifies it as `other`; it does not change probabilities


def predictions_of(logits: Tensor, spec: ModelSpec) -> list[Prediction]:
    """Name each image by its logits [B, outputs].

    Raises:
        UnsupportedModelError: the model is a base without class names.
        ModelError: a logit is not finite.
    """
    if not spec.classes:
        raise UnsupportedModelError("a base has no class names; give a derived model's folder")
    chosen, names = logits.detach()[:, spec.class_columns].float().cpu(), spec.class_names
    if not bool(torch.isfinite(chosen).all()):
        raise ModelError("the model's logits are not finite; if the images are, derive the model again")
    rejected = spec.rejection.rejects(chosen).tolist() if spec.rejection else [False] * len(chosen)
    predictions = []
    for odds, is_other in zip(chosen.softmax(1), rejected, strict=True):
        order = odds.argsort(descending=True, stable=True).tolist()
        values = odds.tolist()
        name = OTHER if is_other else names[order[0]]
        predictions.append(Prediction(name, {names[i]: values[i] for i in order}, is_other))
    return predictions


def rgb_images(pictures: Picture | Iterable[Picture], reading: Reading = AS_STORED) -> Iterator[Image.Image]:
    """Read pictures one by one, like the images of a derivation.

    Raises:
        DataError: one cannot be read, or is not a picture.
    """
    if isinstance(pictures, (str, PathLike, Image.Image)):
        pictures = [pictures]
    if not isinstance(pictures, Iterable):
        raise DataError(f"cannot predict a {type(pictures).__name__}; give paths of image files, or PIL images")
    for position, picture in enumerate(pictures):
        if isinstance(picture, Image.Image):
            with reading_picture(f"image {position}", "give another, or leave it out"):
                picture.load()  # the file may be opened but not read
                rgb = to_rgb(picture, reading)
            yield rgb
        elif isinstance(picture, (str, PathLike)):
            yield read_picture(picture, "give the path of an image file", reading)
        else:
            raise DataError(
                f"image {position} is a {type(picture).__name__}; give paths of image files, or PIL images "
                f"(PIL.Image.fromarray makes one of an array)"
            )
