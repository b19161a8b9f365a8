"""Which directions of the tokens the answers feel."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.derive.algebra.embedding import principal
from edgevit.derive.measure.sensitivity import FLOOR, MOST, curvature_sample, random_signs
from edgevit.derive.measure.statistics import add_outer, symmetric
from edgevit.errors import DataError
from edgevit.models.families import family_of
from edgevit.train.passes import Passes


def enough_images(network: nn.Module) -> int:
    """The fewest images whose tokens determine every direction of the embedding."""
    geometry = family_of(network).geometry(network)
    return ceil(geometry.embed / geometry.tokens)


def _normalised(norm: Any, tokens: Tensor) -> Tensor:
    """What a LayerNorm makes of tokens [B, N, d], or of pooled ones [B, d], before its own weight and bias."""
    seen = F.layer_norm(tokens.detach(), tokens.shape[-1:], eps=norm.eps)
    return seen.unsqueeze(1) if seen.ndim == 2 else seen


def token_weights(
    network: nn.Module, images: Split, columns: Sequence[int], passes: Passes, *, seed: int = 0
) -> list[Tensor]:
    """How much the answers feel what each norm gives them of each token: [N] per norm, fp64, on the CPU.

    The mean square of the gradient in the normalised token, of zeta . logits as in `sensitivity`.

    Args:
        columns: for each target class, its column in the logits: answers are among these.
    """
    norms: list[Any] = list(family_of(network).token_norms(network))
    index = torch.as_tensor(columns, device=passes.compute.device)
    signs = iter(passes.compute.share_rows(random_signs(len(images), len(columns), seed)))
    outputs = [torch.empty(0)] * len(norms)
    squares: list[Tensor | None] = [None] * len(norms)

    def keep(i: int, _: Any, output: Tensor) -> None:
        outputs[i] = output

    def see_answers(logits: Tensor, _: Tensor) -> None:
        logits = logits[:, index]
        drawn = torch.stack([next(signs) for _ in range(len(logits))])
        gradients = torch.autograd.grad((logits * curvature_sample(logits, drawn)).sum(), outputs)
        for i, (norm, g) in enumerate(zip(norms, gradients, strict=True)):
            g = g if norm.weight is None else g * norm.weight.detach()
            felt = g.double().square().sum(-1)  # [B, N], or [B] of pooled tokens
            total = (felt.unsqueeze(1) if felt.ndim == 1 else felt).sum(0)
            before = squares[i]
            squares[i] = total if before is None else before + total
            outputs[i] = torch.empty(0)

    passes.run(
        network, images, see_answers, [(norms, keep)], gradients=True, stage="worth of tokens to norms", most=MOST
    )
    return [(passes.compute.sum(total) / len(images)).cpu() for total in squares if total is not None]


def token_directions(network: nn.Module, images: Split, weights: Sequence[Tensor], passes: Passes) -> Tensor:
    """All directions of the tokens [d, d - 1], the most felt first: `algebra.embedding.encoder` takes those it needs.

    Args:
        weights: as `token_weights` gives them; every token keeps a tenth of its norm's mean.

    Raises:
        DataError: the tokens are not finite.
    """
    family, device = family_of(network), passes.compute.device
    norms, width = family.token_norms(network), family.geometry(network).embed
    floored = [((1 - FLOOR) * w + FLOOR * w.mean()).float().to(device) for w in weights]
    total = torch.zeros(width, width, dtype=torch.float64, device=device)

    def see(i: int, given: Any, _: Tensor) -> None:
        seen = _normalised(norms[i], given[0])
        add_outer(total, seen.flatten(0, 1), floored[i].repeat(len(seen)))

    passes.run(network, images, lambda *_: None, [(norms, see)], stage="directions of tokens")
    moment = symmetric(passes.compute.sum(total)).cpu()
    if not torch.isfinite(moment).all():
        raise DataError("the tokens are not finite; check the base's weights, and --mean and --std")
    return principal(moment)
