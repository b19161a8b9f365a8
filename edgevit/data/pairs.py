"""Measure what accuracy a model loses against its base, and test whether that may be chance.

Models that classified the same images are compared by pairs: only images that one of them classifies correctly count,
and if neither is better, each wins half of these. The images of each class are compared in the same way, as a class of
few images may be lost while the accuracy of all stays. Other models are compared by the interval of the model's share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgevit.data.shares import Z, wilson
from edgevit.records.answers import RightImages

_CHANCE = 0.025  # level of the one-sided test of a loss, as one end of a 95 % interval
FEW = 0.05  # half width of an interval, as a share: above it, more images are recommended


@dataclass(frozen=True)
class RightCount:
    """How many images a model classifies correctly, and which, if that is recorded."""

    right: int
    images: int
    which: RightImages | None = None

    @classmethod
    def of(cls, which: RightImages) -> RightCount:
        return cls(which.right, which.images, which)

    @property
    def top1(self) -> float:
        return self.right / max(self.images, 1)


@dataclass(frozen=True)
class ClassLoss:
    """What a model loses of one class's images against its base."""

    name: str
    images: int
    lost: int  # number of images that only the base classifies correctly
    gained: int  # number of images that only the model classifies correctly

    def text(self) -> str:
        """Describe it as a clause about the model."""
        return f"of the {self.images} of {self.name!r} it loses {self.lost} and gains {self.gained}"


@dataclass(frozen=True)
class Loss:
    """What a model loses against its base, as shares of the images; below 0 it gains."""

    images: int
    share: float
    most: float  # upper end of the loss's 95 % interval
    may_be_chance: bool  # whether the base is not significantly better, on all images and on those of each class
    lost: int | None = None  # number of images that only the base classifies correctly; None: not compared by pairs
    gained: int | None = None  # number of images that only the model classifies correctly; None: not compared by pairs
    worst: ClassLoss | None = None  # the class whose loss is least likely chance; None: no class loses more than chance
    worst_alone: ClassLoss | None = None  # `worst`, where the loss of all images may be chance

    def text(self, part: str) -> str:
        """Describe it as the end of a sentence about the model."""
        images = f"{self.images} {part} images"
        hidden = f"a loss of up to {100 * max(self.most, 0):.1f} points cannot be excluded"
        if self.lost is None or self.gained is None:
            return f"on {images}, compared by intervals, as no record says which of them are right; {hidden}"
        of_class = "" if self.worst is None else f", {self.worst.text()}"
        return f"on {images} it loses {self.lost} right answers of the base and gains {self.gained}{of_class}; {hidden}"


def loss_of(model: RightCount, base: RightCount) -> Loss:
    """Compare a model with its base, by pairs if both classified the same images."""
    share = base.top1 - model.top1
    if model.which is None or base.which is None or model.images != base.images:
        low, high = wilson(model.right, model.images)
        return Loss(model.images, share, base.top1 - low, high >= base.top1)
    lost = (base.which.mask & ~model.which.mask).bit_count()
    gained = (model.which.mask & ~base.which.mask).bit_count()
    of_all, worst = better_by_chance(lost, gained) >= _CHANCE, _worst_class(model.which, base.which)
    return Loss(
        model.images, share, _most(lost, gained, model.images), of_all and worst is None, lost, gained,
        worst=worst, worst_alone=worst if of_all else None,
    )  # fmt: skip


def _worst_class(model: RightImages, base: RightImages) -> ClassLoss | None:
    """The class whose loss is least likely chance; None: no class loses more than chance, or none is recorded.

    The level of the test is divided by the number of classes (Bonferroni).
    """
    if not model.classes or model.classes != base.classes:
        return None
    losses = []
    for name, images in model.class_masks():
        lost, gained = ((a & ~b & images).bit_count() for a, b in ((base.mask, model.mask), (model.mask, base.mask)))
        losses.append((better_by_chance(lost, gained), ClassLoss(name, images.bit_count(), lost, gained)))
    probability, worst = min(losses, key=lambda pair: pair[0])
    return worst if probability < _CHANCE / len(losses) else None


def _most(lost: int, gained: int, images: int) -> float:
    """Compute the upper end of the interval of the difference of two paired shares by Bonett and Price (2012).

    It adds one lost and one gained image, and so holds for few changes, too: 0 of 300 leave up to 0.9 points.
    """
    n = images + 2
    lost_share, gained_share = (lost + 1) / n, (gained + 1) / n
    middle = lost_share - gained_share
    return middle + Z * math.sqrt((lost_share + gained_share - middle**2) / n)


def better_by_chance(gained: int, lost: int) -> float:
    """McNemar's exact test: the probability of at least so many gains if gains and losses are equally likely."""
    n = gained + lost
    ways, as_many = math.comb(n, gained), 0
    for k in range(gained, n + 1):
        as_many += ways
        ways = ways * (n - k) // (k + 1)  # comb(n, k + 1)
    return float(as_many / 2**n)


def recalled_text(validation: RightCount | None, test: RightCount | None) -> str | None:
    """Warn that a base was probably trained on the validation images; None: the counts do not show it.

    They do if its accuracy on them is significantly above that on the test images, by Newcombe's interval of the
    difference of two shares (1998, method 10).
    """
    if validation is None or test is None:
        return None
    low, high = wilson(validation.right, validation.images)[0], wilson(test.right, test.images)[1]
    if validation.top1 - test.top1 <= math.hypot(validation.top1 - low, high - test.top1):
        return None
    return (
        f"the base was probably trained on the validation images ({validation.top1:.1%} there, {test.top1:.1%} on test)"
    )
