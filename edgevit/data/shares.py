"""A share of images and its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Mapping

Z = 1.959964  # deviations from the mean to an end of a 95 % interval


def wilson(right: int, total: int) -> tuple[float, float]:
    """Compute the 95 % Wilson score interval of a share, `right` of `total` independent images.

    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), which stays in [0, 1] and is valid near 0 and 1, too. No
    images give (0, 1). The interval contains the share exactly, although the formula misses 0 and 1 by the last bits.
    """
    if total == 0:
        return 0.0, 1.0
    share, spread = right / total, Z * Z / total
    middle = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    low = 0.0 if right == 0 else min(max(middle - half, 0.0), share)
    return low, 1.0 if right == total else max(min(middle + half, 1.0), share)


def share_text(share: float, images: int) -> str:
    """Format a share of so many images with its 95 % interval: 95.33 % (92.3 to 97.2)."""
    low, high = wilson(round(share * images), images)
    return f"{100 * share:.2f} % ({100 * low:.1f} to {100 * high:.1f})"


def constant_text(images_of: Mapping[str, int], top1: float) -> str | None:
    """Warn where one answer for all images may be as right as a model, for the images of each class and its top-1.

    None: the model is significantly better, or no class is more frequent than the others, so that this is chance.
    """
    shown = {name: images for name, images in images_of.items() if images}
    total, (name, most) = sum(shown.values()), max(shown.items(), key=lambda item: item[1])
    if most * len(shown) == total or wilson(round(top1 * total), total)[0] > most / total:
        return None
    return (
        f"{most} of {total} images are of the class {name}: to call all of them that is right on "
        f"{100 * most / total:.2f} %, and a top-1 of {100 * top1:.2f} % may be no better; see each class"
    )
