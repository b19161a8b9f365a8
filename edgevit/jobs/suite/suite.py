"""What `edgevit prove` measures: networks with random weights, each there to answer a question about a board.

Time depends on shapes and not on weights; with `--checkpoint`, what is cut from the largest size has its weights. Each
network is a DeiT of 224 x 224 px with 1000 classes, as it is or cut:

    shapes                0.8 or 0.6 of the MACs gone, in four forms: `paper` has QK and VO widths of their own, as
                          Vulcan's allocation gives them; `padded` is the same with heads zero-padded until attention
                          fuses, so it has more MACs; `fused` and `fused4` have equal widths and the MACs of `paper`
    head widths           all blocks alike, one width of all heads after the other: where attention fuses, and what it
                          costs where it does not
    mixes                 0.8 of the MACs gone in other ways: few blocks, a narrow embedding, attentions left out, few
                          tokens
    tokens                192 tokens, which fill tiles of 64, beside 196, which begin a fourth; and 197 as they are, of
                          which 192 are left behind the first block
    sizes and precisions  each size as it is, fp16 and fp32
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import timm
import torch
from torch import nn

from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import POLICIES, Widths, fit
from edgevit.exporting.padding import padded_width
from edgevit.jobs.suite.request import SIZES
from edgevit.network.anatomy import Block, BlockDims
from edgevit.network.copies import bare_copy, without_values
from edgevit.network.cost import Geometry
from edgevit.network.families import vit

FORMS = ("fused", "paper", "padded", "fused4")
HEAD_WIDTHS = (16, 12, 24, 20, 32, 8)  # beside the dense model's 64
# Of `--rounds`: an interval takes all of them; of a coarse question half or a third, whose median is told without one.
HALF, THIRD = 1 / 2, 1 / 3
UNEVENNESS = 0.4  # QK and VO wishes of a block differ from their mean by up to this share, as effective ranks make them
SPREAD = 0.02  # standard deviation of the weights


@dataclass(frozen=True)
class Effort:
    """How much time a question is worth."""

    shares: Mapping[int, float]  # of `--rounds`, by the batch sizes at which it is asked
    energy: bool = False  # whether energy is measured, too, at the first of these

    def rounds(self, most: int, batches: Sequence[int]) -> dict[int, int]:
        """How often each network is measured at each of these batch sizes, where `most` are asked for."""
        return {batch: max(round(most * share), 1) for batch, share in self.shares.items() if batch in batches}


# All of it is to fit into 30 minutes on an Orin Nano (decision 026): so batch 8 is asked where shapes differ most.
EFFORTS = {
    "shapes at 0.8": Effort({1: 1, 8: HALF}, energy=True),
    "shapes at 0.6": Effort({1: 1}),
    "sizes and precisions": Effort({1: THIRD}),
    "mixes at 0.8": Effort({1: HALF, 8: HALF}, energy=True),
    "head widths": Effort({1: THIRD}),
    "tokens": Effort({1: HALF}),
}


@dataclass(frozen=True)
class SuiteNetwork:
    """One network that is measured."""

    name: str
    size: str  # tiny, small or base
    precision: str = "fp16"
    dims: tuple[BlockDims, ...] | None = None  # of its blocks; None: as the base has them
    args: Mapping[str, Any] = field(default_factory=dict)  # of timm, where it differs from the base

    @property
    def timm_name(self) -> str:
        return SIZES[self.size]

    def cost(self) -> tuple[tuple[BlockDims, ...], Geometry]:
        """Its blocks, and what else its MACs and parameters depend on."""
        dims, geometry = shape_of(self.size, **self.args)
        return self.dims or dims, geometry

    def is_cut_from(self, size: str) -> bool:
        """Whether its weights can be those of a dense network of this size: no other tokens, no other embedding."""
        return self.size == size and set(self.args) <= {"depth"}

    def network(self, dense: nn.Module | None = None) -> nn.Module:
        """It, cut from a dense network of its size, or with random weights."""
        if dense is None:
            return random_network(self.timm_name, self.dims, self.args)
        return first_of(dense, self.cost()[0])


def wishes(base: Sequence[BlockDims], seed: int) -> Callable[[float], list[Widths]]:
    """Widths as an allocation by effective rank gives them: QK and VO of a block differ, blocks differ less."""
    generator = random.Random(seed)
    tilts = [generator.uniform(-UNEVENNESS, UNEVENNESS) for _ in base]

    def at(rate: float) -> list[Widths]:
        keep = 1 - rate
        return [
            Widths(d.qk * keep * (1 + t), d.vo * keep * (1 - t), d.ffn * keep) for d, t in zip(base, tilts, strict=True)
        ]

    return at


def shape_dims(form: str, base: Sequence[BlockDims], geometry: Geometry, rate: float) -> tuple[BlockDims, ...]:
    """The dimensions of one form at one rate.

    Raises:
        BudgetError: the form's shape policy allows nothing as small.
    """
    budget = make_budget(geometry.macs(base), geometry.params(base), rate=rate)
    policy = POLICIES["paper" if form == "padded" else form]
    dims = fit(wishes(base, seed=0), base, geometry, budget, policy)
    if form == "padded":
        return tuple(BlockDims(d.heads, padded_width(d), padded_width(d), d.ffn) for d in dims)
    return dims


def random_network(
    name: str, dims: Sequence[BlockDims] | None = None, args: Mapping[str, Any] | None = None
) -> nn.Module:
    """A timm ViT with random weights, its blocks of the given dimensions."""
    with without_values():
        network: nn.Module = timm.create_model(name, **(args or {}))
    if dims is not None:
        vit.resize(network, dims)
    network = network.to_empty(device="cpu").eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.normal_(0, SPREAD, generator=generator)
    return network


def first_of(dense: nn.Module, dims: Sequence[BlockDims]) -> nn.Module:
    """The first blocks of a network with the first heads, the first dimensions of these, and the first neurons."""
    network = bare_copy(dense)
    vit.keep_blocks(network, range(len(dims)))
    cut = [
        Block(
            block.attention.keep(range(d.heads)).first(d.qk, d.vo) if block.attention and d.has_attention else None,
            block.ffn.keep(slice(d.ffn)) if block.ffn and d.has_ffn else None,
            d.tokens,
        )
        for block, d in zip(vit.read(network), dims, strict=True)
    ]
    made: nn.Module = vit.build(network, cut)
    return made.eval().requires_grad_(False)


@cache
def shape_of(size: str, **args: Any) -> tuple[tuple[BlockDims, ...], Geometry]:
    """Dimensions of the blocks, and the geometry, of a network whose weights nobody needs."""
    with without_values():
        network = timm.create_model(SIZES[size], **args)
    return tuple(block.dims for block in vit.read(network)), vit.geometry(network)


def _mixes(size: str) -> list[SuiteNetwork]:
    """Six ways to leave 0.2 of the MACs where `fused` at 0.8 has narrow blocks.

    Few blocks; two thirds of the embedding width; the same in two thirds of the blocks; the same with attention in
    every second of these, or with 128 tokens behind the third; and 64 tokens behind the first block, 20 behind the
    second, all else as it is.
    """
    dims, geometry = shape_of(size)
    depth, macs = len(dims), geometry.macs(dims)
    narrow = {"embed_dim": geometry.embed * 2 // 3, "num_heads": dims[0].heads * 2 // 3}
    few = max(round(depth * (0.2 * macs - geometry.fixed(0, "macs")) / (macs - geometry.fixed(0, "macs"))), 1)
    found = [SuiteNetwork(f"{size} 0.8 few blocks", size, dims=dims[:few], args={"depth": few})]
    for name, blocks, every, passed in (
        ("embedding", depth, 1, {}),
        ("embedding, blocks", depth * 2 // 3, 1, {}),
        ("embedding, blocks, attention", depth * 2 // 3, 2, {}),
        ("embedding, blocks, tokens", depth * 2 // 3, 1, {2: 128}),
    ):
        args = {**narrow, "depth": blocks}
        whole, of = shape_of(size, **args)
        there = [d if i % every == 0 else replace(d, heads=0, qk=0, vo=0) for i, d in enumerate(whole)]
        fitted = _fitted(_passing(there, passed), of, 0.2 * macs)
        found.append(SuiteNetwork(f"{size} 0.8 {name}", size, dims=fitted, args=args))
    return [*found, SuiteNetwork(f"{size} 0.8 tokens", size, dims=_passing(dims, {0: 64, 1: 20}))]


def _passing(dims: Sequence[BlockDims], tokens: Mapping[int, int]) -> tuple[BlockDims, ...]:
    """These, of which some pass on only so many tokens."""
    return tuple(replace(d, tokens=tokens.get(i, d.tokens)) for i, d in enumerate(dims))


def _fitted(dims: Sequence[BlockDims], geometry: Geometry, macs: float) -> tuple[BlockDims, ...]:
    """These at no more MACs: heads half as wide, in fused shapes, and as many neurons as there is room for."""
    heads = [replace(d, qk=max(d.qk // 2, 16), vo=max(d.vo // 2, 16)) if d.has_attention else d for d in dims]
    bare = geometry.macs([replace(d, ffn=8) for d in heads])
    more = geometry.macs([replace(d, ffn=16) for d in heads]) - bare
    steps = max(int((macs - bare) // more), 0)
    return tuple(replace(d, ffn=min(8 * (1 + steps), d.ffn)) for d in heads)


def _shapes(size: str, rate: float, forms: Sequence[str] = FORMS) -> list[SuiteNetwork]:
    dims, geometry = shape_of(size)
    return [
        SuiteNetwork(f"{size} {rate:g} {form}", size, dims=shape_dims(form, dims, geometry, rate)) for form in forms
    ]


def _head_widths(size: str, widths: Sequence[int] = HEAD_WIDTHS) -> list[SuiteNetwork]:
    dims, _ = shape_of(size)
    return [
        SuiteNetwork(f"{size} heads of {w}", size, dims=tuple(replace(d, qk=w, vo=w) for d in dims)) for w in widths
    ]


def _tokens(size: str) -> list[SuiteNetwork]:
    """192 and 196 without a class token, as 192 = 12 x 16 patches leave no room for one; and 192 of the 197."""
    pooled = {"class_token": False, "global_pool": "avg"}
    dims, _ = shape_of(size)
    return [
        SuiteNetwork(f"{size} 192 tokens behind block 1", size, dims=_passing(dims, {0: 192})),
        SuiteNetwork(f"{size} 196 tokens", size, args=pooled),
        SuiteNetwork(f"{size} 192 tokens", size, args={**pooled, "img_size": (192, 256)}),
    ]


def suite(sizes: Sequence[str], *, quick: bool = False, fp32_too: bool = True) -> dict[str, list[SuiteNetwork]]:
    """All that is measured beside the largest size as it is, by question: first what others published figures of.

    `quick` is 0.8 in three forms and two head widths. `fp32_too` adds each size in fp32.
    """
    largest = largest_of(sizes)
    if quick:
        return {
            "shapes at 0.8": _shapes(largest, 0.8, FORMS[:3]),
            "head widths": _head_widths(largest, HEAD_WIDTHS[:2]),
        }
    smaller = [SuiteNetwork(size, size) for size in sizes if size != largest]
    largest_first = sorted(sizes, key=list(SIZES).index, reverse=True)
    slow = [SuiteNetwork(f"{size} fp32", size, precision="fp32") for size in largest_first if fp32_too]
    found = {
        "shapes at 0.8": _shapes(largest, 0.8),
        "shapes at 0.6": _shapes(largest, 0.6),
        "sizes and precisions": [*slow[:1], *smaller, *slow[1:]],
        "mixes at 0.8": _mixes(largest),
        "head widths": _head_widths(largest),
        "tokens": _tokens(largest),
    }
    return {question: subjects for question, subjects in found.items() if subjects}


def largest_of(sizes: Sequence[str]) -> str:
    return max(sizes, key=list(SIZES).index)
