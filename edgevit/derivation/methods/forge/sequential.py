"""Closed form, block by block: a slim network's output weights solved for its own inputs and the base's tokens.

Factors and neurons chosen for the base's inputs meet other inputs in the slim network, because the blocks before them
have errors of their own. So, from the first block to the last, W_O and W_2 are solved again by least squares: the
inputs are what the slim network itself computes so far, the targets what brings its tokens back to the base's,

    attention:  (x_mid - x') / s_1     with x_mid the base's tokens after attention and x' the slim network's before it
    FFN:        (x_next - x'_mid) / s_2     with x_next the base's tokens where the next block that is kept begins

so that each block mends what it can of what was lost before it, and takes over what it can of what was dropped after
it; the attention of a block without an FFN has the FFN's target. Tokens count by how much the answers feel them. Where
the images leave a direction open, the weights stay what they were.

Before that, where it is asked for, the layers that read a site's normalised tokens n' are *aligned*: with n the base's,
T and t of least E|n - T n' - t|^2 are multiplied into them, W <- W T and b <- b + W t, drawn to T = 1.

Several slim networks share the base's pass; each of them computes every site once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.measure.thinning import ALL, Thinning
from edgevit.derivation.methods.forge.streams import BaseStream, Keep, Passed
from edgevit.derivation.solve.least_squares import Regression
from edgevit.network.families import Branch, Scale, family_of
from edgevit.train.passes import Passes

ALIGN_RIDGE = 1e-2  # in units of the normalised tokens' mean square


@dataclass(frozen=True)
class Slim:
    """A network whose output weights are to be solved, in place."""

    network: nn.Module
    kept: Sequence[int]  # for each of its blocks, the block of the base that it stands for
    align: bool = False  # whether what reads normalised tokens is aligned first
    encode: Tensor | None = None  # [d', d]: its tokens are to be encode times the base's; None: the base's


def _before_scale(wanted: Tensor, scale: Scale) -> Tensor:
    """What a site is to put out for its LayerScale to make of it what is wanted; nothing in channels that it shuts."""
    if isinstance(scale, float):
        return wanted / scale
    return torch.where(scale == 0, 0.0, wanted / scale)


class _Seen(Exception):
    """Ends a module's forward pass where all has been seen that was to be."""


def _given(branch: Branch, tokens: Tensor) -> Tensor:
    """What the output layer of a site is given for these tokens; the layer itself, half of an FFN, is not computed."""

    def end(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        raise _Seen

    seen: list[Tensor] = []
    hook = branch.output.register_forward_pre_hook(end)
    try:
        with suppress(_Seen):
            branch.module(branch.before(tokens))
    finally:
        hook.remove()
    return seen[0].float()


@dataclass
class _Layer:
    """One layer of the base, and what it computed for every batch, as far as somebody asks for it."""

    number: int
    branches: tuple[Branch | None, Branch | None]
    scales: tuple[Scale, Scale] | None
    middles: list[Tensor]  # the tokens after its attention
    ffn_outputs: list[Tensor]


class _Solver:
    """One slim network on its way through the layers, a block at a time."""

    def __init__(
        self,
        slim: Slim,
        stream: BaseStream,
        by_token: Sequence[tuple[Tensor, Tensor]],
        ridge: float,
        thinning: Thinning,
    ) -> None:
        self.align, self.stream, self.by_token = slim.align, stream, by_token
        self.ridge, self.thinning = ridge, thinning
        self.blocks = dict(zip(slim.kept, family_of(slim.network).branches(slim.network), strict=True))
        self.ends = dict(zip(slim.kept, [*slim.kept[1:], len(by_token)], strict=True))
        self.encode = None if slim.encode is None else slim.encode.to(stream.device).float()
        self.tokens = [stream.room.keep(self._encoded(x.to(stream.device))) for x in stream.tokens]  # before the block

    def _encoded(self, tokens: Tensor) -> Tensor:
        """The base's tokens as this network is to have them."""
        return tokens if self.encode is None else tokens @ self.encode.mT

    def _wanted(self, own: Branch, base: Branch | None, tokens: Tensor) -> Tensor:
        """What the readers of a site are to be given, for the base's tokens there, normalised as the base does."""
        # With a change of basis the base's norm went into the readers.
        norm, seen = (own, self._encoded(tokens)) if base is None or self.encode is not None else (base, tokens)
        normalised: Tensor = norm.before(seen)
        return normalised

    def begin(self, layer: _Layer) -> None:
        """Start with the block that stands for this layer, whose tokens the base's stream has now."""
        self.layer = layer
        self.heads: list[Tensor] = []  # what the attention's output layer is given
        self.attention, self.ffn = self.blocks[layer.number]
        # A block stands for all that are gone behind it, too: its FFN's errors are weighted as the last of these is.
        self.felt = self.by_token[layer.number][0], self.by_token[self.ends[layer.number] - 1][1]
        if self.attention is not None:
            self.sums = _regression(self.attention.output)
            if self.align:
                self._align(self.attention, layer.branches[0], zip(self.stream.tokens, self.tokens, strict=True), 0)

    def attend(self, batch: int, base: Passed) -> None:
        """See what the base's attention makes of its tokens."""
        if self.attention is None:
            return
        y = self.stream.of(self.tokens, batch)
        heads = self._given(self.attention, y)
        self.heads.append(self.stream.room.keep(heads))
        scales = self.layer.scales
        if scales is not None and self.ffn is None:
            return  # its target is still to come
        assert base.attention is not None
        of = self.thinning.of
        if scales is None:
            target = of(base.attention)
        elif self.encode is None:
            target = _before_scale(of(base.before) - of(y), scales[0]) + of(base.attention)
        else:  # LayerScale went into the weights with the change of basis
            target = self._encoded(of(base.middle)) - of(y)
        self._add(heads, target, self.felt[0])

    def settle(self) -> None:
        """Solve the attention, if the base has told its target."""
        if self.attention is not None and (self.ffn is not None or self.layer.scales is None):
            self._solve(self.attention)

    def finish(self) -> None:
        """Solve the rest of the block for the tokens that the base's stream has now, and move past it."""
        scales, of = self.layer.scales, self.stream.of
        if scales is not None and self.encode is not None:
            scales = (1.0, 1.0)
        batches = range(len(self.tokens))
        if self.ffn is None and scales is not None:
            assert self.attention is not None
            for i in batches:
                target = _before_scale(self._missing(i, of(self.tokens, i)), scales[0])
                self._add(of(self.heads, i), target, self.felt[1])
            self._solve(self.attention)
        if self.attention is not None:
            for tokens, heads in zip(self.tokens, self.heads, strict=True):
                put_out = self.attention.output(heads.to(self.stream.device))
                tokens.add_(self.attention.added(put_out).to(tokens.device))
        if self.ffn is None:
            return
        if self.align:
            self._align(self.ffn, self.layer.branches[1], zip(self.layer.middles, self.tokens, strict=True), 1)
        self.sums = _regression(self.ffn.output)
        neurons: list[Tensor] = []
        for i in batches:
            middle = of(self.tokens, i)
            given = self._given(self.ffn, middle)
            neurons.append(self.stream.room.keep(given))
            if scales is None:
                target = self.thinning.of(of(self.layer.ffn_outputs, i))
            else:
                target = _before_scale(self._missing(i, middle), scales[1])
            self._add(given, target, self.felt[1])
        self._solve(self.ffn)
        for i in batches:
            self.tokens[i].add_(self.ffn.added(self.ffn.output(of(neurons, i))).to(self.tokens[i].device))

    def _missing(self, batch: int, tokens: Tensor) -> Tensor:
        """What these lack to be the base's, where they are taken: [T, d']."""
        of = self.thinning.of
        return self._encoded(of(self.stream.of(self.stream.tokens, batch))) - of(tokens)

    def _given(self, branch: Branch, tokens: Tensor) -> Tensor:
        with self.stream.passes.rounded(self.stream.quick):
            return _given(branch, tokens)

    def _add(self, given: Tensor, target: Tensor, felt: Tensor) -> None:
        """Take a batch [B, N, r] of what the output layer is given; the target is that of the tokens taken of it."""
        self.sums.add(self.thinning.of(given), target, self.thinning.weights(len(given), felt, given.device))

    def _solve(self, branch: Branch) -> None:
        layer = branch.output
        weight, bias = self.sums.map(self.stream.compute.sum).solve(
            self.ridge, prior=layer.weight, bias=layer.bias is not None
        )
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)

    def _align(self, own: Branch, base: Branch | None, pairs: Iterable[tuple[Tensor, Tensor]], site: int) -> None:
        """Align what reads a site's normalised tokens, given the base's and the slim network's before any norm."""
        sums = None
        for theirs, tokens in pairs:
            images, of = len(tokens), self.thinning.of
            x = own.before(of(tokens.to(self.stream.device)))
            wanted = self._wanted(own, base, of(theirs.to(self.stream.device)))
            sums = sums or Regression(x.shape[-1], x.shape[-1], x.device)
            sums.add(x, wanted, self.thinning.weights(images, self.felt[site], x.device))
        assert sums is not None, "there is an image"
        constant = all(reader.bias is not None for reader in own.readers)
        one = torch.eye(sums.rows - 1, dtype=torch.float64)
        turn, shift = sums.map(self.stream.compute.sum).solve(ALIGN_RIDGE, prior=one, bias=constant)
        for reader in own.readers:
            weights = reader.weight.to(turn)
            if shift is not None:
                reader.bias.copy_(reader.bias + weights @ shift)
            reader.weight.copy_(weights @ turn)


def _regression(layer: nn.Linear) -> Regression:
    return Regression(layer.in_features, layer.out_features, layer.weight.device)


def _pass(layer: _Layer, stream: BaseStream, starting: Sequence[_Solver]) -> None:
    """Move the base's stream past one layer, and show its outputs to the solvers that keep this block."""
    aligns, no_sum = any(s.align for s in starting), starting and layer.scales is None
    for i, passed in enumerate(stream.past(layer.number)):
        for solver in starting:
            solver.attend(i, passed)
        if aligns:
            layer.middles.append(stream.room.keep(passed.middle))
        if no_sum and passed.ffn is not None:
            layer.ffn_outputs.append(stream.room.keep(passed.ffn))


@torch.no_grad()
def solve_in_sequence(
    base: nn.Module,
    slims: Sequence[Slim],
    images: Split,
    by_token: Sequence[tuple[Tensor, Tensor]],
    passes: Passes,
    *,
    ridge: float,
    thinning: Thinning = ALL,
    keep: Keep | None = None,
    quick: bool = False,
) -> None:
    """Solve the output weights of every block of the slim networks in place.

    Sums are fp64 and of one size. Beside them the tokens of all images are kept between two blocks, of the base and of
    every slim network, and what the sites of one block are given: beyond `IN_MEMORY_BYTES` in files, so that memory
    does not grow with the number of images.

    Args:
        by_token: per block of the base, how much attention's and FFN's output matter at each token: two of [N].
        ridge: of the solutions, in units of the inputs' mean square; it draws them to the weights there are.
        thinning: over which tokens sums are taken.
        keep: where what the base's sites put out is kept, for these images.
        quick: the sites of all networks multiply as `Passes.rounded` does, and what is solved is in fp64.
    """
    for network in (base, *(slim.network for slim in slims)):
        network.to(passes.compute.device).eval()
    family = family_of(base)
    stream = BaseStream(base, images, passes, keep, quick=quick)
    solvers = [_Solver(slim, stream, by_token, ridge, thinning) for slim in slims]
    blocks = zip(family.branches(base), family.residual_scales(base), strict=True)
    told = passes.progress.stage("solve block by block", len(by_token), "block")
    with told as stage, passes.products(base):
        for number, (branches, scales) in enumerate(blocks):
            layer = _Layer(number, branches, scales, [], [])
            starting = [solver for solver in solvers if number in solver.blocks]
            for solver in starting:
                solver.begin(layer)
            _pass(layer, stream, starting)
            for solver in starting:
                solver.settle()
            for solver in solvers:
                if number + 1 in solver.ends.values():
                    solver.finish()
            stage.update(number + 1)
