"""Fewer classes for a network, or features in their place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgevit.errors import UnsupportedModelError
from edgevit.network.copies import bare_copy
from edgevit.network.families import architecture
from edgevit.network.families.vit.tokens import put_out
from edgevit.network.network import Network
from edgevit.network.output import Features
from edgevit.records.model import TokenOutput


def with_classes(network: Network, classes: Sequence[int]) -> Network:
    """Return a copy whose classifiers have only these rows, in this order."""
    copied = Network(bare_copy(network.module), network.family)
    copied.keep_classes(classes)
    return copied


def put_out_tokens(network: Network, tokens: TokenOutput) -> None:
    """Have a network put out these tokens after its last norm, in place of pooled ones.

    Raises:
        UnsupportedModelError: it has none, or its head reads pooled ones alone.
    """
    if network.family_name != "vit":
        raise UnsupportedModelError(
            f"{architecture(network.module)} has no tokens of a class and of patches; try --output features"
        )
    put_out(network.module, with_class=tokens != "patches")


def with_features(network: Network, tokens: TokenOutput | None = None) -> Network:
    """Put the identity in place of a network's classifiers, or where there is none: its outputs are the features.

    With `tokens` they are the features of each of these. A narrower embedding, or a linear map that makes up for what
    was cut, then has its place in these heads.
    """
    if tokens is not None:
        put_out_tokens(network, tokens)
    width = network.geometry.embed
    network.make_classifiers(width)
    with torch.no_grad():
        for head in network.classifiers:
            head.weight.copy_(torch.eye(width))
            head.bias.zero_()
    return Network(network.module, network.family, Features())
