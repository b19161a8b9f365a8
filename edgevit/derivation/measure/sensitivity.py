"""How much a network's answers change with what its modules put out, from one backward pass per calibration batch.

A small change delta of a module's output changes the answers by KL(base || changed) = 1/2 E[delta^T G delta], G the
Gauss-Newton matrix of the cross-entropy in that output. With p the network's answers to an image, random signs s and
zeta = sqrt(p) s - p (sqrt(p) . s), E[zeta zeta^T] = diag(p) - p p^T is the curvature of the loss in the logits; so the
gradient g of zeta . logits has E[g g^T] = G, and takes no labels. What is left out, a direction of a head for instance,
is scaled from 1 to 0: 1/2 E[(sum over tokens of g . output)^2] nats per image, whatever the tokens have in common.
Where the output bias makes up for the mean of what is left out, only what differs from that mean counts as output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derivation.measure.thinning import every_token
from edgevit.errors import DataError
from edgevit.network.anatomy import BlockDims, unpack
from edgevit.network.network import Network
from edgevit.train.passes import Observe, Observer, Passes
from edgevit.train.products import exact_sums

# Least weight of a token, as a share of the mean: one without any gradient on these images must not count as free.
FLOOR = 0.1
MOST = 32  # images of one batch: four gradients of every block are held at once


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivities of one block. fp64, on the CPU; losses in nats per image.

    Shapes: H heads, q and v widths, N tokens, d embed.
    Of a missing site H or d is 0, and its sensitivity by token is that of the other site.
    """

    qk: Tensor  # [H, q] loss when each dimension of queries and keys is removed
    vo: Tensor  # [H, v] loss when each dimension of values and outputs is removed
    heads: Tensor  # [H] loss when each head's output is removed
    attention: Tensor  # [N] squared gradient of the attention's output, by token
    ffn: Tensor  # [N] squared gradient of the FFN's output, by token
    metric: Tensor  # [d, d] E[g g^T] of the FFN's output, summed over tokens

    def map(self, change: Callable[[Tensor], Tensor]) -> Sensitivity:
        return Sensitivity(**{f.name: change(getattr(self, f.name)) for f in fields(self)})

    def scaled(self, factor: Tensor) -> Sensitivity:
        """A copy whose losses of QK and VO dimensions are multiplied by a factor."""
        return replace(self, qk=factor * self.qk, vo=factor * self.vo)

    def beyond(self, widths: tuple[int, int]) -> Tensor:
        """The loss without all dimensions beyond these QK and VO widths."""
        qk, vo = widths
        return self.qk[:, qk:].sum() + self.vo[:, vo:].sum()

    @property
    def by_token(self) -> tuple[Tensor, Tensor]:
        """The weight of each token in the losses of attention and FFN, with mean 1: [N] each."""
        return _shares(self.attention), _shares(self.ffn)


def _shares(squares: Tensor) -> Tensor:
    mean = squares.mean().clamp_min(torch.finfo(squares.dtype).tiny)
    return (1 - FLOOR) * squares / mean + FLOOR


@dataclass
class _BlockOutputs:
    """One block's outputs for one batch: queries, keys and values; head outputs; attention and FFN output.

    None for a missing site, and before the batch has passed the block.
    """

    projected: Tensor | None = None
    heads: Tensor | None = None
    attention: Tensor | None = None
    ffn: Tensor | None = None

    def recorded(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


class GradientObserver(Protocol):
    """Accumulates gradients of the logits with respect to module outputs, during one pass."""

    @property
    def observers(self) -> Sequence[Observer]:
        """Hooks that record the outputs of a batch."""

    def recorded(self) -> list[Tensor]:
        """The recorded outputs, whose gradients `take` expects."""

    def take(self, gradients: list[Tensor]) -> None:
        """Accumulate the gradients of a batch, then free them and the recorded outputs for the next batch."""


def observe_gradients(
    network: Network,
    images: Split,
    passes: Passes,
    gradient_observers: Sequence[GradientObserver],
    *,
    seed: int,
    stage: str,
    quick: bool = False,
) -> None:
    """Backpropagate a probe of the output once per batch, and give each observer the gradients of what it recorded.

    Args:
        stage: what progress calls it.
        quick: as for `Passes.show`; gradients have the type that the network computes in, bf16 or fp32.
    """
    draws: Iterator[Tensor] | None = None

    def backpropagate(outputs: Tensor, _: Tensor) -> None:
        nonlocal draws
        if draws is None:
            draws = iter(passes.compute.share_rows(network.output.draws(outputs, len(images), seed)))
        target = network.output.probe(outputs, torch.stack(list(islice(draws, len(outputs)))))
        recorded = [observer.recorded() for observer in gradient_observers]
        gradients = list(torch.autograd.grad(target, [tensor for outputs in recorded for tensor in outputs]))
        counts = [len(outputs) for outputs in recorded]
        del recorded  # observers free their outputs one after the other
        for observer, count in zip(gradient_observers, counts, strict=True):
            share, gradients = gradients[:count], gradients[count:]
            observer.take(share)

    observers = [hook for observer in gradient_observers for hook in observer.observers]
    passes.run(network, images, backpropagate, observers, gradients=True, stage=stage, most=MOST, quick=quick)


def measure_sensitivity(
    network: Network,
    images: Split,
    passes: Passes,
    *,
    restored: Sequence[Tensor | None] | None = None,
    also: Sequence[GradientObserver] = (),
    seed: int = 0,
    stage: str,
    quick: bool = False,
) -> list[Sensitivity]:
    """Measure the sensitivities of every block in the network's own basis; rotate heads first to measure directions.

    Args:
        restored: per block, the mean values [H, v] that the output bias will make up for; None where it cannot.
        also: other observers of the same gradients.
        stage: what progress calls it.
        quick: as for `Passes.show`; then only the sensitivities of tokens are accurate, as a direction's part of an
            output may be smaller than the rounding error.

    Raises:
        DataError: one is not finite.
    """
    sites = _Sites(network, restored)
    observe_gradients(network, images, passes, [sites, *also], seed=seed, stage=stage, quick=quick)
    add_up = passes.compute.sum
    means = [total.map(lambda t: (add_up(t) / len(images)).cpu()) for total in sites.sums if total is not None]
    shares = [(add_up(count).clamp_min(1) / len(images)).cpu() for count in sites.counts]
    means = [replace(m, attention=m.attention / s, ffn=m.ffn / s) for m, s in zip(means, shares, strict=True)]
    for i, mean in enumerate(means):
        if not all(torch.isfinite(t).all() for t in vars(mean).values()):
            raise DataError(f"the gradients of block {i} are not finite; check the base's weights, --mean and --std")
    return means


class _Sites:
    """Accumulates the sensitivities of every block."""

    def __init__(self, network: Network, restored: Sequence[Tensor | None] | None) -> None:
        self.dims = list(network.dims)
        self.outputs = [_BlockOutputs() for _ in self.dims]
        self.means = [None if m is None else m.flatten() for m in restored or [None] * len(self.dims)]
        self.sums: list[Sensitivity | None] = [None] * len(self.dims)
        self.real = every_token(network).real
        self.counts = [torch.zeros(())] * len(self.dims)  # of images in which each token is no padding
        attentions = network.attention_outputs
        self.observers: list[Observer] = [
            (network.projections, self._record("projected")),
            (attentions, self._record("heads", inputs=True)),
            (attentions, self._record("attention")),
            (network.ffn_outputs, self._record("ffn")),
        ]

    def _record(self, name: str, *, inputs: bool = False) -> Observe:
        return lambda i, read, output: setattr(self.outputs[i], name, read[0] if inputs else output)

    def recorded(self) -> list[Tensor]:
        return [tensor for block in self.outputs for tensor in block.recorded().values()]

    def take(self, gradients: list[Tensor]) -> None:
        for i, d in enumerate(self.dims):
            names = list(self.outputs[i].recorded())
            of_block = _BlockOutputs(**dict(zip(names, gradients, strict=False)))
            self._leave_padding_out(i, of_block)
            now = _of_batch(d, self.outputs[i], of_block, self.means[i])
            before = self.sums[i]
            self.sums[i] = now if before is None else _add(before, now)
            del gradients[: len(names)], of_block  # the next batch's activations come where these were
            self.outputs[i] = _BlockOutputs()

    def _leave_padding_out(self, block: int, gradient: _BlockOutputs) -> None:
        """Count the images by token, and take the gradients of what a block adds to padding as zero."""
        outputs = self.outputs[block]
        added = outputs.attention if outputs.ffn is None else outputs.ffn
        assert added is not None, "a block has a site"
        real = None if self.real is None else self.real(added)
        self.counts[block] = self.counts[block] + _images(real, added)
        if real is not None:
            for name in {"attention", "ffn"} & gradient.recorded().keys():
                setattr(gradient, name, getattr(gradient, name) * real.unsqueeze(2))


def _images(real: Tensor | None, tokens: Tensor) -> Tensor:
    """Count the images in which each of these tokens [B, N, d] is no padding: [N], or if all are []."""
    return torch.tensor(len(tokens), device=tokens.device) if real is None else real.sum(0)


class TokenGradients:
    """Accumulates the mean square of the gradient in each token of module outputs."""

    def __init__(self, network: Network, modules: Sequence[nn.Module], scales: Sequence[Tensor | None]) -> None:
        """Take `scales`, by which gradients are multiplied first: [d] each."""
        self.real, self.scales = every_token(network).real, scales
        self.outputs = [torch.empty(0)] * len(modules)
        self.squares: list[Tensor | None] = [None] * len(modules)
        self.counts = [torch.zeros(())] * len(modules)  # of images in which each token is no padding
        self.observers: list[Observer] = [(modules, self._record)]

    def _record(self, i: int, _: object, output: Tensor) -> None:
        self.outputs[i] = output

    def recorded(self) -> list[Tensor]:
        return self.outputs

    def take(self, gradients: list[Tensor]) -> None:
        for i, scale in enumerate(self.scales):
            g = gradients[i] if scale is None else gradients[i] * scale
            squares = g.double().square().sum(-1)  # [B, N], or [B] of pooled tokens
            real = None if self.real is None or g.ndim == 2 else self.real(self.outputs[i])
            self.counts[i] = self.counts[i] + _images(real, g)
            squares = squares if real is None else squares * real
            total = (squares.unsqueeze(1) if squares.ndim == 1 else squares).sum(0)
            before = self.squares[i]
            self.squares[i] = total if before is None else before + total
            self.outputs[i] = gradients[i] = torch.empty(0)

    def means(self, images: int, passes: Passes) -> list[Tensor]:
        """Over the images of all processes: [N] per module, fp64, on the CPU."""
        shares = [passes.compute.sum(count).clamp_min(1) / images for count in self.counts]
        sums = [total for total in self.squares if total is not None]
        return [(passes.compute.sum(s) / images / share).cpu() for s, share in zip(sums, shares, strict=True)]


def _of_batch(
    dims: BlockDims, outputs: _BlockOutputs, gradient: _BlockOutputs, mean_values: Tensor | None
) -> Sensitivity:
    """Sums over the images of one batch. Shape: mean_values [H * v]."""

    def half_squares(product: Tensor) -> Tensor:
        """[B, ...] first-order changes to half their squares, summed over the images."""
        return product.double().square().sum(0) / 2

    def by_token(output: Tensor) -> Tensor:
        return output.double().square().sum((0, 2))

    sums: dict[str, Tensor] = {}
    if outputs.projected is not None and outputs.heads is not None:
        assert gradient.projected is not None and gradient.heads is not None and gradient.attention is not None
        queries = unpack((outputs.projected * gradient.projected).detach(), dims)[0].sum(1)
        heads = outputs.heads if mean_values is None else outputs.heads - mean_values
        summed = (heads * gradient.heads).detach().sum(1)
        values = summed.reshape(len(summed), dims.heads, -1)
        sums |= {"qk": half_squares(queries), "vo": half_squares(values), "heads": half_squares(values.sum(-1))}
        sums["attention"] = by_token(gradient.attention)
    if gradient.ffn is not None:
        g = gradient.ffn.flatten(0, 1)
        with exact_sums(g.device):
            sums |= {"ffn": by_token(gradient.ffn), "metric": (g.mT @ g).double()}
    if "attention" not in sums:
        empty = sums["ffn"].new_empty
        sums |= {"qk": empty(0, 0), "vo": empty(0, 0), "heads": empty(0), "attention": sums["ffn"]}
    elif "ffn" not in sums:
        # The attention's output is all that the block adds, so its gradient is that of the block's output.
        sums |= {"ffn": sums["attention"], "metric": sums["attention"].new_empty(0, 0)}
    return Sensitivity(**sums)


def _add(a: Sensitivity, b: Sensitivity) -> Sensitivity:
    return Sensitivity(*(x + y for x, y in zip(vars(a).values(), vars(b).values(), strict=True)))
