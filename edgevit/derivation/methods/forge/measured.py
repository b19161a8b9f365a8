"""Measure the loss with a part of one block changed or removed, one part at a time: no gradient predicts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgevit.data.task import Split
from edgevit.derivation.measure.affine_replacement import BlockReplacements, apply_replacements
from edgevit.derivation.problem import Problem
from edgevit.network.layers import SiteLayer
from edgevit.network.network import Network


@dataclass(frozen=True)
class MeasuredLosses:
    """Divergence from the base per image, for every block: [L] each if not said otherwise, fp64 on the CPU."""

    narrowed: Tensor  # [networks, L] loss with each block replaced by the narrow block of each network
    without: Tensor  # [L] loss with each block removed
    # [L, 2] loss without a block's attention, and without its FFN; infinite if not measured, or for its only site.
    sites: Tensor


def _past(branch: SiteLayer[Any] | None, tokens: Tensor) -> Tensor:
    """Return the tokens after a site."""
    return tokens if branch is None else branch.past(tokens, branch.module(branch.before(tokens)))


def measure_losses(
    problem: Problem, narrowed: Sequence[Network], images: Split, *, sites: bool, quick: bool = False
) -> MeasuredLosses:
    """Measure the loss with one block narrowed or removed, for each block; the other blocks are the base's.

    Args:
        narrowed: the base with all blocks narrowed, in some ways.
        sites: whether to remove each site alone, too, which doubles the time.
        quick: as for `Passes.show`.
    """
    narrow = [network.to(problem.compute.device).eval().blocks for network in narrowed]
    branches = problem.network.layers

    def changed(i: int, x: Tensor) -> list[Tensor]:
        attention, ffn = branches[i]
        both = attention is not None and ffn is not None
        of_sites = [_past(ffn, x), _past(attention, x)] if sites and both else []
        return [*(layers[i].run(x) for layers in narrow), x, *of_sites]

    count = len(narrow)
    means = _measured(problem, images, changed, count + (3 if sites else 1), quick)
    return MeasuredLosses(means[:count], means[count], _of_sites(means[count + 1 :], branches))


def measure_replaced(
    problem: Problem, replacements: Sequence[BlockReplacements], images: Split, *, sites: bool, quick: bool = False
) -> tuple[Tensor, Tensor]:
    """Measure `without` and `sites` of `MeasuredLosses` with affine maps in place of the removed sites.

    Args:
        sites, quick: as for `measure_losses`.
    """
    branches = problem.network.layers

    def changed(i: int, x: Tensor) -> list[Tensor]:
        (attention, ffn), (for_attention, for_ffn) = branches[i], replacements[i]
        without = [apply_replacements([for_attention, for_ffn], x)]
        if sites and attention is not None and ffn is not None:
            without += [
                _past(ffn, apply_replacements([for_attention], x)),
                apply_replacements([for_ffn], _past(attention, x)),
            ]
        return without

    means = _measured(problem, images, changed, 3 if sites else 1, quick)
    return means[0], _of_sites(means[1:], branches)


def _measured(
    problem: Problem, images: Split, changed: Callable[[int, Tensor], list[Tensor]], rows: int, quick: bool
) -> Tensor:
    """Divergence from the base per image: [rows, L], fp64 on the CPU.

    Args:
        changed: computes the tokens after a block, changed in each way, from those before it.
    """
    network, device = problem.network, problem.compute.device
    layers = network.blocks
    losses = torch.zeros(rows, len(layers), dtype=torch.float64, device=device)

    def outputs(batch: Tensor, after: list[Tensor]) -> Tensor:
        for layer in layers[len(after) :]:
            after.append(layer.run(layer.enter(after[-1])))
        return network.outputs_after(after, batch).float()

    def add(batch: Tensor, _: Tensor) -> None:
        x, before, after = network.first_tokens(batch), list[Tensor](), list[Tensor]()
        for layer in layers:
            before.append(layer.enter(x))
            x = layer.run(before[-1])
            after.append(x)
        whole = outputs(batch, after)
        for i, x in enumerate(before):
            for row, y in enumerate(changed(i, x)):
                losses[row, i] += network.output.divergence(whole, outputs(batch, [*after[:i], y])).sum()

    problem.passes.show(network, images, add, stage="loss without each block", quick=quick)
    return (problem.compute.sum(losses) / len(images)).cpu().clamp_min(0)


def _of_sites(means: Tensor, branches: Sequence[tuple[SiteLayer[Any] | None, SiteLayer[Any] | None]]) -> Tensor:
    """Transpose [2, L], or an empty tensor, to [L, 2]; infinite where a block has one site or none was measured."""
    alone = means.mT if len(means) else torch.full((len(branches), 2), torch.inf, dtype=torch.float64)
    alone[[attention is None or ffn is None for attention, ffn in branches]] = torch.inf
    return alone.contiguous()
