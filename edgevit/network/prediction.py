"""Predictions of images: names, probabilities, and rejection.

Rejection: an image whose score is below a threshold is classified as `other`. The score is the log-sum-exp of the
logits of the target classes, the negative free energy of Liu et al. (2020). It uses the magnitude of the logits, which
softmax discards, and which separates images of other classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike

import torch
from PIL import Image
from torch import Tensor

from edgevit.errors import DataError, ModelError, OptionError, UnsupportedModelError
from edgevit.records.model import SCORE, ModelSpec, Rejection, scores
from edgevit.records.pictures import read_picture, reading_picture, to_rgb
from edgevit.records.reading import AS_STORED, Reading

Picture = str | PathLike[str] | Image.Image  # path of a file, or a PIL image of any mode
OTHER = "other"
_ROUNDING = 1e-9  # 0.29 * 100 is 28.999999999999996


@dataclass(frozen=True)
class Prediction:
    """The prediction of one image."""

    name: str  # name of the most probable target class, or `other`
    probabilities: dict[str, float]  # probabilities of the target classes, in descending order with sum 1
    rejected: bool  # whether the model's rule classifies it as `other`; `probabilities` are not changed by it


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


def check_share(share: float, images: int) -> None:
    """Check that a threshold for this share can be calibrated on this many images of the target classes.

    Raises:
        OptionError: it is not a share.
        DataError: too few images.
    """
    if not 0 < share < 1:
        raise OptionError(f"--reject {share:g} is not between 0 and 1; try 0.05")
    need = math.ceil(1 / share - 1 - _ROUNDING)
    if images < need:
        raise DataError(
            f"--reject {share:g} needs {need} validation images of the target classes, and there are {images}; "
            f"add images, or raise --validation-fraction or --reject"
        )


def calibrate_rule(logits: Tensor, share: float) -> Rejection:
    """Find the threshold below which at most this share of images of the target classes falls.

    For n held-out images with logits [n, C] it is the k-th smallest score, k = floor(share (n + 1)): the score of one
    more such image is below it with probability k / (n + 1) or less (split conformal prediction). The quantile of the n
    scores themselves would reject up to twice as many where n is small.

    Raises:
        DataError: too few images, or their logits are not finite.
    """
    count = len(logits)
    check_share(share, count)
    if not bool(torch.isfinite(target_scores := scores(logits)).all()):
        raise DataError("--reject: the model's logits for some validation images are not finite; leave --reject out")
    k = math.floor(share * (count + 1) + _ROUNDING)
    return Rejection(SCORE, float(target_scores.sort().values[k - 1]), share)
