"""Measure what a linear probe could read of a base's features in those of another network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgevit.network.output import Output

_RIDGES = (1e-3, 1e-2, 1e-1, 1.0)  # ridges to choose from, in units of the features' mean square


def unread(output: Output, train: Sequence[Tensor], judge: Sequence[Tensor]) -> float:
    """The divergence from the base that is left after the best affine map of a network's features.

    The map is fitted by ridge regression to some images; of several ridges the one of least divergence on others is
    taken. Features near the base's may have few directions, which a classifier of them misses, and need no map.

    Args:
        train: features [images, ..., d] of the base and of the network, of the images to which the map is fitted.
        judge: the same of other images.
    """
    (wanted, given), (judged, shown) = (
        [output.of(part.double()).flatten(0, -2) for part in pair] for pair in (train, judge)
    )
    mean, centre = wanted.mean(0), given.mean(0)
    given, shown = given - centre, shown - centre
    values, vectors = torch.linalg.eigh(given.mT @ given / len(given))
    target = vectors.mT @ (given.mT @ (wanted - mean)) / len(given)
    turned, unit = shown @ vectors, values.clamp_min(0).mean().clamp_min(torch.finfo(values.dtype).tiny)
    errors = [
        (turned @ (target / (values.clamp_min(0) + ridge * unit)[:, None]) + mean - judged).square().mean() / 2
        for ridge in _RIDGES
    ]
    return float(min(errors))
