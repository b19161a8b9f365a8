"""Rivals of PIAD (Table 7 of its paper): other ways to draw what a training step drops.

`channel` (Tompson et al., 2015, SpatialDropout): every channel is dropped with the same probability, at all positions
of an image. The others are divided by the probability of staying; Torch's `SpatialDropout` instead multiplies by it at
evaluation. Rate 0.5, its default there.

`weighted` (Hou and Wang, 2019, weighted channel dropout): a fixed number of channels stays in each module. A channel's
score is its mean activation over an image, and channels are drawn without replacement by their scores: those with the
largest u^(1/score), u uniform in [0, 1). The drawn ones are multiplied by the sum of all scores over the sum of theirs,
and no gradient passes through scores. This follows the paper's abstract and later code. Its scores are of activations
after a ReLU; queries, values and GELU have signs, so here the absolute value is used. Its third module, which drops
some of the drawn channels again at random, is left out: one rate sets how much is dropped. Rate 0.2 is our choice.

`layer` (Fan et al., 2020, LayerDrop): every block is dropped with the same probability, without rescaling. Rate 0.2, as
in the networks that they published.

`none`: nothing is dropped.

The paper of PIAD gives only their names. Our choices:
- A channel is the least that a slice can lack: one width of an attention, of the queries and values of all heads, or
  one neuron. Only PIAD drops channels of the embedding.
- One draw serves all images of a step, as PIAD's does. With `weighted` the random numbers are shared and the scores are
  those of each image, so that a step is the same however its batch is shared among processes and micro-batches.
- A dropped block is one whose attention and FFN are masked whole; their output biases stay, as in every slice.
- Rivals train from WPAC's order, too, and their slices are cut by the list of PIAD's importance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from edgevit.derivation.methods.skd.masks import Dropping, Masks
from edgevit.network.anatomy import BlockDims, pack, unpack

Dropout = Literal["piad", "channel", "weighted", "layer", "none"]
RATES = {"channel": 0.5, "weighted": 0.2, "layer": 0.2}


def _per_output(dims: BlockDims, widths: Tensor) -> Tensor:
    """Expand the factors of the widths [..., w] to the projection's outputs [..., H * (2q + v)]; keys have factor 1."""
    queries, values = (widths[..., None, :n].expand(*widths.shape[:-1], dims.heads, n) for n in dims.head_widths)
    return pack(queries, torch.ones_like(queries), values)


@dataclass(frozen=True)
class WeightedMasks:
    """Channels drawn for each image by their mean activation."""

    whole: Sequence[BlockDims]
    # Random numbers in [0, 1) per block: [w] for the head widths and [e] for the neurons.
    draws: list[tuple[Tensor, Tensor]]
    rate: float

    def narrowed(self, tokens: Tensor) -> Tensor:
        return tokens

    def of_module(self, tensor: Tensor, block: int, part: int) -> Tensor:
        scores = self._scores(tensor.detach().float(), block, part).clamp_min(torch.finfo(torch.float32).tiny)
        keys = self.draws[block][part].log() / scores  # ranked as u^(1/score)
        drawn = keys.topk(stay(scores.shape[-1], self.rate), dim=-1).indices
        mask = torch.zeros_like(scores).scatter(-1, drawn, 1.0)
        mask = mask * (scores.sum(-1, keepdim=True) / (scores * mask).sum(-1, keepdim=True))
        factors = mask if part == 1 else _per_output(self.whole[block], mask)
        return tensor * factors[:, None].to(tensor.dtype)

    def _scores(self, tensor: Tensor, block: int, part: int) -> Tensor:
        """Return the mean absolute activation of each channel, [B, w] or [B, e]."""
        if part == 1:
            return tensor.abs().mean(1)
        dims = self.whole[block]
        queries, _, values = (t.abs().mean(1).sum(1) for t in unpack(tensor, dims))  # [B, N, H, w]
        scores = tensor.new_zeros(len(tensor), dims.head_width)
        for activations in (queries, values):
            scores[:, : activations.shape[-1]] += activations
        return scores


def stay(channels: int, rate: float) -> int:
    """Return how many of a module's channels `weighted` draws."""
    return max(round((1 - rate) * channels), min(channels, 1))


@dataclass(frozen=True)
class Rival:
    """Draws the sub-network of each step in place of PIAD."""

    kind: Literal["channel", "weighted", "layer", "none"]
    rate: float  # share of the channels or blocks that is dropped

    def draw(
        self, whole: Sequence[BlockDims], generator: Generator, device: torch.device
    ) -> tuple[Dropping | None, float]:
        """Draw what the next step drops (None: nothing), and return the share of the dimensions that stays."""
        if self.kind == "none":
            return None, 1.0
        widths = [(dims.head_width, dims.ffn) for dims in whole]
        if self.kind == "layer":
            of_blocks = torch.rand(len(whole), generator=generator)
            draws = [(u.expand(w), u.expand(e)) for u, (w, e) in zip(of_blocks, widths, strict=True)]
        else:
            draws = [(torch.rand(w, generator=generator), torch.rand(e, generator=generator)) for w, e in widths]
        channels = sum(map(sum, widths))
        if self.kind == "weighted":
            on_device = [(w.to(device), e.to(device)) for w, e in draws]
            count = sum(stay(n, self.rate) for pair in widths for n in pair)
            return WeightedMasks(whole, on_device, self.rate), count / channels
        present = [(w >= self.rate, e >= self.rate) for w, e in draws]
        factor = 1 / (1 - self.rate) if self.kind == "channel" else 1.0
        masks = [
            (_per_output(dims, factor * w).to(device), (factor * e).to(device))
            for dims, (w, e) in zip(whole, present, strict=True)
        ]
        return Masks(masks), sum(int(part.sum()) for pair in present for part in pair) / channels


def rival_of(dropout: Dropout, rate: float) -> Rival | None:
    """Return the rival of this name, at its own rate if `rate` is 0; None for PIAD itself."""
    return None if dropout == "piad" else Rival(dropout, rate or RATES.get(dropout, 0.0))
