"""The weights and axes of a Transformer, in one form for the networks of all families.

A *block* has two *sites*, its attention and its FFN, each added to the tokens; either may be removed. The weights of a
site are a *part*: tensors that are views of the live parameters, so that a regulariser trains through them. Parts are
sliced only by their own methods.

The *axes* along which a model can become smaller: for an attention its heads and its QK and VO widths, for an FFN its
neurons, either site as a whole, the block, and, shared by all sites of a stage, the embedding width and the tokens.
A family lists frozen axes with their reasons (`Site.frozen`); the others are free. Axes are tied to one size by
the shape policy (`derive.allocate.policy`), so that a site has no field for it: docs/decisions/001-fusable-shapes.md.

Shapes: H heads, q and v the per-head QK and VO widths, d embedding width, e FFN width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

from edgevit.errors import UnsupportedModelError
from edgevit.records.model import BlockDims as BlockDims
from edgevit.records.model import SiteKind as SiteKind
from edgevit.records.model import SizeAxis as SizeAxis

Axis = SizeAxis | Literal["site", "block", "embed", "tokens"]
Part = TypeVar("Part")


# -- parts: weights ----------------------------------------------------------------------------------------------------


def _maybe(tensor: Tensor | None, index: object) -> Tensor | None:
    return None if tensor is None else tensor[index]  # type: ignore[index]


@dataclass(frozen=True)
class Fold:
    """Factors between tokens and the weights of a part, to be folded into them at a change of basis; [d] each.

    A part reads gain * n + shift of the normalised tokens n; its output is multiplied by `scale`.
    """

    gain: Tensor | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None

    def read(self, weight: Tensor, bias: Tensor | None, decode: Decoder) -> tuple[Tensor, Tensor]:
        """Weight [..., w, d'] and bias [..., w] for normalised tokens in the new basis, of [..., w, d] and [..., w]."""
        exact = weight.detach().double()
        scaled = exact if self.gain is None else exact * self.gain.double()
        shifted = exact.new_zeros(exact.shape[:-1]) if bias is None else bias.detach().double()
        if self.shift is not None:
            shifted = shifted + exact @ self.shift.double()
        if decode.bias is not None:
            shifted = shifted + scaled @ decode.bias
        return (scaled @ decode.weight).to(weight), shifted.to(weight)

    def write(self, weight: Tensor, encode: Tensor) -> Tensor:
        """Output weight for tokens in the new basis: [..., d', w] of [..., d, w]. Shape: encode [d', d] in fp64."""
        exact = weight.detach().double()
        if self.scale is not None:
            exact = self.scale.double().unsqueeze(-1) * exact
        return (encode @ exact).to(weight)

    def write_bias(self, bias: Tensor, encode: Tensor) -> Tensor:
        """Output bias for tokens in the new basis: [d'] of [d]."""
        return self.write(bias.unsqueeze(-1), encode).squeeze(-1)


@dataclass(frozen=True)
class Decoder:
    """The map from normalised tokens n' of a narrower embedding to those of the wider one: weight n' + bias."""

    weight: Tensor  # [d, d'] fp64 linear part of the map
    bias: Tensor | None = None  # [d] fp64 constant part of the map; None: zero

    def to(self, device: torch.device) -> Decoder:
        return Decoder(self.weight.to(device), None if self.bias is None else self.bias.to(device))


def decoder(encode: Tensor) -> Decoder:
    """The decoder of encode [d', d], sqrt(d' / d) U Q^T of `solve.embedding`: exact in the kept directions."""
    return Decoder(encode.mT * (encode.shape[1] / encode.shape[0]))


def side_by_side(encode: Tensor, count: int) -> Tensor:
    """The matrix [k d', k d] that multiplies k = `count` tokens side by side, each by `encode` [d', d]."""
    import torch

    return torch.kron(torch.eye(count, dtype=encode.dtype, device=encode.device), encode)


@dataclass(frozen=True)
class Attention:
    """The weights of one attention.

    Head h on normalised tokens x [N, d] is softmax((x wq' + bq)(x wk' + bk)' / sqrt(q)) (x wv' + bv) wo', summed over
    heads, plus bo. Where it is rotary, each row r of queries and of keys becomes cos r + sin r~ before their product,
    by the position of its token, with the halves of r exchanged in r~; their basis and dimensions are fixed. In windows
    a bias of the head and of the relative position of two tokens is added to their product. Then tokens attend to those
    of their window, and to tokens x = 0 where it is larger than the image.
    """

    wq: Tensor  # [H, q, d] weights of queries
    bq: Tensor | None  # [H, q] biases of queries; None: zero
    wk: Tensor  # [H, q, d] weights of keys
    bk: Tensor | None  # [H, q] biases of keys; None: zero
    wv: Tensor  # [H, v, d] weights of values
    bv: Tensor | None  # [H, v] biases of values; None: zero
    wo: Tensor  # [H, d, v] weights of the output layer
    bo: Tensor | None  # [d] bias of the output layer; None: zero
    rotary: Tensor | None = None  # [2, N, q] constants: cos and sin for each token; None: no rotation
    relative: Tensor | None = None  # [H, R] biases of relative positions in a window; None: no such biases

    @property
    def heads(self) -> int:
        return len(self.wq)

    @property
    def qk(self) -> int:
        return self.wq.shape[1]

    @property
    def vo(self) -> int:
        return self.wv.shape[1]

    @property
    def widths(self) -> tuple[int, int]:
        """The QK and the VO width of each head."""
        return self.qk, self.vo

    @property
    def embed(self) -> int:
        return self.wq.shape[-1]

    @property
    def has_output_bias(self) -> bool:
        """Whether the output can include a constant: a value bias does, as rows of attention sum to one."""
        return self.bo is not None or self.bv is not None

    @property
    def scale(self) -> float:
        """The factor of the products of queries and keys."""
        return float(self.qk**-0.5)

    def query_gain(self, qk: int) -> float:
        """The factor of queries if heads become `qk` wide, as logits are divided by the root of the width."""
        return float((qk / self.qk) ** 0.5)

    def keep(self, heads: Sequence[int], qk: Tensor | None = None, vo: Tensor | None = None) -> Attention:
        """Keep these heads and dimensions, in this order; the output of the others is dropped.

        A QK dimension is a row of W_Q and the same row of W_K, a VO dimension a row of W_V and a column of W_O. Logits
        stay sums of the same products. Shapes: qk [H', q'] and vo [H', v'], int64, of the kept heads; None: all.
        """
        index = list(heads)
        if self.rotary is not None and qk is not None:
            self.check_qk(qk.shape[1])
            qk = None  # all, in the order of the rotation

        def rows(weight: Tensor, at: Tensor | None) -> Tensor:  # [H, w, d] -> [H', w', d]
            return weight[index] if at is None else weight[index].take_along_dim(at.to(weight.device).unsqueeze(-1), 1)

        def entries(bias: Tensor | None, at: Tensor | None) -> Tensor | None:  # [H, w] -> [H', w']
            if bias is None or at is None:
                return _maybe(bias, index)
            return bias[index].take_along_dim(at.to(bias.device), 1)

        wq, bq = rows(self.wq, qk), entries(self.bq, qk)
        if qk is not None:
            gain = self.query_gain(qk.shape[1])
            wq, bq = wq * gain, None if bq is None else bq * gain
        return replace(
            self,
            wq=wq, bq=bq, wk=rows(self.wk, qk), bk=entries(self.bk, qk),
            wv=rows(self.wv, vo), bv=entries(self.bv, vo), wo=rows(self.wo.mT, vo).mT,
            relative=_maybe(self.relative, index),
        )  # fmt: skip

    def check_qk(self, width: int) -> None:
        """Check the QK width of rotated queries and keys.

        Raises:
            UnsupportedModelError: it differs.
        """
        if self.rotary is not None and width != self.qk:
            raise UnsupportedModelError(
                f"queries and keys are rotated by the position of their token, so that the QK width stays {self.qk}, "
                f"not {width}: prune heads, values, neurons or the embedding"
            )

    def first(self, qk: int, vo: int) -> Attention:
        """All heads, with their first dimensions."""
        import torch

        dimensions = (torch.arange(width).expand(self.heads, width) for width in (qk, vo))
        return self.keep(range(self.heads), *dimensions)

    def rebased(self, encode: Tensor, fold: Fold, decode: Decoder) -> Attention:
        """Weights of the equal function on tokens multiplied by `encode` [d', d], with all possible biases."""
        (wq, bq), (wk, bk), (wv, bv) = (
            fold.read(w, b, decode) for w, b in ((self.wq, self.bq), (self.wk, self.bk), (self.wv, self.bv))
        )
        bo = self.wo.new_zeros(self.embed) if self.bo is None else self.bo
        wo, bo = fold.write(self.wo, encode), fold.write_bias(bo, encode)
        return Attention(wq, bq, wk, bk, wv, bv, wo, bo, self.rotary, self.relative)

    def padded(self, qk: int, vo: int) -> Attention:
        """Pad the heads with zeros to these widths, which does not change the function."""
        import torch.nn.functional as F

        self.check_qk(qk)
        gain = self.query_gain(qk)

        def rows(weight: Tensor, width: int) -> Tensor:
            return F.pad(weight, (0, 0, 0, width - weight.shape[1]))  # [H, w, d] -> [H, width, d]

        def entries(bias: Tensor | None, width: int) -> Tensor | None:
            return None if bias is None else F.pad(bias, (0, width - bias.shape[-1]))

        return replace(
            self,
            wq=rows(self.wq * gain, qk), bq=entries(None if self.bq is None else self.bq * gain, qk),
            wk=rows(self.wk, qk), bk=entries(self.bk, qk), wv=rows(self.wv, vo), bv=entries(self.bv, vo),
            wo=F.pad(self.wo, (0, vo - self.vo)),
        )  # fmt: skip


@dataclass(frozen=True)
class Ffn:
    """The weights of one FFN: f(x w1' + b1) w2' + b2, or gated: (f(x w1' + b1) * (x wg' + bg)) w2' + b2.

    A neuron is a row of w1, of wg if gated, and a column of w2.
    """

    w1: Tensor  # [e, d] weights of the first layer
    b1: Tensor | None  # [e] biases of the first layer; None: zero
    w2: Tensor  # [d, e] weights of the output layer
    b2: Tensor | None  # [d] bias of the output layer; None: zero
    wg: Tensor | None = None  # [e, d] weights of the gate; None: the FFN is not gated
    bg: Tensor | None = None  # [e] biases of the gate; None: zero, or not gated

    @property
    def neurons(self) -> int:
        return len(self.w1)

    def inputs(self) -> list[Tensor]:
        """The input weights of neurons: w1, b1, wg and bg, if present; [e, d] or [e] each."""
        return [t for t in (self.w1, self.b1, self.wg, self.bg) if t is not None]

    def keep(self, neurons: object) -> Ffn:
        """Keep these neurons: indices in any order, or a slice."""
        return replace(
            self,
            w1=self.w1[neurons], b1=_maybe(self.b1, neurons), w2=self.w2[:, neurons],  # type: ignore[index]
            wg=_maybe(self.wg, neurons), bg=_maybe(self.bg, neurons),
        )  # fmt: skip

    def rebased(self, encode: Tensor, fold: Fold, decode: Decoder) -> Ffn:
        """Weights of the equal function on tokens multiplied by `encode` [d', d], with all possible input biases."""
        w1, b1 = fold.read(self.w1, self.b1, decode)
        wg, bg = (None, None) if self.wg is None else fold.read(self.wg, self.bg, decode)
        b2 = None if self.b2 is None else fold.write_bias(self.b2, encode)
        return Ffn(w1, b1, fold.write(self.w2, encode), b2, wg, bg)

    def merged(self, labels: Tensor, anchors: Tensor) -> Ffn:
        """Merge clusters into their anchors by adding the columns of w2 (Vulcan, Eq. 9); exact for equal neurons.

        Shapes: labels [e], the cluster of each neuron; anchors [K], the neuron that represents each cluster.
        """
        w2 = self.w2.new_zeros(self.w2.shape[0], len(anchors)).index_add_(1, labels, self.w2)
        return replace(self.keep(anchors), w2=w2)


@dataclass(frozen=True)
class Block:
    """The weights of one block, None for a removed site, and the number of tokens that it passes on."""

    attention: Attention | None
    ffn: Ffn | None
    # Number of tokens passed on; 0: all of the input, or in `build` as many as the model's block passes on.
    tokens: int = 0
    merged: bool = False  # whether one of the tokens passed on is the mean of the dropped tokens
    stage: int = 0  # number of the block's stage in the network, from 0
    shifted: bool = False  # whether its windows are moved by half against those of the other blocks
    windows: int = 1  # number of windows within which its tokens attend to one another

    @property
    def embed(self) -> int:
        """Width of the embedding."""
        if self.attention is not None:
            return self.attention.embed
        assert self.ffn is not None, "a block has a site"
        return self.ffn.w1.shape[-1]

    @property
    def dims(self) -> BlockDims:
        a, f = self.attention, self.ffn
        heads, qk, vo = (0, 0, 0) if a is None else (a.heads, a.qk, a.vo)
        ffn = 0 if f is None else f.neurons
        return BlockDims(heads, qk, vo, ffn, self.tokens, self.merged, self.stage, self.shifted, self.windows)


def packed_widths(dims: BlockDims) -> list[int]:
    """Rows of queries, keys and values in a packed projection, in this order."""
    return [dims.heads * dims.qk, dims.heads * dims.qk, dims.heads * dims.vo]


def unpack(packed: Tensor, dims: BlockDims) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [..., H, w] in the output [..., H * (2q + v)] of a projection, as views."""
    import torch

    q, k, v = (torch.unflatten(part, -1, (dims.heads, -1)) for part in torch.split(packed, packed_widths(dims), -1))
    return q, k, v


def pack(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The inverse of `unpack`."""
    import torch

    return torch.cat([part.flatten(-2) for part in (queries, keys, values)], dim=-1)


def attentions(blocks: Sequence[Block]) -> list[Attention]:
    """The attentions of all blocks.

    Raises:
        UnsupportedModelError: a block has none.
    """
    return [_required(block.attention, i, "attention") for i, block in enumerate(blocks)]


def ffns(blocks: Sequence[Block]) -> list[Ffn]:
    """The FFNs of all blocks.

    Raises:
        UnsupportedModelError: a block has none.
    """
    return [_required(block.ffn, i, "FFN") for i, block in enumerate(blocks)]


def check_all_pass(blocks: Sequence[Block], subject: str) -> None:
    """Check that no block drops tokens.

    Raises:
        UnsupportedModelError: one does; the message begins with `subject`.
    """
    if (first := next((i for i, block in enumerate(blocks) if block.tokens), None)) is not None:
        raise UnsupportedModelError(
            f"{subject} needs a model whose tokens pass through all of its blocks, and block {first} of this one drops "
            f"some; give the base of this model"
        )


def _required(part: Part | None, block: int, name: str) -> Part:
    if part is None:
        raise UnsupportedModelError(
            f"block {block} of this model has no {name}, and this method prunes blocks that have both sites; "
            f"derive from the base of this model"
        )
    return part


# -- sites: axes along which they can become smaller -------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """One attention or FFN of a model, and its frozen axes."""

    block: int
    kind: SiteKind
    # The reason why each frozen axis cannot become smaller, by axis; empty: none is frozen.
    frozen: Mapping[Axis, str] = field(default_factory=lambda: MappingProxyType({}))
