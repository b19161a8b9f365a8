"""The networks of a suite: made from DeiT and Swin, at MACs that make their comparison fair, with random weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import POLICIES, Widths, fit
from edgevit.exporting.source import padded_width
from edgevit.jobs.suite.answers import SWIN
from edgevit.jobs.suite.plan import NetworkEntry, shipped_plan
from edgevit.jobs.suite.request import SIZES
from edgevit.network.anatomy import Block, BlockDims
from edgevit.network.copies import bare_copy, without_values
from edgevit.network.cost import Geometry
from edgevit.network.creation import create_timm_network
from edgevit.network.network import Network
from edgevit.records.model import HEAD_WIDTHS, WIDTHS
from edgevit.records.precisions import FP16, FP32

NETWORKS = {**SIZES, SWIN: "swin_tiny_patch4_window7_224"}  # timm's names
_UNEVENNESS = 0.4  # QK and VO widths of a block differ from their mean by up to this share, as effective ranks do
_SPREAD = 0.02  # standard deviation of the weights


@dataclass(frozen=True)
class SuiteNetwork:
    """One network that is measured."""

    name: str
    size: str  # tiny, small, base or swin-tiny
    precision: str = FP16.name
    dims: tuple[BlockDims, ...] | None = None  # sizes of its blocks; None: those that timm makes
    # Arguments for timm where they differ from those of the dense network.
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def timm_name(self) -> str:
        return NETWORKS[self.size]

    def cost(self) -> tuple[tuple[BlockDims, ...], Geometry]:
        """Sizes of the blocks, and the geometry that MACs and parameters also depend on."""
        dims, geometry = shape_of(self.size, **self.args)
        return self.dims or dims, geometry

    def is_cut_from(self, size: str) -> bool:
        """Whether it can take the weights of a dense network of this size, because tokens and embedding are equal."""
        return self.size == size and set(self.args) <= {"depth"}

    def network(self, dense: Network | None = None) -> Network:
        """Make the network, cut from a dense one of its size, or with random weights."""
        if dense is None:
            return random_network(self.timm_name, self.dims, self.args)
        return _first_of(dense, self.cost()[0])


def suite(sizes: Sequence[str], *, quick: bool = False, fp32_too: bool = True) -> dict[str, list[SuiteNetwork]]:
    """The networks of each question of the plan, without the dense DeiT of the largest size.

    Args:
        quick: only the networks that the plan marks as quick.
        fp32_too: also those in fp32; without them where every network is measured in fp32.
    """
    largest_first = sorted(sizes, key=list(SIZES).index, reverse=True)
    sources = {"largest": largest_first[:1], "smaller": largest_first[1:], "swin": [SWIN]}
    questions = {
        question.question: [
            _network_of(entry, size)
            for entry in question.networks
            for size in sources[entry.sizes]
            if (entry.quick or not quick) and (fp32_too or entry.precision != FP32.name)
        ]
        for question in shipped_plan().questions
    }
    return {question: networks for question, networks in questions.items() if networks}


def largest_of(sizes: Sequence[str]) -> str:
    return max(sizes, key=list(SIZES).index)


def _network_of(entry: NetworkEntry, size: str) -> SuiteNetwork:
    """Work out the blocks of a network."""
    dense, dense_geometry = shape_of(size)
    args = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.args.items()}
    if entry.width < 1:
        args["embed_dim"] = round(entry.width * dense_geometry.embed)
        args["num_heads"] = round(entry.width * dense[0].heads)
    if entry.blocks is not None:
        args["depth"] = entry.blocks
    whole, geometry = shape_of(size, **args)
    dims = whole
    if entry.rate is not None and entry.shape is not None:
        dims = shape_dims(entry.shape, dims, geometry, entry.rate)
    if entry.padded:
        dims = tuple(replace(d, tokens=0).with_head_width(padded_width(d)) for d in dims)
    if entry.head_width is not None:
        dims = tuple(d.with_head_width(entry.head_width) for d in dims)
    dims = tuple(d if i % entry.attention_every == 0 else d.without("attention") for i, d in enumerate(dims))
    dims = tuple(replace(d, tokens=dict(entry.tokens).get(i, d.tokens)) for i, d in enumerate(dims))
    if entry.macs is not None:
        dims = _fitted(dims, geometry, entry.macs * dense_geometry.macs(dense))
    return SuiteNetwork(f"{size} {entry.name}".strip(), size, entry.precision, None if dims == whole else dims, args)


def shape_dims(shape: str, base: Sequence[BlockDims], geometry: Geometry, rate: float) -> tuple[BlockDims, ...]:
    """The dimensions of blocks in a shape, with this share of the MACs removed.

    Raises:
        BudgetError: the shape allows nothing as small.
    """
    budget = make_budget(geometry.macs(base), geometry.params(base), rate=rate)
    return tuple(fit(wishes(base, seed=0), base, geometry, budget, POLICIES[shape]))


def wishes(base: Sequence[BlockDims], seed: int) -> Callable[[float], list[Widths]]:
    """Widths as an allocation by effective rank gives them: QK and VO of a block differ, blocks differ less."""
    generator = random.Random(seed)
    tilts = [generator.uniform(-_UNEVENNESS, _UNEVENNESS) for _ in base]

    def at(rate: float) -> list[Widths]:
        keep = 1 - rate
        return [
            {axis: d[axis] * keep * tilt for axis, tilt in zip(WIDTHS, (1 + t, 1 - t, 1), strict=True)}
            for d, t in zip(base, tilts, strict=True)
        ]

    return at


def _fitted(dims: Sequence[BlockDims], geometry: Geometry, macs: float) -> tuple[BlockDims, ...]:
    """Halve the heads' widths, in fused shapes, and give the FFNs as many neurons as the MACs allow."""
    narrow = [
        d.with_sizes({axis: max(d[axis] // 2, 16) for axis in HEAD_WIDTHS}) if d.has("attention") else d for d in dims
    ]
    bare = geometry.macs([replace(d, ffn=8) for d in narrow])
    more = geometry.macs([replace(d, ffn=16) for d in narrow]) - bare
    steps = max(int((macs - bare) // more), 0)
    return tuple(replace(d, ffn=min(8 * (1 + steps), d.ffn)) for d in narrow)


def random_network(
    name: str, dims: Sequence[BlockDims] | None = None, args: Mapping[str, Any] | None = None
) -> Network:
    """Make a network of timm's with random weights, its blocks of the given dimensions."""
    args = args or {}
    with without_values():
        network = Network(create_timm_network(name, args))
    if dims is not None:
        network.resize(dims)
    network = network.to_empty(device="cpu").eval().requires_grad_(False)
    if next(network.buffers(), None) is not None:  # such as the order of a window's tokens, which is no weight
        whole = Network(create_timm_network(name, args))
        for key, buffer in network.named_buffers(remove_duplicate=False):
            buffer.copy_(whole.get_buffer(key))
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.normal_(0, _SPREAD, generator=generator)
    return network


def _first_of(dense: Network, dims: Sequence[BlockDims]) -> Network:
    """Cut a network to its first blocks with the first heads, the first dimensions of these, and the first neurons."""
    network = bare_copy(dense)
    network.keep_blocks(range(len(dims)))
    cut = []
    for block, d in zip(network.read(), dims, strict=True):
        attention, ffn = block.attention, block.ffn
        if attention is not None:
            attention = attention.keep(range(d.heads)).first(*d.head_widths) if d.has("attention") else None
        cut.append(Block(attention, ffn.keep(slice(d.ffn)) if ffn and d.has("ffn") else None, d.tokens))
    return network.build(cut).eval().requires_grad_(False)


@cache
def shape_of(size: str, **args: Any) -> tuple[tuple[BlockDims, ...], Geometry]:
    """Dimensions of the blocks, and the geometry, of a network of timm's; no weights are made."""
    with without_values():
        network = Network(create_timm_network(NETWORKS[size], args))
    return network.dims, network.geometry
