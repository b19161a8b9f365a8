"""Networks of equal blocks, which measure the cost of a block of that size in context."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from edgevit.errors import UnsupportedModelError
from edgevit.exporting.graph import write_onnx
from edgevit.network.anatomy import Attention, Block, BlockDims, Ffn, check_all_pass
from edgevit.network.copies import bare_copy
from edgevit.network.network import Network

P = TypeVar("P", Attention, Ffn)
SPREAD = 0.02  # standard deviation of the weights


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

    The count may be 0 with a cut, which is then measured alone.
    """

    count: int
    heads: int
    width: int
    neurons: int
    embed: int | None = None  # width of the embedding; None: the base's own
    cut: Cut | None = None  # the block before these; None: there is none, and they get all tokens

    @property
    def label(self) -> str:
        """The label of its runs: `6 of 3x40+768` is heads, width and neurons.

        ` at 96` is a narrower embedding; ` behind 2x16 to 128` is a block before that passes on 128 tokens.
        """
        at = "" if self.embed is None else f" at {self.embed}"
        cut = "" if self.cut is None else f" behind {self.cut.heads}x{self.cut.width} to {self.cut.tokens}"
        return f"{self.count} of {self.heads}x{self.width}+{self.neurons}{at}{cut}"

    @property
    def text(self) -> str:
        """The label for people: 6 blocks of 3 heads of 40 and 768 neurons, embedding 96, after a cut to 128 tokens."""
        sites = [f"{self.heads} heads of {self.width}"] if self.heads else []
        sites += [f"{self.neurons} neurons"] if self.neurons else []
        parts = [f"{self.count} block{'s' if self.count > 1 else ''} of {' and '.join(sites)}"] if sites else []
        parts += [f"embedding {self.embed}"] if self.embed is not None else []
        parts += [f"{'after ' if parts else ''}a cut to {self.cut.tokens} tokens"] if self.cut is not None else []
        return ", ".join(parts)

    @classmethod
    def of(cls, label: str) -> Stack | None:
        """Parse a label; None: it is not the label of a stack."""
        blocks, at, behind = r"(\d+) of (\d+)x(\d+)\+(\d+)", r"(?: at (\d+))?", r"(?: behind (\d+)x(\d+) to (\d+))?"
        match = re.fullmatch(blocks + at + behind, label)
        if match is None:
            return None
        count, heads, width, neurons = map(int, match.groups()[:4])
        embed, cut_heads, cut_width, tokens = match.groups()[4:]
        cut = None if tokens is None else Cut(int(tokens), int(cut_heads), int(cut_width))
        return cls(count, heads, width, neurons, None if embed is None else int(embed), cut)

    @property
    def dims(self) -> BlockDims:
        return BlockDims(self.heads, self.width, self.width, self.neurons)

    @property
    def blocks(self) -> list[BlockDims]:
        """The block that drops tokens, if any, and the equal blocks after it."""
        return [*(() if self.cut is None else (self.cut.dims,)), *[self.dims] * self.count]


def whole_blocks(network: Network) -> list[int]:
    """List the numbers of the blocks with both sites, which stacks consist of.

    Raises:
        UnsupportedModelError: there are fewer than two, or they are of several stages.
    """
    if (stages := len(network.geometry.stages)) > 1:
        raise UnsupportedModelError(
            "a cost table is of blocks of one width and one number of tokens, and this model has "
            f"{stages} stages; give --rate, --macs or --params"
        )
    check_all_pass(network.read(), "a cost table")
    whole = [i for i, b in enumerate(network.read()) if b.dims.has("attention") and b.dims.has("ffn")]
    if len(whole) < 2:
        raise UnsupportedModelError(
            f"this model has {len(whole)} blocks with both attention and FFN, and it takes two to tell what one costs; "
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
    return _filled(like, shapes)


def _ffn(like: Ffn, dims: BlockDims) -> Ffn:
    neurons, embed = dims.ffn, like.w1.shape[1]
    rows, bias = (neurons, embed), (neurons,)
    shapes = {"w1": rows, "b1": bias, "wg": rows, "bg": bias, "w2": (embed, neurons), "b2": (embed,)}
    return _filled(like, shapes)


def _filled(like: P, shapes: Mapping[str, tuple[int, ...]]) -> P:
    """Draw new random weights for every block: an exporter would write equal ones once, and caches would hold them."""
    weights = {name: torch.randn(shape) * SPREAD for name, shape in shapes.items() if getattr(like, name) is not None}
    return replace(like, **weights)


@torch.no_grad()
def network_of(network: Network, blocks: Sequence[BlockDims], embed: int | None = None) -> Network:
    """Return a network with the base's stem and head around blocks of these sizes, which get random weights.

    There are no more blocks than the base has. `embed` is the width of a narrower embedding.
    """
    whole = whole_blocks(network)
    stem = bare_copy(network)
    stem.keep_blocks(whole[: len(blocks)])
    if embed is not None:  # any directions: the cost depends on shapes
        stem = stem.with_embedding(torch.eye(embed, stem.geometry.embed, dtype=torch.float64))
    like = stem.read()[0]
    assert like.attention is not None and like.ffn is not None
    attention, ffn = like.attention, like.ffn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same file every time: a job that continues on a board is found by it
        stack = [
            Block(
                _attention(attention, d) if d.has("attention") else None,
                _ffn(ffn, d) if d.has("ffn") else None,
                d.tokens,
            )
            for d in blocks
        ]
    return stem.build(stack).eval().requires_grad_(False)


def write_stack(network: Network, stack: Stack, path: Path, *, precision: str, opset: int) -> None:
    """Write a stack as an ONNX file, like a model, for any batch.

    Raises:
        ExportError: the exporter failed.
    """
    blocks = network_of(network, stack.blocks, stack.embed)
    size = network.input_size
    metadata = {"stack": stack.label}
    write_onnx(blocks, path, input_size=size, batch="dynamic", opset=opset, precision=precision, metadata=metadata)
