"""Fewer classes for a network, features in their place, or a classifier of the features of several blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgevit.errors import UnsupportedModelError
from edgevit.network.copies import bare_copy
from edgevit.network.dense import DenseFamily
from edgevit.network.families import architecture
from edgevit.network.families.vit.depths import PLACE, Depths, tokens_after
from edgevit.network.families.vit.tokens import choose_tokens, chosen_tokens, pooled_part
from edgevit.network.network import Network
from edgevit.network.output import Features
from edgevit.records.model import TokenOutput

_POOLED = "try --output features"


def with_classes(network: Network, classes: Sequence[int]) -> Network:
    """Return a copy whose classifiers have only these rows, in this order."""
    copied = Network(bare_copy(network.module), network.family)
    copied.keep_classes(classes)
    return copied


def depths_in(network: Network) -> tuple[int, ...]:
    """The blocks, from 1, after which a network puts out tokens; empty: the last alone."""
    return network.module.depths if isinstance(network.module, Depths) else ()


def tokens_of(network: Network) -> TokenOutput | None:
    """The tokens that the head of a network reads; None: timm's pooled token."""
    return network.module.tokens if isinstance(network.module, Depths) else chosen_tokens(network.module)


def pooled_place(network: Network) -> slice | None:
    """The part of [class token, mean of the patches] that timm pools; None: a head cannot read both of them."""
    is_plain = network.family_name == "vit" and not isinstance(network.family, DenseFamily)
    return pooled_part(network.module) if is_plain else None


def read_tokens(network: Network, tokens: TokenOutput) -> None:
    """Have the head of a network read these tokens after its last norm, in place of what timm pools.

    Raises:
        UnsupportedModelError: it has none, or its head reads pooled ones alone.
    """
    if network.family_name != "vit":
        raise UnsupportedModelError(
            f"{architecture(network.module)} has no tokens of a class and of patches; {_POOLED}"
        )
    choose_tokens(network.module, tokens)


def with_last_blocks(network: Network, blocks: int, classes: int) -> Network:
    """A copy with a linear head, of random weights, of class token and mean of the patches of each of the last blocks.

    Raises:
        UnsupportedModelError: it has no class token.
    """
    last = len(network.dims)
    module = tokens_after(network.module, range(last - blocks + 1, last + 1), "class,mean")
    module.make_head(classes)
    read = tuple(range(last - blocks, last))
    return Network(module, DenseFamily(PLACE, network.family_name, 0, None, read, classifier="head"))


def _end_after(network: Network, depths: Sequence[int]) -> None:
    """Remove the blocks behind the last of these, in place.

    Raises:
        UnsupportedModelError: there is no such block, or another stage of the network begins behind it.
    """
    last, blocks, name = depths[-1], len(network.dims), architecture(network.module)
    text = ",".join(map(str, depths))
    if last > blocks:
        raise UnsupportedModelError(f"features after blocks {text}: {name} has {blocks}; try {blocks} for the last")
    if last == blocks:
        return
    if len(network.geometry.stages) > 1:
        raise UnsupportedModelError(
            f"features after blocks {text}: the blocks of {name} are in stages, and the last of them pools; {_POOLED}"
        )
    network.keep_blocks(range(last))


def with_features(network: Network, tokens: TokenOutput | None = None, depths: Sequence[int] = ()) -> Network:
    """Put the identity in place of a network's classifiers, or where there is none: its outputs are the features.

    With `tokens` they are the features of each of these. A narrower embedding, or a linear map that makes up for what
    was cut, then has its place in these heads. With `depths` they are those after these blocks, from 1, and blocks
    behind the last of them are removed in place; no head follows those of tokens.

    Raises:
        UnsupportedModelError: it has no such block, or no such tokens.
    """
    if tokens is not None and network.geometry.stages[-1].whole:
        raise UnsupportedModelError(
            f"the embedding of this {architecture(network.module)} was narrowed before, and its tokens are restored "
            f"for its pooling alone; {_POOLED}, or derive from the network that it was made of"
        )
    if depths:
        _end_after(network, depths)
    if tokens is not None and depths:
        if network.family_name != "vit":
            raise UnsupportedModelError(
                f"{architecture(network.module)} has no tokens after all blocks alike; {_POOLED}"
            )
        module = tokens_after(network.module, depths, tokens)
        return Network(
            module, DenseFamily(PLACE, network.family_name, 0, None, tuple(depth - 1 for depth in depths)), Features()
        )
    if tokens is not None:
        read_tokens(network, tokens)
    width = network.geometry.classifier_width
    network.make_classifiers(width)
    with torch.no_grad():
        for head in network.classifiers:
            head.weight.copy_(torch.eye(width))
            head.bias.zero_()
    return Network(network.module, network.family, Features())
