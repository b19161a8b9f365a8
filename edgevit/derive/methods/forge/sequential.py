"""Closed form, block by block: a slim network's output weights solved for its own inputs and the base's tokens.

Factors and neurons chosen for the base's inputs meet other inputs in the slim network, because the blocks before them
have errors of their own. So, from the first block to the last, W_O and W_2 are solved again by least squares: the
inputs are what the slim network itself computes so far, the targets what brings its tokens back to the base's,

    attention:  (x_mid - x') / s_1     with x_mid the base's tokens after attention and x' the slim network's before it
    FFN:        (x_next - x'_mid) / s_2     with x_next the base's tokens where the next block that is kept begins

so that each block mends what it can of what was lost before it, and takes over what it can of dropped blocks. Tokens
count by how much the answers feel them. Where the images leave a direction open, the weights stay what they were.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derive.algebra.least_squares import Regression
from edgevit.folder.writing import writing
from edgevit.models.families import family_of
from edgevit.train.passes import Passes, observed

IN_MEMORY_BYTES = 2 * 10**9  # of tokens: 1600 images of DeiT-Base


class _Watch:
    """What one layer's modules were given or put out last."""

    def __init__(self) -> None:
        self.last: dict[str, Tensor] = {}

    def of(self, name: str, *, given: bool = False) -> Callable[[int, Any, Tensor], None]:
        def see(_: int, inputs: Any, output: Tensor) -> None:
            self.last[name] = inputs[0] if given else output

        return see


class _Streams:
    """Tokens of base and slim network between two blocks, batch by batch, on the CPU: [B, N, d] each."""

    def __init__(self, base: nn.Module, images: Split, passes: Passes) -> None:
        self.device, self.bytes = passes.compute.device, 0
        self.base: list[Tensor] = []
        self.slim: list[Tensor] = []
        passes.show(base, images, lambda batch, _: self._begin(family_of(base).first_tokens(base, batch)))

    def _begin(self, tokens: Tensor) -> None:
        self.base.append(self._keep(tokens))
        self.slim.append(self._keep(tokens))

    def _keep(self, tokens: Tensor) -> Tensor:
        self.bytes += tokens.nbytes
        room = torch.empty(tokens.shape) if self.bytes <= IN_MEMORY_BYTES else _in_a_file(tokens.shape)
        return room.copy_(tokens)

    def __len__(self) -> int:
        return len(self.base)

    def of(self, batch: int) -> tuple[Tensor, Tensor]:
        return self.base[batch].to(self.device), self.slim[batch].to(self.device)


def _in_a_file(shape: torch.Size) -> Tensor:
    """Room for fp32 values in a file of the system's folder for such files, gone with the tensor.

    Raises:
        OutputError: the disk is full.
    """
    with tempfile.NamedTemporaryFile(prefix="edgevit-tokens-") as file:
        with writing(Path(file.name)):  # a full disk is to be met here, and not in the middle of a sum
            os.posix_fallocate(file.fileno(), 0, 4 * shape.numel())
        return torch.from_file(file.name, shared=True, size=shape.numel()).view(shape)


def _fit(linear: Any, regression: Regression, ridge: float) -> None:
    weight, bias = regression.solve(ridge, prior=linear.weight, bias=linear.bias is not None)
    linear.weight.copy_(weight)
    if bias is not None:
        linear.bias.copy_(bias)


def _regression(linear: Any) -> Regression:
    return Regression(linear.in_features, linear.out_features, linear.weight.device)


def _solve_layer(
    base: nn.Module,
    slim: nn.Module,
    streams: _Streams,
    layers: Sequence[int],
    position: int,
    by_token: tuple[Tensor, Tensor],
    ridge: float,
    add_up: Callable[[Tensor], Tensor],
) -> None:
    """Solve one layer of the slim network, and move both streams past it.

    Args:
        layers: of the base: the one that the slim layer at `position` stands for, and those dropped after it.
        add_up: adds up the sums of all processes.
    """
    of_base, of_slim = family_of(base), family_of(slim)
    whole, narrow = of_base.layers(base), of_slim.layers(slim)[position]
    projection, output = of_slim.attention_outputs(slim)[position], of_slim.ffn_outputs(slim)[position]
    scales = of_base.residual_scales(base)[layers[0]]
    watch = _Watch()
    first = layers[0]
    own: list[Tensor] = []  # of the base: the FFN's outputs, where there is no sum to be mended
    solved = _regression(projection)
    weight = by_token[0].float().to(streams.device)
    with (
        observed([of_base.attention_outputs(base)[first]], watch.of("attention")),
        observed([of_base.ffn_outputs(base)[first]], watch.of("ffn")),
        observed([projection], watch.of("heads", given=True)),
    ):
        for i in range(len(streams)):
            x, y = streams.of(i)
            after = whole[first](x)
            narrow(y)
            target = watch.last["attention"] if scales is None else (x - y) / scales[0] + watch.last["attention"]
            solved.add(watch.last["heads"].flatten(0, 1), target.flatten(0, 1), weight.repeat(len(x)))
            if scales is None:
                own.append(watch.last["ffn"].cpu())
            for dropped in layers[1:]:
                after = whole[dropped](after)
            streams.base[i].copy_(after)
    _fit(projection, solved.map(add_up), ridge)
    solved = _regression(output)
    weight = by_token[1].float().to(streams.device)
    with observed([projection], watch.of("attention")), observed([output], watch.of("neurons", given=True)):
        for i in range(len(streams)):
            x, y = streams.of(i)
            narrow(y)
            target = own[i].to(x) if scales is None else (x - y - scales[0] * watch.last["attention"]) / scales[1]
            solved.add(watch.last["neurons"].flatten(0, 1), target.flatten(0, 1), weight.repeat(len(x)))
    _fit(output, solved.map(add_up), ridge)
    for i in range(len(streams)):
        streams.slim[i].copy_(narrow(streams.of(i)[1]))


@torch.no_grad()
def solve_in_sequence(
    base: nn.Module,
    slim: nn.Module,
    kept: Sequence[int],
    images: Split,
    by_token: Sequence[tuple[Tensor, Tensor]],
    passes: Passes,
    *,
    ridge: float,
) -> None:
    """Solve the output weights of every block of `slim` in place.

    Sums are fp64 and of one size. Beside them the tokens of all images are kept between two blocks, twice: beyond
    `IN_MEMORY_BYTES` in files, so that memory does not grow with the number of images.

    Args:
        kept: for each block of the slim network, the block of the base that it stands for.
        by_token: per block of the base, how much attention's and FFN's output matter at each token: two of [N].
        ridge: of the solutions, in units of the inputs' mean square; it draws them to the weights there are.
    """
    base.to(passes.compute.device).eval()
    slim.to(passes.compute.device).eval()
    streams = _Streams(base, images, passes)
    ends = [*kept[1:], len(by_token)]
    with passes.progress.stage("solve block by block", len(kept), "block") as stage:
        for position, (first, end) in enumerate(zip(kept, ends, strict=True)):
            layers = range(first, end)
            # The FFN's output stands for that of the last of the layers: it is felt where that one's is.
            felt = by_token[first][0], by_token[end - 1][1]
            _solve_layer(base, slim, streams, layers, position, felt, ridge, passes.compute.sum)
            stage.update(position + 1)
