"""How far a model is from its base, block by block: Figures 4 and 5 of the HEART-ViT paper.

Linear CKA of the mean token over images, the cosine of the class token with the base's, and the residual ratio, by how
much a block changes the class token: the size of the change over the size of what the block is options. The paper does
not say over which tokens its CKA is, and of a model that lets some go the mean is what there is of both. Where there is
no class token, all three are of the mean token.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.network.families import family_of

IMAGES = 256  # of the test part


@torch.no_grad()
def tokens_by_block(network: nn.Module, images: Tensor, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    """The mean and the class token of each image before the first block and after each: [n, d] twice, in fp64."""
    family, there = family_of(network), network if device == "cpu" else deepcopy(network).to(device)
    geometry, layers = family.geometry(network), family.layers(there)
    first = slice(0, 1) if geometry.tokens > geometry.patches else slice(None)
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(1 + len(layers))]
    for batch in torch.split(images, 64):
        tokens = family.first_tokens(there, batch.to(device))
        for i in range(1 + len(layers)):
            tokens = tokens if i == 0 else layers[i - 1](tokens)
            wide = tokens.double().cpu()
            found[i].append((wide.mean(1), wide[:, first].mean(1)))
    return [(torch.cat([mean for mean, _ in of]), torch.cat([token for _, token in of])) for of in found]


def linear_cka(one: Tensor, other: Tensor) -> float:
    """Similarity of two representations of the same images, 1 where they differ by a rotation and a scale: [n, d]."""
    x, y = one - one.mean(0), other - other.mean(0)
    return float((y.mT @ x).square().sum() / ((x.mT @ x).norm() * (y.mT @ y).norm()))


def residual_ratios(seen: list[tuple[Tensor, Tensor]]) -> list[float]:
    tokens = pairwise(token for _, token in seen)
    return [float(((after - before).norm(dim=1) / before.norm(dim=1)).mean()) for before, after in tokens]


def compared(base: nn.Module, network: nn.Module, images: Tensor, device: str = "cpu") -> dict[str, list[float]]:
    """Each figure by block; `residual_base` is the base's own."""
    known, seen = (tokens_by_block(one, images, device) for one in (base, network))
    pairs = list(zip(known[1:], seen[1:], strict=True))
    return {
        "cka": [linear_cka(one, other) for (one, _), (other, _) in pairs],
        "cosine": [float(F.cosine_similarity(one, other).mean()) for (_, one), (_, other) in pairs],
        "residual": residual_ratios(seen),
        "residual_base": residual_ratios(known),
    }
