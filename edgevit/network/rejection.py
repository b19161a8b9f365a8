"""Rejection: an image whose score is below a threshold is classified as `other`.

The score is the log-sum-exp of the logits of the target classes, the negative free energy of Liu et al. (2020). It uses
the magnitude of the logits, which softmax discards, and which separates images of other classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgevit.errors import DataError, OptionError
from edgevit.records.model import SCORE, Rejection, scores

OTHER = "other"
_ROUNDING = 1e-9  # 0.29 * 100 is 28.999999999999996


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
