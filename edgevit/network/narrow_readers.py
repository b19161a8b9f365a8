"""Layers of a head that read a narrower embedding themselves, in place of tokens of the whole width.

In a narrower embedding a block gives its head y = D x' + t, of d channels for the d' of x'. What reads y is often one
linear layer or (transposed) convolution, behind the network's last LayerNorm. Then it can read w channels, d' + 2 or
more, and compute the same. With C, which subtracts the mean over channels, and C [D t] = Q R, where Q^T Q = 1:

    z = R [x'; 1]            d' + 1 values, with |z|^2 / d the variance of y over its channels
    u = sqrt(w / d) U z      U [w, d' + 1]: orthonormal columns, each of which sums to zero

The mean of the w channels of u is zero and their variance is that of y. So a LayerNorm of u whose weight and bias are
ones gives n = u / deviation + 1, from which follows LN(y), of weight g and bias b, by a linear map: that of n to
g Q U^T n sqrt(d / w) + b 1^T n / w. It is folded into the weights of the reader. The constant b is no bias of the
reader, as zeros at padded edges do not have it. Without a LayerNorm, u = [x'; 1; 0]. The next block, which reads y as
well by a linear layer E, gets E' with E' u = E y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.errors import is_out_of_memory
from edgevit.network.chains import (
    NoChain,
    Replay,
    are_near,
    as_rows,
    macs_of,
    narrowed_as,
    readers_reached,
    run_of_tokens,
    set_rows,
    tensors_in,
)
from edgevit.network.copies import bare_copy
from edgevit.network.dense import DenseFamily, PerChannel, channels_read, count_head_macs
from edgevit.network.network import Network
from edgevit.records.model import NarrowedLayer


@dataclass(frozen=True)
class _Place:
    """A layer that restores tokens of the whole width, and what reads these."""

    restore: str
    stage: int
    whole: int  # its outputs
    width: int  # its inputs
    norm: str | None
    narrow: str | None  # the layer by which the next block returns to the narrower embedding
    readers: tuple[str, ...]  # layers of the head
    macs: int  # MACs of one image per channel of these

    @property
    def narrowed(self) -> NarrowedLayer:
        between = () if self.norm is None else (self.norm,)
        readers = (*([] if self.narrow is None else [self.narrow]), *self.readers)
        return NarrowedLayer(self.restore, between, readers, channels_read(self.width))


@dataclass(frozen=True)
class NarrowReaders:
    """A network whose head reads its narrower embedding itself."""

    network: Network
    layers: tuple[NarrowedLayer, ...]  # that have fewer channels
    readers: tuple[str, ...]  # those of the head among them
    per_channel: tuple[PerChannel, ...]  # cost of a channel of theirs, by stage


@torch.no_grad()
def reading_costs(network: Network, images: Tensor) -> tuple[PerChannel, ...]:
    """What a channel costs, by stage, in the layers of a head that could read a narrower embedding itself.

    Args:
        images: as for `read_narrower`.

    Returns:
        empty if the embedding stays as it is, or the head reads otherwise.
    """
    geometry = network.geometry
    if geometry.fixed_embed is not None:
        return ()
    sizes = zip(geometry.bases, geometry.bases_at(geometry.embed // 4), strict=True)
    generator = torch.Generator().manual_seed(0)
    encoders = [torch.linalg.qr(torch.randn(size, generator=generator, dtype=torch.float64))[0].mT for size in sizes]
    found = read_narrower(network.with_embedding([encode.to(images.device) for encode in encoders]), images)
    return () if found is None else found.per_channel


@torch.no_grad()
def read_narrower(network: Network, images: Tensor) -> NarrowReaders | None:
    """Have the head of a copy of a network read its narrower embedding, where its layers can.

    Args:
        images: by which it is found who reads what, and whether the outputs remain: prepared, on its device.

    Returns:
        None if the head reads otherwise: the tokens of several blocks side by side, or through more than a LayerNorm.
    """
    network.eval()
    try:
        places = _places(network, images)
    except NoChain:
        return None
    if not places or any(channels_read(place.width) >= place.whole for place in places):
        return None
    folded, layers = bare_copy(network), tuple(place.narrowed for place in places)
    narrowed_as(folded.module, layers)
    for place in places:
        _fold(network.module, folded.module, place)
    # Other tokens than those of images, too: what code does may depend on what it sees.
    both = torch.cat([images, torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).to(images)])
    try:
        expected, outputs = (tensors_in(each.module(both)) for each in (network, folded))
    except Exception as error:  # the user's code may raise anything for other shapes
        if is_out_of_memory(error):
            raise
        return None
    if len(outputs) != len(expected) or not all(map(are_near, outputs, expected)):
        return None
    _count_head(folded)
    readers = tuple(dict.fromkeys(name for place in places for name in place.readers))
    of_stages = [[p for p in places if p.stage == i] for i in range(len(network.geometry.stages))]
    return NarrowReaders(
        folded, layers, readers, tuple(_per_channel(network.module, of_stage) for of_stage in of_stages)
    )


def narrow_readers_as(network: Network, layers: Sequence[NarrowedLayer]) -> None:
    """Give a network of a narrower embedding the channels that are recorded, in place, to load weights of them.

    Raises:
        AttributeError, IndexError, AssertionError: it has no such layers, or fewer channels.
    """
    narrowed_as(network.module, layers)
    _count_head(network)


def _count_head(network: Network) -> None:
    assert isinstance(network.family, DenseFamily)
    network.family = replace(network.family, head_macs=count_head_macs(network.family, network.module))


def _per_channel(module: nn.Module, places: Sequence[_Place]) -> PerChannel:
    """The cost of a channel in what reads the tokens of one stage."""
    readers: dict[str, Any] = {name: module.get_submodule(name) for place in places for name in place.readers}
    weights = sum(as_rows(layer).shape[0] for layer in readers.values())
    norms = {place.norm for place in places if place.norm is not None}
    return PerChannel(sum(place.macs for place in places), weights + len(places) + 2 * len(norms))


def _places(network: Network, images: Tensor) -> list[_Place]:
    """The layers that restore tokens, and what reads them.

    Raises:
        NoChain: one of them is read otherwise than by linear layers and convolutions, behind a LayerNorm or none.
    """
    module, blocks, places = network.module, network.blocks, list[_Place]()
    names = {part: name for name, part in module.named_modules()}
    replay = Replay(module, "", run_of_tokens(network, images))  # of the layers of the network inside, too
    for i, block in enumerate(blocks):
        if (restore := block.restore) is None:
            continue
        whole, width = restore.weight.shape
        reached, between = readers_reached(replay, names[restore], torch.ones(whole, dtype=torch.bool), 1)
        norms = [name for name in between if isinstance(module.get_submodule(name), nn.LayerNorm)]
        if len(norms) < len(between) or len(norms) > 1:
            raise NoChain(f"is read through {', '.join(between)}")
        following = blocks[i + 1].entry if i + 1 < len(blocks) else ()
        narrow = names[getattr(following[1], "narrow", following[1])] if following[:1] == (restore,) else None
        readers, macs = tuple(name for name in reached if name != narrow), 0
        for name in readers:
            layer: Any = module.get_submodule(name)
            if getattr(layer, "groups", 1) > 1:
                raise NoChain(f"is read by {name}, a convolution of groups")
            for call in replay.of_layer(name):
                assert call.values is not None and call.output is not None
                macs += macs_of(layer, call.values, call.output) // (whole * len(images))
        if any(name in place.readers for place in places for name in readers):
            raise NoChain("is read by a layer that reads the tokens of another block, too")
        norm = next(iter(norms), None)
        places.append(_Place(names[restore], block.stage, whole, width, norm, narrow, readers, macs))
    return places


def _fold(whole: nn.Module, folded: nn.Module, place: _Place) -> None:
    """Set the weights of a network that reads fewer channels, in place, by those of one that reads all."""
    restore: Any = whole.get_submodule(place.restore)
    affine = torch.cat([restore.weight, restore.bias[:, None]], 1).detach().double()  # [D t]
    d, inputs = affine.shape  # d, d' + 1
    width = channels_read(inputs - 1)
    if place.norm is None:
        made = torch.eye(width, inputs).to(affine)
        read = torch.cat([affine, affine.new_zeros(d, width - inputs)], 1)
    else:
        norm: Any = whole.get_submodule(place.norm)
        gain, shift = (tensor.detach().double() for tensor in (norm.weight, norm.bias))
        q, r = torch.linalg.qr(affine - affine.mean(0))
        scale = (width / d) ** 0.5
        sums_zero = _columns_of_zero_sum(width, inputs).to(affine)
        made = scale * sums_zero @ r
        read = gain[:, None] * (q @ sums_zero.mT) / scale + shift[:, None] / width
        of_norm: Any = folded.get_submodule(place.norm)
        of_norm.weight.data.fill_(1)
        of_norm.bias.data.fill_(1)
    layer: Any = folded.get_submodule(place.restore)
    layer.weight.data, layer.bias.data = made[:, :-1].to(layer.weight).contiguous(), made[:, -1].to(layer.bias)
    for name in place.readers:
        rows = as_rows(whole.get_submodule(name))
        set_rows(folded.get_submodule(name), rows.to(read) @ read, None)
    if place.narrow is not None:
        narrow: Any = whole.get_submodule(place.narrow)
        returned = narrow.weight.detach().double() @ affine @ torch.linalg.pinv(made)
        set_rows(folded.get_submodule(place.narrow), returned, None)


def _columns_of_zero_sum(rows: int, columns: int) -> Tensor:
    """Orthonormal columns [rows, columns] whose sums are zero, each of all rows: no channel is larger than others."""
    random = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    orthonormal: Tensor = torch.linalg.qr(random - random.mean(0))[0]
    return orthonormal
