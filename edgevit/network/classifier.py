"""Fewer classes for a network."""

from __future__ import annotations

from collections.abc import Sequence

from edgevit.network.copies import bare_copy
from edgevit.network.network import Network


def with_classes(network: Network, classes: Sequence[int]) -> Network:
    """Return a copy whose classifiers have only these rows, in this order."""
    copied = Network(bare_copy(network.module), network.family)
    copied.keep_classes(classes)
    return copied
