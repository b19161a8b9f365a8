"""How far a model is from its base, block by block: Figures 4 and 5 of the HEART-ViT paper.

Linear CKA of the mean token over images, the cosine of the class token with the base's, and the residual ratio: the
size of a block's change of the class token over the size of its input. The paper does not say over which tokens its CKA
is taken; here it is the mean over the tokens that remain. Without a class token all three are of the mean token.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.network.network import Network

IMAGES = 256  # of the test part


@torch.no_grad()
def tokens_by_block(network: Network, images: Tensor, device: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    """Return mean and class token of each image before the first block and after each: [n, d] twice, in fp64."""
    local = network if device == "cpu" else deepcopy(network).to(device)
    geometry, layers = network.geometry, local.block_modules
    first = slice(0, 1) if geometry.tokens > geometry.patches else slice(None)
    by_block: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(1 + len(layers))]
    for batch in torch.split(images, 64):
        tokens = local.first_tokens(batch.to(device))
        for i in range(1 + len(layers)):
            tokens = tokens if i == 0 else layers[i - 1](tokens)
            wide = tokens.double().cpu()
            by_block[i].append((wide.mean(1), wide[:, first].mean(1)))
    return [(torch.cat([mean for mean, _ in of]), torch.cat([token for _, token in of])) for of in by_block]


def linear_cka(first: Tensor, second: Tensor) -> float:
    """Similarity of two representations of the same images, 1 where they differ by a rotation and a scale: [n, d]."""
    x, y = first - first.mean(0), second - second.mean(0)
    return float((y.mT @ x).square().sum() / ((x.mT @ x).norm() * (y.mT @ y).norm()))


def residual_ratios(tokens_of_block: list[tuple[Tensor, Tensor]]) -> list[float]:
    tokens = pairwise(token for _, token in tokens_of_block)
    return [float(((after - before).norm(dim=1) / before.norm(dim=1)).mean()) for before, after in tokens]


def compared(base: Network, network: Network, images: Tensor, device: str = "cpu") -> dict[str, list[float]]:
    """Compute each figure by block; `residual_base` is the base's."""
    base_tokens, model_tokens = (tokens_by_block(left_tokens, images, device) for left_tokens in (base, network))
    pairs = list(zip(base_tokens[1:], model_tokens[1:], strict=True))
    return {
        "cka": [linear_cka(left_tokens, right_tokens) for (left_tokens, _), (right_tokens, _) in pairs],
        "cosine": [
            float(F.cosine_similarity(left_tokens, right_tokens).mean())
            for (_, left_tokens), (_, right_tokens) in pairs
        ],
        "residual": residual_ratios(model_tokens),
        "residual_base": residual_ratios(base_tokens),
    }
