"""The rivals of PIAD in Table 7 of its paper: what each of them drops in a training step.

`channel` (Tompson et al., 2015, SpatialDropout): every channel is dropped with the same probability, at all positions
of an image. What stays is divided by the probability of staying, where Torch's `SpatialDropout` multiplies by it when
the network is evaluated. Rate 0.5, as by default there.

`weighted` (Hou and Wang, 2019, weighted channel dropout): a fixed number of channels stays in each module. A channel's
score is its mean activation over an image, and channels are drawn without replacement by their scores: those with the
largest u^(1/score), u uniform in [0, 1). What stays is multiplied by the sum of all scores over that of the channels
drawn, and no gradient passes through scores. We have this from the paper's abstract and from code that follows it. Its
scores are of activations behind a ReLU; queries, values and GELU have signs, so the absolute value is taken here. Its
third module, which drops some of the drawn channels once more at random, is left out: one rate says how much goes.
Rate 0.2 is a choice of ours.

`layer` (Fan et al., 2020, LayerDrop): every block is dropped with the same probability, and nothing is rescaled. Rate
0.2, as in the networks that they published.

`none`: nothing is dropped.

The paper of PIAD says no more than their names. Decided here:
- A channel is the least that a slice can lack: one width of an attention, of the queries and values of all heads, or
  one neuron. Channels of the embedding are dropped by PIAD alone.
- One draw serves all images of a step, as PIAD's does. With `weighted` the random numbers are shared and the scores are
  those of each image, so that a step is the same however its batch is shared among processes and micro-batches.
- A dropped block is one whose attention and FFN are masked whole; their output biases stay, as they do in every slice.
- Rivals train from WPAC's order, too, and their slices are cut by the list that PIAD's measure of importance gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from edgevit.derivation.methods.skd.masks import Dropping, Masks
from edgevit.network.anatomy import BlockDims
from edgevit.network.families import Family

Dropout = Literal["piad", "channel", "weighted", "layer", "none"]
RATES = {"channel": 0.5, "weighted": 0.2, "layer": 0.2}


def _width(dims: BlockDims) -> int:
    """How many widths an attention has: those of queries and keys, or of values, where these are more."""
    return max(dims.qk, dims.vo)


def _per_output(family: Family, dims: BlockDims, widths: Tensor) -> Tensor:
    """What the widths [..., w] are multiplied by, for each output of the projection [..., H * (2q + v)]; keys stay."""
    queries, values = (widths[..., None, :n].expand(*widths.shape[:-1], dims.heads, n) for n in (dims.qk, dims.vo))
    return family.pack(queries, torch.ones_like(queries), values)


@dataclass(frozen=True)
class WeightedMasks:
    """Channels that are drawn for each image by how strongly it activates them."""

    family: Family
    whole: Sequence[BlockDims]
    draws: list[tuple[Tensor, Tensor]]  # per block, uniform in [0, 1): of the widths [w] and of the neurons [e]
    rate: float

    def narrowed(self, tokens: Tensor) -> Tensor:
        return tokens

    def of_module(self, tensor: Tensor, block: int, part: int) -> Tensor:
        scores = self._scores(tensor.detach().float(), block, part).clamp_min(torch.finfo(torch.float32).tiny)
        keys = self.draws[block][part].log() / scores  # ranked as u^(1/score)
        drawn = keys.topk(stay(scores.shape[-1], self.rate), dim=-1).indices
        kept = torch.zeros_like(scores).scatter(-1, drawn, 1.0)
        kept = kept * (scores.sum(-1, keepdim=True) / (scores * kept).sum(-1, keepdim=True))
        factors = kept if part == 1 else _per_output(self.family, self.whole[block], kept)
        return tensor * factors[:, None].to(tensor.dtype)

    def _scores(self, tensor: Tensor, block: int, part: int) -> Tensor:
        """Mean absolute activation of each channel, [B, w] or [B, e]."""
        if part == 1:
            return tensor.abs().mean(1)
        dims = self.whole[block]
        queries, _, values = (t.abs().mean(1).sum(1) for t in self.family.unpack(tensor, dims))  # [B, N, H, w]
        scores = tensor.new_zeros(len(tensor), _width(dims))
        scores[:, : dims.qk] += queries
        scores[:, : dims.vo] += values
        return scores


def stay(channels: int, rate: float) -> int:
    """How many of a module's channels `weighted` draws."""
    return max(round((1 - rate) * channels), min(channels, 1))


@dataclass(frozen=True)
class Rival:
    """What draws the sub-network of each step in place of PIAD."""

    kind: Literal["channel", "weighted", "layer", "none"]
    rate: float  # the share that is dropped

    def draw(
        self, family: Family, whole: Sequence[BlockDims], generator: Generator, device: torch.device
    ) -> tuple[Dropping | None, float]:
        """Draw what the next step drops (None: nothing), and say which share of the dimensions stays."""
        if self.kind == "none":
            return None, 1.0
        widths = [(_width(dims), dims.ffn) for dims in whole]
        if self.kind == "layer":
            of_blocks = torch.rand(len(whole), generator=generator)
            draws = [(one.expand(w), one.expand(e)) for one, (w, e) in zip(of_blocks, widths, strict=True)]
        else:
            draws = [(torch.rand(w, generator=generator), torch.rand(e, generator=generator)) for w, e in widths]
        channels = sum(map(sum, widths))
        if self.kind == "weighted":
            there = [(w.to(device), e.to(device)) for w, e in draws]
            left = sum(stay(n, self.rate) for pair in widths for n in pair)
            return WeightedMasks(family, whole, there, self.rate), left / channels
        kept = [(w >= self.rate, e >= self.rate) for w, e in draws]
        factor = 1 / (1 - self.rate) if self.kind == "channel" else 1.0
        masks = [
            (_per_output(family, dims, factor * w).to(device), (factor * e).to(device))
            for dims, (w, e) in zip(whole, kept, strict=True)
        ]
        return Masks(masks), sum(int(part.sum()) for pair in kept for part in pair) / channels


def rival_of(dropout: Dropout, rate: float) -> Rival | None:
    """The rival of this name, at its own rate where none is given; None: PIAD itself."""
    return None if dropout == "piad" else Rival(dropout, rate or RATES.get(dropout, 0.0))
