"""Fewer classes for a network, or features in their place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgevit.network.copies import bare_copy
from edgevit.network.network import Network
from edgevit.network.output import Features


def with_classes(network: Network, classes: Sequence[int]) -> Network:
    """Return a copy whose classifiers have only these rows, in this order."""
    copied = Network(bare_copy(network.module), network.family)
    copied.keep_classes(classes)
    return copied


def with_features(network: Network) -> Network:
    """Put the identity in place of a network's classifiers, or where there is none: its outputs are the features.

    A narrower embedding, or a linear map that makes up for what was cut, then has its place in these heads.
    """
    width = network.geometry.embed
    network.make_classifiers(width)
    with torch.no_grad():
        for head in network.classifiers:
            head.weight.copy_(torch.eye(width))
            head.bias.zero_()
    return Network(network.module, network.family, Features())
