"""Solve a slim network's output weights block by block, for its own inputs and the base's tokens.

Factors and neurons were chosen for the base's inputs, but in the slim network the blocks before have errors. So W_O and
W_2 are solved again by least squares, from the first block to the last. The inputs are those that the slim network
computes so far, and the targets bring its tokens back to the base's:

    attention:  (x_mid - x') / s_1     with x_mid the base's tokens after attention and x' the slim network's before it
    FFN:        (x_next - x'_mid) / s_2     with x_next the base's tokens where the next block that is kept begins

So each block corrects errors of the blocks before it and replaces blocks removed after it, as far as it can. Where a
norm reads the sum of tokens and output, the targets bring this sum to the base's. Where a norm reads the output alone,
that is the target. The attention of a block without an FFN has the FFN's target. Tokens are weighted by the loss's
sensitivity to them. A ridge draws each solution to the present weights. Its size is the one of least error on images
that the solution has not seen (`Regression.chosen_ridge`), so a solution goes only as far as the number of images
allows.

With `align`, the layers that read a site's normalised tokens n' are aligned first: with n the base's, T and t minimise
E|n - T n' - t|^2 and are multiplied into them, W <- W T and b <- b + W t, with a ridge towards T = 1.

Where a block puts out tokens of the whole width for a head, the linear layer that restores them is solved likewise.

Several slim networks share the base's pass, and each computes every site once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.measure.thinning import Thinning, every_token
from edgevit.derivation.methods.forge.streams import BaseStream, Keep, Passed, enter_all
from edgevit.derivation.solve.least_squares import Regression
from edgevit.network.layers import SiteLayer, first_input
from edgevit.network.network import Network
from edgevit.train.passes import Passes


@dataclass(frozen=True)
class Slim:
    """A network whose output weights are solved in place."""

    network: Network
    blocks: Sequence[int]  # number in the base of each block of the network
    align: bool = False  # whether layers that read normalised tokens are aligned before output weights are solved
    # [d', d] of each basis: the tokens approximate these times the base's tokens; None: the base's tokens themselves.
    encoders: Sequence[Tensor] | None = None

    @property
    def has_own_tokens(self) -> bool:
        """Whether its first tokens are no linear map of the base's."""
        return self.encoders is not None and len(self.encoders) > 1


_Scale = Tensor | float


def _scales(layers: Sequence[SiteLayer[Any] | None]) -> tuple[_Scale, _Scale] | None:
    """The scales of a block's attention and FFN, 1.0 where removed; None: norms follow their outputs."""
    if any(layer is not None and layer.scale is None for layer in layers):
        return None
    first, second = (1.0 if layer is None or layer.scale is None else layer.scale for layer in layers)
    return first, second


def _before_scale(target: Tensor, scale: _Scale) -> Tensor:
    """Divide a target by the LayerScale that follows; 0 in channels with a scale of 0."""
    if isinstance(scale, float):
        return target / scale
    return torch.where(scale == 0, 0.0, target / scale)


def _output_inputs(branch: SiteLayer[Any], tokens: Tensor) -> Tensor:
    """Compute the inputs of a site's output layer for these tokens, without the layer itself, half of an FFN."""
    return first_input(branch.output, lambda: branch.module(branch.before(tokens))).float()


@dataclass
class _Layer:
    """One layer of the base, with its tensors for every batch where a solver needs them."""

    number: int
    branches: tuple[SiteLayer[Any] | None, SiteLayer[Any] | None]
    scales: tuple[_Scale, _Scale] | None
    middles: list[Tensor]  # tokens after the attention, one tensor [B, N, d] per batch
    # Outputs of the FFN, one tensor per batch; where a norm reads the sum of tokens and output, that sum.
    ffn_outputs: list[Tensor]


class _Solver:
    """Solves one slim network, a block at a time."""

    def __init__(
        self,
        slim: Slim,
        stream: BaseStream,
        by_token: Sequence[tuple[Tensor, Tensor]],
        thinnings: Sequence[Thinning],
        tokens: Sequence[Tensor] | None,
    ) -> None:
        """Take its first tokens, [B, N, d'] per batch; None: they follow from the base's."""
        self.align, self.stream, self.by_token, self.thinnings = slim.align, stream, by_token, thinnings
        self.blocks = dict(zip(slim.blocks, slim.network.blocks, strict=True))
        # A block replaces the removed ones after it, up to the next that is kept or to the end of its stage.
        stages = [block.stage for block in stream.blocks]
        self.ends = {
            begin: next((i for i in range(begin + 1, end) if stages[i] != stages[begin]), end)
            for begin, end in zip(slim.blocks, [*slim.blocks[1:], len(by_token)], strict=True)
        }
        self.encoders = slim.encoders and [encode.to(stream.device).float() for encode in slim.encoders]
        self._set_stage(0)
        # The tokens before the block.
        self.tokens = [*(tokens or (stream.store.copy(self._encoded(x.to(stream.device))) for x in stream.tokens))]

    def _set_stage(self, stage: int) -> None:
        # The last encoders are those of the stages.
        count = len(self.stream.base.geometry.stages)
        self.encode = None if self.encoders is None else self.encoders[stage - count]

    def _encoded(self, tokens: Tensor) -> Tensor:
        """Return the base's tokens in this network's embedding of their stage."""
        return tokens if self.encode is None else tokens @ self.encode.mT

    def _normalised(self, branch: SiteLayer[Any], base: SiteLayer[Any] | None, tokens: Tensor) -> Tensor:
        """Normalise the base's tokens for the readers of a site as the base does."""
        # A change of basis moved the base's norm into the readers.
        if base is None or self.encode is not None:
            base, tokens = branch, self._encoded(tokens)
        normalised: Tensor = base.before(tokens)
        return normalised

    def begin(self, layer: _Layer) -> None:
        """Start with the block of this layer, whose tokens the base's stream has now."""
        self.layer, self.thinning = layer, self.thinnings[layer.number]
        self._set_stage(self.blocks[layer.number].stage)
        enter_all(self.stream, self.tokens, self.blocks[layer.number])
        self.heads: list[Tensor] = []  # the inputs of the attention's output layer
        self.attention, self.ffn = self.blocks[layer.number].attention, self.blocks[layer.number].ffn
        # The errors of its FFN are weighted as those of the last block that it replaces.
        self.weights = self.by_token[layer.number][0], self.by_token[self.ends[layer.number] - 1][1]
        if self.attention is not None:
            self.sums = _regression(self.attention.output)
            if self.align:
                self._align(self.attention, layer.branches[0], self.stream.tokens, 0)

    def attend(self, batch: int, base: Passed) -> None:
        """Add a batch of the base's attention to the sums."""
        if self.attention is None:
            return
        y = self.stream.of(self.tokens, batch)
        heads = self._inputs(self.attention, y)
        self.heads.append(self.stream.store.copy(heads))
        scales = self.layer.scales
        if scales is not None and self.ffn is None:
            return  # its target follows in `finish`
        assert base.attention is not None
        of = self.thinning.of
        if scales is None:
            target = of(base.attention)
            if self.attention.joined is not None:
                target = target + of(base.before) - of(y)
        elif self.encode is None:
            target = _before_scale(of(base.before) - of(y), scales[0]) + of(base.attention)
        else:  # a change of basis moved LayerScale into the weights
            target = self._encoded(of(base.middle)) - of(y)
        self._add(heads, target, self.weights[0])

    def settle(self) -> None:
        """Solve the attention, unless its target is that of a removed FFN."""
        if self.attention is not None and (self.ffn is not None or self.layer.scales is None):
            self._solve(self.attention.output)

    def finish(self) -> None:
        """Solve the remaining site of the block for the present tokens of the base's stream, and move past it."""
        scales, of = self.layer.scales, self.stream.of
        if scales is not None and self.encode is not None:
            scales = (1.0, 1.0)
        batches = self.stream.batches
        if self.ffn is None and scales is not None:
            assert self.attention is not None
            for i in batches():
                target = _before_scale(self._missing(i, of(self.tokens, i)), scales[0])
                self._add(of(self.heads, i), target, self.weights[1])
            self._solve(self.attention.output)
        if self.attention is not None:
            for tokens, heads in zip(self.tokens, self.heads, strict=True):
                output = self.attention.output(heads.to(self.stream.device))
                tokens.copy_(self.attention.past(tokens.to(output), output))
        if self.ffn is not None:
            self._finish_ffn(scales)
        if (restore := self.blocks[self.layer.number].restore) is not None:
            self.sums = _regression(restore)
            for i in batches():
                target = self.stream.blocks[self.layer.number].put_out(of(self.stream.tokens, i))
                self._add(of(self.tokens, i), self.thinning.of(target), self.weights[1])
            self._solve(restore)

    def _finish_ffn(self, scales: tuple[_Scale, _Scale] | None) -> None:
        assert self.ffn is not None
        of, batches = self.stream.of, self.stream.batches
        if self.align:
            self._align(self.ffn, self.layer.branches[1], self.layer.middles, 1)
        self.sums = _regression(self.ffn.output)
        neurons: list[Tensor] = []
        for i in batches():
            middle = of(self.tokens, i)
            inputs = self._inputs(self.ffn, middle)
            neurons.append(self.stream.store.copy(inputs))
            if scales is None:
                target = self.thinning.of(of(self.layer.ffn_outputs, i))
                if self.ffn.joined is not None:
                    target = target - self.thinning.of(middle)
            else:
                target = _before_scale(self._missing(i, middle), scales[1])
            self._add(inputs, target, self.weights[1])
        self._solve(self.ffn.output)
        for i in batches():
            self.tokens[i].copy_(self.ffn.past(of(self.tokens, i), self.ffn.output(of(neurons, i))))

    def _missing(self, batch: int, tokens: Tensor) -> Tensor:
        """Subtract these tokens from the base's, after thinning: [T, d']."""
        of = self.thinning.of
        return self._encoded(of(self.stream.of(self.stream.tokens, batch))) - of(tokens)

    def _inputs(self, branch: SiteLayer[Any], tokens: Tensor) -> Tensor:
        with self.stream.passes.rounded(self.stream.quick):
            return _output_inputs(branch, tokens)

    def _add(self, inputs: Tensor, target: Tensor, weights: Tensor) -> None:
        """Add a batch of inputs [B, N, r] of the output layer to the sums; the target is thinned already."""
        of_tokens = self.thinning.weights(inputs, weights)
        self.sums.add(self.thinning.of(inputs), target, of_tokens, self.thinning.groups(inputs))

    def _solve(self, layer: nn.Linear) -> None:
        weight, bias = self.sums.map(self.stream.compute.sum).solve(prior=layer.weight, bias=layer.bias is not None)
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)

    def _align(self, branch: SiteLayer[Any], base: SiteLayer[Any] | None, of_base: Sequence[Tensor], site: int) -> None:
        """Align the readers of a site, given the base's tokens before any norm, to which its own ones correspond."""
        sums = None
        for i in self.stream.batches():
            of, tokens = self.thinning.of, self.stream.of(self.tokens, i)
            x = branch.before(of(tokens))
            target = self._normalised(branch, base, of(self.stream.of(of_base, i)))
            sums = sums or Regression(x.shape[-1], x.shape[-1], x.device)
            weights = self.thinning.weights(tokens, self.weights[site])
            sums.add(x, target, weights, self.thinning.groups(tokens))
        assert sums is not None, "there is an image"
        constant = all(reader.bias is not None for reader in branch.readers)
        identity = torch.eye(sums.rows - 1, dtype=torch.float64)
        turn, shift = sums.map(self.stream.compute.sum).solve(prior=identity, bias=constant)
        for reader in branch.readers:
            weights = reader.weight.to(turn)
            if shift is not None:
                reader.bias.copy_(reader.bias + weights @ shift)
            reader.weight.copy_(weights @ turn)


def _regression(layer: nn.Linear) -> Regression:
    return Regression(layer.in_features, layer.out_features, layer.weight.device)


def _pass(layer: _Layer, stream: BaseStream, starting: Sequence[_Solver]) -> None:
    """Move the base's stream past one layer and pass its outputs to the solvers whose networks have this block."""
    aligns, no_sum = any(s.align for s in starting), starting and layer.scales is None
    for i, passed in enumerate(stream.past(layer.number)):
        for solver in starting:
            solver.attend(i, passed)
        if aligns:
            layer.middles.append(stream.store.copy(passed.middle))
        if no_sum and passed.ffn is not None:
            ffn = layer.branches[1]
            summed = ffn is not None and ffn.joined is not None
            layer.ffn_outputs.append(stream.store.copy(passed.middle + passed.ffn if summed else passed.ffn))


@torch.no_grad()
def solve_in_sequence(
    base: Network,
    slims: Sequence[Slim],
    images: Split,
    by_token: Sequence[tuple[Tensor, Tensor]],
    passes: Passes,
    *,
    thinnings: Sequence[Thinning] | None = None,
    keep: Keep | None = None,
    quick: bool = False,
) -> None:
    """Solve the output weights of every block of the slim networks in place.

    Sums are fp64 and of constant size. The tokens of all images between two blocks, of the base and of every slim
    network, and the inputs of one block's sites are stored: beyond `IN_MEMORY_BYTES` in files, so that memory does not
    grow with the number of images.

    Args:
        by_token: per block of the base, the weight of attention's and FFN's output at each token: two of [N].
        thinnings: which tokens of each block of the base are in the sums; None: all.
        keep: stores the outputs of the base's sites for these images.
        quick: the sites of all networks multiply as in `Passes.rounded`; solutions are in fp64.
    """
    for network in (base, *(slim.network for slim in slims)):
        network.to(passes.compute.device).eval()
    others = [slim.network for slim in slims if slim.has_own_tokens]
    stream = BaseStream(base, images, passes, keep, quick=quick, others=others)
    own, thinned = iter(stream.of_others), thinnings or [every_token(base)] * len(by_token)
    solvers = [_Solver(s, stream, by_token, thinned, next(own) if s.has_own_tokens else None) for s in slims]
    progress = passes.progress.stage("solve block by block", len(by_token), "block")
    with progress as stage, passes.products(base):
        for number, branches in enumerate(base.layers):
            layer = _Layer(number, branches, _scales(branches), [], [])
            starting = [solver for solver in solvers if number in solver.blocks]
            stream.enter(number)
            for solver in starting:
                solver.begin(layer)
            _pass(layer, stream, starting)
            for solver in starting:
                solver.settle()
            for solver in solvers:
                if number + 1 in solver.ends.values():
                    solver.finish()
            stage.update(number + 1)
