"""What no gradient says: the loss with a part of one block changed or left out, each measured by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derive.problem import Problem
from edgevit.models.families import Branch, family_of


@dataclass(frozen=True)
class MeasuredLosses:
    """KL(base || changed) in nats per image, for every block: [L] each, fp64 on the CPU."""

    narrowed: Tensor  # with the narrow block in its place
    without: Tensor  # without it
    # [L, 2] without its attention, without its FFN; infinite where that was not asked for, or one of them is gone
    sites: Tensor


def _past(branch: Branch | None, tokens: Tensor) -> Tensor:
    """The tokens after a site."""
    return tokens if branch is None else tokens + branch.added(branch.module(branch.before(tokens)))


def measure_losses(
    problem: Problem, narrowed: nn.Module, images: Split, *, sites: bool, quick: bool = False
) -> MeasuredLosses:
    """Replace the blocks one at a time, the rest being the base's.

    Args:
        narrowed: the base with the blocks that are put in.
        sites: whether either site is left out as well, which takes as long again.
        quick: as for `Passes.show`.
    """
    network, device = problem.network, problem.compute.device
    narrowed.to(device).eval()
    family = family_of(network)
    columns = torch.as_tensor(problem.columns, device=device)
    layers, others, branches = family.layers(network), family.layers(narrowed), family.branches(network)
    losses = torch.zeros(4 if sites else 2, len(layers), dtype=torch.float64, device=device)

    def answers(x: Tensor, start: int) -> Tensor:
        for layer in layers[start:]:
            x = layer(x)
        return F.log_softmax(family.answers(network, x)[:, columns].float(), dim=1)

    def see(batch: Tensor, _: Tensor) -> None:
        tokens = [family.first_tokens(network, batch)]
        for layer in layers:
            tokens.append(layer(tokens[-1]))
        whole = answers(tokens[-1], len(layers))
        for i, (x, other, (attention, ffn)) in enumerate(zip(tokens[:-1], others, branches, strict=True)):
            changed = [other(x), x]
            if sites and attention is not None and ffn is not None:
                changed += [_past(ffn, x), _past(attention, x)]
            for row, y in enumerate(changed):
                losses[row, i] += F.kl_div(answers(y, i + 1), whole, log_target=True, reduction="sum")

    problem.passes.show(network, images, see, stage="loss without each block", quick=quick)
    means = (problem.compute.sum(losses) / len(images)).cpu().clamp_min(0)
    alone = means[2:].mT if sites else torch.full((len(layers), 2), torch.inf, dtype=torch.float64)
    alone[[attention is None or ffn is None for attention, ffn in branches]] = torch.inf
    return MeasuredLosses(means[0], means[1], alone.contiguous())
