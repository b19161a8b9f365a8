"""When an image belongs to none of the target classes: its score lies below a threshold, and it is called `other`.

The score is the log-sum-exp of the target classes' logits, the negative free energy of Liu et al. (2020). Probabilities
forget how large the logits were; with the target classes alone in the running, that is what tells other images apart.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgevit.errors import DataError, OptionError
from edgevit.records.model import SCORE, Rejection, scores

OTHER = "other"
ROUNDING = 1e-9  # 0.29 * 100 is 28.999999999999996


def check_share(share: float, images: int) -> None:
    """See that a threshold can hold this share, calibrated on so many images of the target classes.

    Raises:
        OptionError: it is no share.
        DataError: too few images.
    """
    if not 0 < share < 1:
        raise OptionError(f"--reject {share:g} is not between 0 and 1; try 0.05")
    need = math.ceil(1 / share - 1 - ROUNDING)
    if images < need:
        raise DataError(
            f"--reject {share:g} needs {need} validation images of the target classes, and there are {images}; "
            f"add images, or raise --validation-fraction or --reject"
        )


def calibrate_rule(logits: Tensor, share: float) -> Rejection:
    """Find the threshold below which at most this share of the target classes' images falls.

    Of n held-out ones with logits [n, C] it is the k-th smallest score, k = floor(share (n + 1)): the score of one more
    such image is below it with probability k / (n + 1) or less (split conformal prediction). The quantile of the n
    scores themselves would reject up to twice as many where n is small.

    Raises:
        DataError: too few images, or their logits are not numbers.
    """
    count = len(logits)
    check_share(share, count)
    if not bool(torch.isfinite(found := scores(logits)).all()):
        raise DataError("--reject: the model's logits for some validation images are not finite; leave --reject out")
    k = math.floor(share * (count + 1) + ROUNDING)
    return Rejection(SCORE, float(found.sort().values[k - 1]), share)
