"""Collect statistics of each block in one pass over calibration images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, isqrt
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.measure.thinning import Thinning, every_token
from edgevit.errors import DataError
from edgevit.network.anatomy import Block
from edgevit.network.network import Network
from edgevit.train.passes import Observer, Passes
from edgevit.train.products import exact_sums

# What the error of a factorised attention is measured on: the weights alone, the block's own input tokens, or these
# tokens weighted by what the loss would lose with them.
Factorisation = Literal["weights", "activations", "tokens"]
_PANELS = 8  # a symmetric sum of outer products costs 9/16 of a full one when split into so many
_LEAST_PANEL = 96  # rows: of narrower ones a product takes longer than it saves


@dataclass(frozen=True)
class BlockStatistics:
    """Statistics of a block's activations.

    h are the FFN's neurons as its output layer reads them, behind the non-linearity and, where gated, the product.
    Shapes: e FFN width, d embedding width. fp64, on the CPU. Means are over tokens and images. Of a block without FFN e
    is 0, and one without attention has no moments of its inputs.
    """

    activation: Tensor  # [e] sum over tokens of h, mean over images (Vulcan, Eq. 17)
    magnitude: Tensor  # [e] mean absolute value of h (NuWa)
    mean: Tensor  # [e] mean of h
    moment: Tensor | None = None  # [d + 1, d + 1] mean of [x 1]^T [x 1], x the attention's normalised input
    hidden: Tensor | None = None  # [e, e] mean of h^T h
    query: Tensor | None = None  # [d + 1, d + 1] `moment` with each token weighted by how much its query matters

    def tensors(self) -> dict[str, Tensor]:
        """The statistics that were collected, by name."""
        return {f.name: t for f in fields(self) if (t := getattr(self, f.name)) is not None}

    def map(self, change: Callable[[Tensor], Tensor]) -> BlockStatistics:
        return replace(self, **{name: change(t) for name, t in self.tensors().items()})


def token_sum(activations: Tensor) -> Tensor:
    """FFN activations [B, N, e] to their token sum averaged over the images: [e]."""
    return activations.sum(dim=1).mean(dim=0)


def add_outer(total: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
    """Add the first m rows of x^T diag(weight) x to `total` [m, n], its upper triangle. Shapes: x [T, n], weight [T].

    Products in the precision of x, sums over batches in that of `total`: an fp32 product of 3152 tokens was off by 3e-9
    of the largest eigenvalue, far below any ridge, at half the time of fp64. What lies below the diagonal is left
    undefined until `symmetric`.
    """
    rows = x[:, : len(total)] if weight is None else x[:, : len(total)] * weight.unsqueeze(1)
    step = max(ceil(len(total) / _PANELS), _LEAST_PANEL)
    with exact_sums(x.device):
        for start in range(0, len(total), step):
            total[start : start + step, start:] += rows[:, start : start + step].mT @ x[:, start:]


def symmetric(upper: Tensor) -> Tensor:
    """Complete the matrix whose upper triangle `add_outer` filled."""
    return upper.triu().add_(upper.triu(1).mT)


def triangle(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix [n, n] in fp32: [n (n + 1) / 2], a quarter of the bytes of fp64."""
    return matrix[torch.ones_like(matrix, dtype=torch.bool).triu()].float()


def from_triangle(values: Tensor) -> Tensor:
    """The matrix [n, n] of `triangle`, in fp64."""
    side = (isqrt(8 * len(values) + 1) - 1) // 2
    upper = torch.zeros(side, side, dtype=torch.float64, device=values.device)
    upper[torch.ones_like(upper, dtype=torch.bool).triu()] = values.double()
    return symmetric(upper)


def minimum_images(network: Network) -> int:
    """The fewest calibration images whose tokens determine every second moment of the network's blocks."""
    stages, dims = network.geometry.stages, network.dims
    return max(ceil((max(stages[d.stage].embed, d.ffn) + 1) / stages[d.stage].tokens) for d in dims)


def check_enough(calibration_images: int, training_images: int, network: Network, option: str) -> None:
    """Raise DataError, with the minimum, if so many calibration images cannot determine the network's second moments.

    Args:
        training_images: how many there are.
        option: the option that sets the number of calibration images.
    """
    least, tokens = minimum_images(network), network.geometry.tokens
    if (images := min(calibration_images, training_images)) < least:
        more = [f"raise {option}"] * (calibration_images < least) + ["add images"] * (training_images < least)
        raise DataError(
            f"{images} calibration images give {images * tokens} tokens, and the widest layer needs {least} images of "
            f"{tokens}; {' and '.join(more)}"
        )


class _Sums:
    """Sums over all tokens so far; their size does not depend on the number of tokens."""

    def __init__(
        self,
        block: Block,
        factorisation: Factorisation,
        hidden: bool,
        device: torch.device,
        by_token: tuple[Tensor, Tensor] | None,
        thinning: Thinning,
    ) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        width, embed = block.dims.ffn, block.embed
        attends = factorisation != "weights" and block.attention is not None
        self.thinning = thinning
        self.tokens = zeros()
        self.signed, self.absolute = zeros(width), zeros(width)
        self.hidden = zeros(width, width) if hidden and block.ffn is not None else None
        self.query = zeros(embed + 1, embed + 1) if attends and by_token is not None else None
        self.by_token = by_token and tuple(w.to(device) for w in by_token)
        self.moment = zeros(embed + 1, embed + 1) if attends else None
        self.weight = zeros()  # weight of the tokens in `moment`

    def add_hidden(self, h: Tensor) -> None:
        by_token = None if self.by_token is None else self.by_token[1]
        weight = self.thinning.weights(h.detach(), by_token)
        h = self.thinning.of(h.detach()).float()
        weighted = h if weight is None else h * weight.unsqueeze(1)
        self.tokens += len(h) if weight is None else weight.sum()
        # In fp64: an error of a large mean, squared for all neurons at once, is soon above any ridge.
        self.signed += weighted.sum(dim=0, dtype=torch.float64)
        self.absolute += weighted.abs().sum(dim=0, dtype=torch.float64)
        if self.hidden is not None:
            add_outer(self.hidden, h, weight)

    def add_input(self, x: Tensor, gradient: Tensor | None) -> None:
        """Add the attention's input [B, N, d], each token weighted by sum |x * gradient| with a gradient (WPAC)."""
        assert self.moment is not None
        whole = x.detach()
        x = self.thinning.of(whole).float()
        weight = self.thinning.weights(whole, None)
        if gradient is not None:
            saliency = (x * self.thinning.of(gradient)).abs().sum(dim=1)
            weight = saliency if weight is None else saliency * weight
        self.weight += len(x) if weight is None else weight.sum()
        tokens = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        add_outer(self.moment, tokens, weight)
        if self.by_token is not None and self.query is not None:
            add_outer(self.query, tokens, self.thinning.weights(whole, self.by_token[0]))

    def statistics(self, images: int, add_up: Callable[[Tensor], Tensor]) -> BlockStatistics:
        """Means over all images; `add_up` sums over all processes."""
        least = torch.finfo(torch.float64).tiny
        tokens, weight = add_up(self.tokens).clamp_min(least), add_up(self.weight).clamp_min(least)

        def mean(sums: Tensor | None, count: Tensor) -> Tensor | None:
            return None if sums is None else symmetric(add_up(sums)) / count

        signed = add_up(self.signed)
        return BlockStatistics(
            activation=signed / images,
            magnitude=add_up(self.absolute) / tokens,
            mean=signed / tokens,
            moment=mean(self.moment, weight),
            hidden=mean(self.hidden, tokens),
            query=mean(self.query, weight),  # weights by token have mean one
        ).map(torch.Tensor.cpu)


def calibrate(
    network: Network,
    images: Split,
    passes: Passes,
    *,
    factorisation: Factorisation = "weights",
    hidden: bool = False,
    by_token: Sequence[tuple[Tensor, Tensor]] | None = None,
    thinnings: Sequence[Thinning] | None = None,
    show: Callable[[Sequence[Observer]], None] | None = None,
) -> list[BlockStatistics]:
    """Run the images through the network once; memory does not grow with their number.

    Args:
        factorisation: which moments to collect; "weights" collects none, "tokens" needs gradients of the task's loss.
        hidden: collect the FFN's second moments, too.
        by_token: per block, the sensitivities of queries and FFN outputs by token [N], mean one: they weight all of the
            FFN's statistics, and `query` is collected.
        thinnings: which tokens of each block are observed; None: all.
        show: runs all images through the network with these observers, without gradients; None: a pass of its own.

    Raises:
        DataError: a statistic is not finite.
    """
    device = passes.compute.device
    blocks = network.read()
    shares: Sequence[tuple[Tensor, Tensor] | None] = by_token or [None] * len(blocks)
    sums = [
        _Sums(block, factorisation, hidden, device, w, thinning)
        for block, w, thinning in zip(blocks, shares, thinnings or [every_token(network)] * len(blocks), strict=True)
    ]
    inputs: dict[int, Tensor] = {}  # inputs of each block that has an attention
    weighted = factorisation == "tokens"
    target = torch.as_tensor(network.columns if weighted else (), device=device)

    def observe_input(i: int, read: Any, _: Tensor) -> None:
        if weighted:
            inputs[i] = read[0]
        else:
            sums[i].add_input(read[0], None)

    def backpropagate(logits: Tensor, labels: Tensor) -> None:
        if not weighted:
            return
        # Summed, not averaged: the gradient at a token is that of its own image's loss.
        loss = F.cross_entropy(logits, target[labels], reduction="sum")
        gradients = torch.autograd.grad(loss, list(inputs.values()))
        for (i, x), gradient in zip(inputs.items(), gradients, strict=True):
            sums[i].add_input(x, gradient)
        inputs.clear()

    ffns = network.ffn_outputs
    observers: list[Observer] = [(ffns, lambda i, read, _: sums[i].add_hidden(read[0]))]
    if factorisation != "weights":
        observers.append((network.attention_inputs, observe_input))
    if show is None:
        passes.run(network, images, backpropagate, observers, gradients=weighted, stage="statistics of activations")
    else:
        assert not weighted, "gradients are taken in passes of their own"
        show(observers)
    blocks_statistics: list[BlockStatistics] = []
    while sums:  # free each block's sums as its statistics are made: second moments are most of the memory
        statistics = sums.pop(0).statistics(len(images), passes.compute.sum)
        blocks_statistics.append(_finite(statistics, len(blocks_statistics)))
    return blocks_statistics


def _finite(statistics: BlockStatistics, block: int) -> BlockStatistics:
    """Refuse statistics that are not finite, where the block is still known."""
    for name, tensor in statistics.tensors().items():
        if not torch.isfinite(tensor).all():
            raise DataError(
                f"the {name} of block {block} is not finite over the calibration images; "
                f"check the base's weights, and --mean and --std"
            )
    return statistics
