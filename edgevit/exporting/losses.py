"""What a rounded model loses against fp32 on the same images: overall, and in each class.

`loss` counts images: an engine that loses more is taken for a wrong one. `proven_loss` allows for chance: INT8 is given
up only where it surely loses more than is allowed, as a few images of undecided classes change with any rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from edgevit.exporting.request import GateTolerances

LEAST_IMAGES = 10  # fewest images from which a loss is decided
ALWAYS_ALLOWED = 2  # images
_SURE = 0.95  # confidence of an interval that is open above


@dataclass(frozen=True)
class ClassResult:
    """Images of one class, and how many are classified correctly."""

    images: int
    host: int  # number of images that are right in fp32
    board: int  # number of images that are right by the rounded model
    agreeing: int  # number of images for which both predict the same

    @property
    def lost(self) -> int:
        return self.host - self.board


def allowed(share: float, images: int, always: int = ALWAYS_ALLOWED) -> int:
    """The number of images that may differ."""
    return max(always, math.floor(share * images + 1e-9))  # as 0.29 * 100 < 29


def by_class(
    names: Sequence[str], labels: Tensor, host: Tensor, board: Tensor, agreeing: Tensor
) -> dict[str, ClassResult]:
    """Count images by class; the tensors [images] say which are right, and on which both agree."""
    hits = torch.stack([host.float(), board.float(), agreeing.float()], 1)
    per_class = {}
    for label in dict.fromkeys(labels.tolist()):
        of_class = hits[labels == label]
        per_class[names[label]] = ClassResult(len(of_class), *(int(count) for count in of_class.sum(0)))
    return per_class


def loss(per_class: Mapping[str, ClassResult], tolerances: GateTolerances, place: str) -> str | None:
    """Describe a loss beyond the tolerances; `place` is where the rounded model ran. None: it passes."""

    def excess(item: tuple[str, ClassResult]) -> tuple[bool, float]:
        c = item[1]
        return c.lost > allowed(tolerances.class_drop, c.images), c.lost / c.images

    name, worst = max(per_class.items(), key=excess)
    images = sum(c.images for c in per_class.values())
    always = min(ALWAYS_ALLOWED, images // LEAST_IMAGES)
    detail = (
        f"{worst.lost / worst.images:.0%} on {name!r} (of {worst.images} images {worst.host} are right in fp32 here, "
        f"{worst.board} {place})"
    )
    if worst.lost > allowed(tolerances.class_drop, worst.images):
        return f"loses {detail}"
    if (lost := sum(c.lost for c in per_class.values())) > allowed(tolerances.drop, images, always):
        return f"loses {lost / images:.1%} of top-1 on {images} images, worst {detail}"
    if images - (agreeing := sum(c.agreeing for c in per_class.values())) > allowed(
        1 - tolerances.agreement, images, always
    ):
        name, worst = min(per_class.items(), key=lambda item: item[1].agreeing / item[1].images)
        return (
            f"agrees with fp32 on {agreeing} of {images} images, {tolerances.agreement:.0%} is required; "
            f"least on {name!r}, {worst.agreeing} of {worst.images}"
        )
    return None


def least_mean(losses: Tensor, comparisons: int = 1) -> float:
    """A bound that the mean of losses [images] surely exceeds, with `comparisons` means tested at once; at least 0."""
    if len(losses) < 2:
        return 0.0
    exact, error = losses.double(), NormalDist().inv_cdf(1 - (1 - _SURE) / comparisons)
    return max(float(exact.mean() - error * exact.std() / math.sqrt(len(losses))), 0.0)


def expected_losses(probabilities: Tensor, answers: Tensor) -> Tensor:
    """The accuracy that each image [images] loses by these answers [images], if fp32's probabilities are right.

    The probability [images, classes] of fp32's answer minus that of the other: next to nothing where fp32 is undecided.
    """
    return probabilities.amax(1) - probabilities.gather(1, answers[:, None])[:, 0]


def proven_loss(
    names: Sequence[str], labels: Tensor, lost: Tensor, expected: Tensor, tolerances: GateTolerances, place: str
) -> str | None:
    """Describe a loss that surely exceeds the tolerances. None: none does.

    Args:
        lost: 1 for each image [images] that fp32 alone classifies correctly, -1 for each that it alone does not.
        expected: as `expected_losses` has them; they vary less than `lost`.
    """
    for losses, verb in ((expected, "is expected to lose"), (lost, "loses")):
        if (least := least_mean(losses)) > tolerances.drop:
            mean = float(losses.double().mean())
            return f"{verb} {mean:.1%} of top-1 {place} on {len(losses)} images, and surely more than {least:.1%}"
    of_classes = {label: lost[labels == label] for label in dict.fromkeys(labels.tolist())}
    for label, losses in of_classes.items():
        if losses.sum() > ALWAYS_ALLOWED and least_mean(losses, len(of_classes)) > tolerances.class_drop:
            return f"loses {int(losses.sum())} of {len(losses)} images of {names[label]!r} {place}"
    return None
