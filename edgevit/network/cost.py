"""Multiply-accumulates and parameters as functions of the sizes that pruning changes.

A cost is a sum of products of sizes (`Term`): a family says which, for each kind of site, and everything else follows.
The papers call MACs "FLOPs". In a ViT with d embedding width, N tokens, L blocks, H heads per block, q and v the QK and
VO widths, e FFN width, C classes, p patch size they are

    (3 (N-1) p^2 + 2 L N + C + 1) d + sum_l [ (2 N d + N^2)(q_l + v_l) H_l + 2 N d e_l ]

which gives the published 17.57, 4.60 and 1.25 G for DeiT-Base, -Small and -Tiny. Where a model has more than a class
token, N counts all tokens and N-1 is the number of patches; a second head counts its own C. If tokens are dropped, the
N of a block is the number of its inputs; ranking them, 0.1 % of a block, is not counted. In windows of w tokens N^2 is
N w, with the places of the last windows that have no token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Literal

from edgevit.network.anatomy import Axis, BlockDims, Site, SiteKind
from edgevit.records.model import SITE_AXES

Quantity = Literal["macs", "params"]


@dataclass(frozen=True)
class Term:
    """A whole number times the sizes of axes: of a site, and `embed`, `tokens` and `pairs` of its stage."""

    factor: int
    axes: tuple[str, ...]

    def value(self, sizes: Mapping[str, int], without: str = "") -> int:
        """The product, or its derivative by the axis `without`."""
        return self.factor * prod(sizes[axis] for axis in self.axes if axis != without)


@dataclass(frozen=True)
class SiteTerms:
    """The cost of one kind of site, equal in all blocks of a stage."""

    macs: tuple[Term, ...]
    params: tuple[Term, ...]

    def of(self, quantity: Quantity) -> tuple[Term, ...]:
        return self.macs if quantity == "macs" else self.params


def attention_terms(*, biases: bool, vectors: int, per_head: int = 0) -> SiteTerms:
    """The terms of an attention.

    Args:
        biases: whether queries, keys and values have biases.
        vectors: its vectors of embedding width: norm, LayerScale, output bias.
        per_head: parameters of a head that do not depend on its widths, such as biases by relative position.
    """
    macs = [Term(1, ("tokens", "embed"))]  # MACs of the site's norm
    params = [Term(vectors, ("embed",)), Term(per_head, ("heads",))]
    for width, matrices, bias in (("qk", 2, 2), ("vo", 2, 1)):
        macs += [Term(2, ("tokens", "embed", "heads", width)), Term(1, ("pairs", "heads", width))]
        params += [Term(matrices, ("embed", "heads", width)), Term(bias * biases, ("heads", width))]
    return SiteTerms(tuple(macs), tuple(params))


def ffn_terms(inputs: int, *, biases: bool, vectors: int) -> SiteTerms:
    """The terms of an FFN.

    Args:
        inputs: matrices that read the tokens: 1, or 2 if it is gated.
        biases: whether these have biases.
        vectors: its vectors of embedding width: norm, LayerScale, output bias.
    """
    return SiteTerms(
        (Term(1, ("tokens", "embed")), Term(inputs + 1, ("tokens", "embed", "ffn"))),
        (Term(vectors, ("embed",)), Term(inputs + 1, ("embed", "ffn")), Term(inputs * biases, ("ffn",))),
    )


@dataclass(frozen=True)
class NetworkStage:
    """Blocks of one embedding width and one number of tokens."""

    embed: int
    tokens: int  # number of tokens that the stage's first block gets
    attention: SiteTerms
    ffn: SiteTerms
    pairs: int | None = None  # number of pairs of tokens that attend to one another; None: all pairs
    inputs: int = 0  # width of the vectors from which a linear layer makes the stage's tokens; 0: there is none
    grid: tuple[int, int] = (0, 0)  # rows and columns of patches; (0, 0) for texts
    restores: int = 0  # linear layers per token from a narrowed embedding to the width `whole`, which a head reads
    whole: int = 0  # width of the embedding that such a head reads; 0: there are no such layers

    @property
    def linear(self) -> int:
        """Weights of the linear layers before and between its blocks, which each of its tokens passes."""
        return (self.inputs + self.restores * self.whole) * self.embed

    def with_embed(self, embed: int) -> NetworkStage:
        return replace(self, embed=embed, inputs=self.inputs * embed // self.embed)

    def terms(self, kind: SiteKind) -> SiteTerms:
        return self.attention if kind == "attention" else self.ffn


@dataclass(frozen=True)
class PlacedBlock:
    """The sizes of a block, and where it is: its stage, and the tokens that it gets."""

    dims: BlockDims
    stage: NetworkStage
    tokens: int

    @cached_property
    def sizes(self) -> dict[str, int]:
        """All sizes on which its cost depends."""
        pairs = self.tokens**2 // self.dims.windows if self.stage.pairs is None else self.stage.pairs
        sizes: dict[str, int] = {axis: size for axis, size in self.dims.sizes.items()}
        return sizes | {"embed": self.stage.embed, "tokens": self.tokens, "pairs": pairs}

    def cost(self, quantity: Quantity) -> int:
        """The cost of the block's sites."""
        return sum(self.site_cost(kind, quantity) for kind in self.dims.sites)

    def site_cost(self, kind: SiteKind, quantity: Quantity) -> int:
        """The cost of one site; 0 if it has none of this kind."""
        return sum(t.value(self.sizes) for t in self.stage.terms(kind).of(quantity)) if self.dims.has(kind) else 0

    def fixed_cost(self, kind: SiteKind, quantity: Quantity) -> int:
        """The part of a site's cost that does not depend on its own sizes."""
        terms = self.stage.terms(kind).of(quantity)
        return sum(t.value(self.sizes) for t in terms if not {*t.axes}.intersection(SITE_AXES[kind]))

    def unit_cost(self, axis: str, quantity: Quantity) -> int:
        """The cost of one unit along an axis of a site, at the other sizes of the site."""
        terms = (t for kind in SITE_AXES if axis in SITE_AXES[kind] for t in self.stage.terms(kind).of(quantity))
        return sum(t.value(self.sizes, axis) for t in terms if axis in t.axes)


@dataclass(frozen=True)
class Geometry:
    """What the cost of a network depends on, beside the sizes of its blocks."""

    stages: tuple[NetworkStage, ...]
    patches: int
    patch_values: int  # input values per patch: channels * height * width
    outputs: int  # rows of the classifier, over all heads of a distilled model
    classifier_heads: int  # number of classifiers: 2 for a model with a distillation token
    other_params: int  # parameters outside blocks, classifier and `linear`, in proportion to the embedding's width
    sites: tuple[Site, ...] = ()  # all sites of the model with their frozen axes; empty: nothing is frozen
    head_macs: int = 0  # MACs of a head that is no classifier
    head_params: int = 0  # parameters of a head that is no classifier
    classified: int = 1  # number of tokens that the classifier reads one by one; 1 for pooled tokens
    joined: int = 1  # number of vectors of the embedding's width that the classifier reads side by side
    normed_patches: bool = False  # whether a norm reads the patches, so that they have a basis of their own

    @property
    def embed(self) -> int:
        """The width of the embedding that the classifier reads."""
        return self.stages[-1].embed

    @property
    def classifier_width(self) -> int:
        """The width of each vector that the classifier reads: the embedding's, unless linear layers restore another."""
        return self.stages[-1].whole or self.embed

    @property
    def tokens(self) -> int:
        """Patches and prefix tokens before the first block."""
        return self.stages[0].tokens

    @property
    def prefix(self) -> int:
        """Tokens before the patches: class, distillation and register tokens."""
        return self.tokens - self.patches

    def with_classes(self, classes: int) -> Geometry:
        return replace(self, outputs=classes * self.classifier_heads)

    def with_embed(self, embed: int) -> Geometry:
        """A geometry with another embedding width, and all stages in proportion.

        It is without biases and linear layers that a change of width may add, unless this one has them.
        """
        if embed == self.embed:
            return self
        stages = tuple(stage.with_embed(stage.embed * embed // self.embed) for stage in self.stages)
        # All other parameters outside blocks and classifier, of patches and positions, have the width of the embedding.
        return replace(self, stages=stages, other_params=self.other_params * embed // self.embed)

    def of_base(self, embed: int | None) -> Geometry:
        """The geometry of a base of this embedding width, without linear layers that the narrowing added."""
        if embed is None or embed == self.embed:
            return self
        first, *others = (replace(stage, restores=0) for stage in self.stages)
        return replace(self, stages=(replace(first, inputs=0), *others)).with_embed(embed)

    @property
    def bases(self) -> tuple[int, ...]:
        """The widths of the bases that tokens have one after the other: of normed patches, and of each stage."""
        widths = tuple(stage.embed for stage in self.stages)
        return (widths[0], *widths) if self.normed_patches else widths

    def bases_at(self, embed: int) -> tuple[int, ...]:
        """The same with another embedding width."""
        return tuple(width * embed // self.embed for width in self.bases)

    def widths(self, of_first: Iterable[int]) -> list[int]:
        """The embedding widths at which the first stage has these widths."""
        return [width * self.embed // self.stages[0].embed for width in of_first]

    @property
    def fixed_embed(self) -> str | None:
        """The reason why the embedding cannot be narrowed; None: it can."""
        return next((site.frozen["embed"] for site in self.sites if "embed" in site.frozen), None)

    @property
    def fixed_channels(self) -> str | None:
        """The reason why single channels of the embedding cannot be removed; None: they can."""
        several = "its stages have channels of their own, which are narrowed in another basis alone (forge, nuwa)"
        return self.fixed_embed or (several if len(self.stages) > 1 else None)

    def reaching(self, blocks: Sequence[BlockDims]) -> list[int]:
        """The number of input tokens of each block."""
        return [placed.tokens for placed in self.placed(blocks)]

    def place(self, dims: BlockDims, tokens: int) -> PlacedBlock:
        """Place a block that gets so many tokens."""
        return PlacedBlock(dims, self.stages[dims.stage], tokens)

    def placed(self, blocks: Sequence[BlockDims]) -> list[PlacedBlock]:
        """Place blocks, in order: each gets the tokens that the one before it in its stage passes on."""
        passed, placed = [stage.tokens for stage in self.stages], []
        for dims in blocks:
            placed.append(self.place(dims, passed[dims.stage]))
            passed[dims.stage] = dims.tokens or passed[dims.stage]
        return placed

    def frozen(self, block: int) -> Mapping[Axis, str]:
        """The frozen axes of the sites of a block, with their reasons."""
        return {axis: reason for site in self.sites if site.block == block for axis, reason in site.frozen.items()}

    def outside(self, quantity: Quantity) -> int:
        """Cost of everything outside the blocks."""
        if quantity == "params":
            linear = sum(stage.linear for stage in self.stages)
            return (
                self.other_params + self.head_params + linear + self.outputs * (self.joined * self.classifier_width + 1)
            )
        linear = sum(stage.tokens * stage.linear for stage in self.stages)
        of_classifier = self.outputs * self.classified * self.joined * self.classifier_width
        of_head = self.head_macs + of_classifier + self.embed
        return self.patches * self.patch_values * self.stages[0].embed + linear + of_head

    def fixed(self, blocks: Sequence[BlockDims], quantity: Quantity) -> int:
        """Cost that does not depend on the sizes of the sites of these blocks."""
        of_sites = (p.fixed_cost(kind, quantity) for p in self.placed(blocks) for kind in p.dims.sites)
        return self.outside(quantity) + sum(of_sites)

    def cost(self, blocks: Sequence[BlockDims], quantity: Quantity) -> int:
        """Cost of a model: of all outside its blocks, and the sum over its blocks."""
        return self.outside(quantity) + sum(placed.cost(quantity) for placed in self.placed(blocks))

    def macs(self, blocks: Sequence[BlockDims]) -> int:
        """Multiply-accumulates of one image."""
        return self.cost(blocks, "macs")

    def params(self, blocks: Sequence[BlockDims]) -> int:
        """Exact number of parameters of the module."""
        return self.cost(blocks, "params")
