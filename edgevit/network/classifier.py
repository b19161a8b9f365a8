"""Fewer classes for a network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from edgevit.network.copies import bare_copy
from edgevit.network.families import family_of


def with_classes(network: nn.Module, classes: Sequence[int]) -> nn.Module:
    """Return a copy whose classifiers have only these rows, in this order."""
    copied = bare_copy(network)
    family_of(network).keep_classes(copied, classes)
    return copied
