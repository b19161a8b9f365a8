"""Networks of equal blocks, which measure the cost of a block of that size in context."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from edgevit.errors import UnsupportedModelError
from edgevit.exporting.graph import save_graph, trace
from edgevit.exporting.halving import convert, halve
from edgevit.exporting.int8.quantising import quantise
from edgevit.network.anatomy import Attention, BlockDims, Ffn, check_all_pass
from edgevit.network.copies import bare_copy
from edgevit.network.network import Network
from edgevit.records.model import SITE_AXES
from edgevit.records.precisions import PRECISIONS

P = TypeVar("P", Attention, Ffn)
_SPREAD = 0.02  # standard deviation of the weights
_CALIBRATION_IMAGES = 2  # random ones: the cost depends on shapes


@dataclass(frozen=True)
class Cut:
    """A block without FFN that passes on fewer tokens than it gets."""

    tokens: int
    heads: int
    width: int

    @property
    def dims(self) -> BlockDims:
        return BlockDims(self.heads, self.width, self.width, 0, self.tokens)


@dataclass(frozen=True)
class Stack:
    """`count` equal blocks; `width` is the mean of QK and VO, and a site of size 0 is absent.

    The count may be 0 with a cut, which is then measured alone. In a network of stages the blocks are of one stage, and
    `later` are blocks of the next.
    """

    count: int
    heads: int
    width: int
    neurons: int
    embed: int | None = None  # width of the embedding; None: the base's own
    cut: Cut | None = None  # the block before these, which drops tokens; None: there is none, and they get all tokens
    stage: int = 0
    later: Stack | None = None

    @classmethod
    def joined(cls, stacks: Sequence[Stack]) -> Stack:
        """Return one stack of these, in the order of their stages."""
        first, *others = stacks
        return replace(first, later=cls.joined(others)) if others else first

    @property
    def rows(self) -> list[Stack]:
        """The equal blocks of each stage."""
        return [replace(self, later=None), *(() if self.later is None else self.later.rows)]

    @property
    def label(self) -> str:
        """The label of its runs: `6 of 3x40+768` is heads, width and neurons.

        ` at 96` is a narrower embedding; ` behind 2x16 to 128` is a block before that passes on 128 tokens; ` in 1` is
        the second stage, and ` and ` is followed by blocks of a later one.
        """
        at = "" if self.embed is None else f" at {self.embed}"
        cut = "" if self.cut is None else f" behind {self.cut.heads}x{self.cut.width} to {self.cut.tokens}"
        stage = f" in {self.stage}" if self.stage else ""
        later = "" if self.later is None else f" and {self.later.label}"
        return f"{self.count} of {self.heads}x{self.width}+{self.neurons}{at}{cut}{stage}{later}"

    @property
    def text(self) -> str:
        """The label for people: 6 blocks of 3 heads of 40 and 768 neurons, embedding 96, after a cut to 128 tokens."""
        sites = [f"{self.heads} heads of {self.width}"] if self.heads else []
        sites += [f"{self.neurons} neurons"] if self.neurons else []
        parts = [f"{self.count} block{'s' if self.count > 1 else ''} of {' and '.join(sites)}"] if sites else []
        parts += [f"embedding {self.embed}"] if self.embed is not None else []
        parts += [f"{'after ' if parts else ''}a cut to {self.cut.tokens} tokens"] if self.cut is not None else []
        parts += [f"stage {self.stage}"] if self.stage else []
        return ", ".join(parts) + ("" if self.later is None else f", and {self.later.text}")

    @classmethod
    def of(cls, label: str) -> Stack | None:
        """Parse a label; None: it is not the label of a stack."""
        label, _, later = label.partition(" and ")
        if later:
            first, others = cls.of(label), cls.of(later)
            return None if first is None or others is None else replace(first, later=others)
        blocks, at, behind = r"(\d+) of (\d+)x(\d+)\+(\d+)", r"(?: at (\d+))?", r"(?: behind (\d+)x(\d+) to (\d+))?"
        match = re.fullmatch(blocks + at + behind + r"(?: in (\d+))?", label)
        if match is None:
            return None
        count, heads, width, neurons = map(int, match.groups()[:4])
        embed, cut_heads, cut_width, tokens, stage = match.groups()[4:]
        cut = None if tokens is None else Cut(int(tokens), int(cut_heads), int(cut_width))
        return cls(count, heads, width, neurons, None if embed is None else int(embed), cut, int(stage or 0))

    @property
    def dims(self) -> BlockDims:
        return BlockDims(self.heads, self.width, self.width, self.neurons, stage=self.stage)

    @property
    def blocks(self) -> list[BlockDims]:
        """The block that drops tokens, if any, and the equal blocks after it, stage by stage."""
        cut = () if self.cut is None else (self.cut.dims,)
        return [*cut, *[self.dims] * self.count, *(() if self.later is None else self.later.blocks)]


def whole_blocks(network: Network) -> dict[int, list[int]]:
    """List the numbers of the blocks with both sites, which stacks consist of, by stage.

    Raises:
        UnsupportedModelError: no stage has two, or a stage has blocks, and none with both sites.
    """
    blocks = network.read()
    check_all_pass(blocks, "a cost table")
    whole: dict[int, list[int]] = {block.stage: [] for block in blocks}
    for i, block in enumerate(blocks):
        if len(block.dims.sites) == len(SITE_AXES):
            whole[block.stage].append(i)
    if (most := max(map(len, whole.values()))) < 2:
        stage_text = " in a stage" if len(whole) > 1 else ""
        raise UnsupportedModelError(
            f"this model has {most} blocks with both attention and FFN{stage_text}, and it takes two to tell what one "
            "costs; measure the base that it came from"
        )
    if lacking := [stage for stage, numbers in whole.items() if not numbers]:
        raise UnsupportedModelError(
            f"stage {lacking[0]} of this model has no block with both attention and FFN, whose cost could be measured; "
            "measure the base that it came from"
        )
    return whole


def _attention(like: Attention, dims: BlockDims) -> Attention:
    """Return an attention of this size with random weights, and biases if `like` has them.

    If queries and keys cannot be narrowed, values are narrower instead: the cost depends on the mean of both widths.
    """
    heads, embed = dims.heads, like.embed
    of_queries, _ = dims.head_widths if like.rotary is None else like.widths
    of_values = sum(dims.head_widths) - of_queries
    queries, values = (heads, of_queries), (heads, of_values)
    shapes: dict[str, tuple[int, ...]] = {
        "wq": (*queries, embed), "bq": queries, "wk": (*queries, embed), "bk": queries,
        "wv": (*values, embed), "bv": values, "wo": (heads, embed, of_values), "bo": (embed,),
    }  # fmt: skip
    if like.relative is not None:
        shapes["relative"] = (heads, like.relative.shape[1])
    return _filled(like, shapes)


def _ffn(like: Ffn, dims: BlockDims) -> Ffn:
    neurons, embed = dims.ffn, like.w1.shape[1]
    rows, bias = (neurons, embed), (neurons,)
    shapes = {"w1": rows, "b1": bias, "wg": rows, "bg": bias, "w2": (embed, neurons), "b2": (embed,)}
    return _filled(like, shapes)


def _filled(like: P, shapes: Mapping[str, tuple[int, ...]]) -> P:
    """Draw new random weights for every block: an exporter would write equal ones once, and caches would hold them."""
    weights = {name: torch.randn(shape) * _SPREAD for name, shape in shapes.items() if getattr(like, name) is not None}
    return replace(like, **weights)


@torch.no_grad()
def network_of(network: Network, blocks: Sequence[BlockDims], embed: int | None = None) -> Network:
    """Return a network with all of the base outside its blocks, and blocks of these sizes, which get random weights.

    They take the places of whole blocks, evenly over the depth of their stage: a head may read tokens after any block.
    All other blocks lose both sites. There are no more blocks than the base has. `embed` is the width of a narrower
    embedding.
    """
    whole = whole_blocks(network)
    stem = bare_copy(network)
    if embed is not None:  # any directions: the cost depends on shapes
        stem = stem.with_embedding(torch.eye(embed, stem.geometry.embed, dtype=torch.float64))
    base = stem.read()
    stack = [replace(block, attention=None, ffn=None) for block in base]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same file every time: a job that continues on a board is found by it
        for stage, numbers in whole.items():
            sizes = [d for d in blocks if d.stage == stage]
            for number, dims in zip(_evenly(numbers, len(sizes)), sizes, strict=True):
                like = base[number]
                assert like.attention is not None and like.ffn is not None
                stack[number] = replace(
                    like,
                    attention=_attention(like.attention, dims) if dims.has("attention") else None,
                    ffn=_ffn(like.ffn, dims) if dims.has("ffn") else None,
                    tokens=dims.tokens,
                )
    return stem.build(stack).eval().requires_grad_(False)


def _evenly(numbers: Sequence[int], count: int) -> list[int]:
    """Choose so many of some numbers, the first and the last among them."""
    return [numbers[round(i * (len(numbers) - 1) / max(count - 1, 1))] for i in range(count)]


def write_stack(
    network: Network, stack: Stack, path: Path, *, precision: str, opset: int, for_engine: bool = False
) -> None:
    """Write a stack as an ONNX file, like a model, for any batch.

    In INT8 the steps are those of random images, as latencies do not depend on them; `for_engine`: all else is in fp16.

    Raises:
        ExportError: the exporter failed.
    """
    blocks, size = network_of(network, stack.blocks, stack.embed), network.input_size
    graph = trace(blocks, input_size=size, batch="dynamic", opset=opset)
    if PRECISIONS[precision].calibrated:
        images = torch.randn(_CALIBRATION_IMAGES, *size, generator=torch.Generator().manual_seed(0))
        graph = quantise(graph, [images], "max", correcting=False).model
        if for_engine:
            halve(graph.graph)
    else:
        convert(graph.graph, precision)
    save_graph(graph, path, {"stack": stack.label})
