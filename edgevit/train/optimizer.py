"""Which weights decay, and which learn more slowly."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from edgevit.network.families import family_of
from edgevit.train.settings import Training


def make_optimizer(network: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW that decays the matrices of linear and patch-embedding layers, and nothing else.

    Norms, biases, LayerScale, positions, and the class, distillation and register tokens say where activations lie and
    how large they are: drawing those to zero takes away function, and no redundancy.

    With a `layer_decay` r the groups have an `lr_scale`: 1 of the head, r of the last block, r^2 of the one before, and
    so on to what lies before the first (BEiT, Bao et al., 2022).
    """
    layers = (module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d))
    matrices = {id(p) for layer in layers for p in layer.parameters() if p.ndim > 1}  # updates of a weight among them
    parameters = [p for p in network.parameters() if p.requires_grad]
    if training.layer_decay == 1:
        return torch.optim.AdamW(_groups(parameters, matrices, training), lr=training.lr)
    scales = _scales(network, training.layer_decay)
    groups = []
    for scale in sorted(set(scales.values())):
        alike = [p for p in parameters if scales[id(p)] == scale]
        groups += [{**group, "lr_scale": scale} for group in _groups(alike, matrices, training) if group["params"]]
    return torch.optim.AdamW(groups, lr=training.lr)


def _groups(parameters: list[nn.Parameter], matrices: set[int], training: Training) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if id(p) in matrices], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if id(p) not in matrices], "weight_decay": 0.0},
    ]


def _scales(network: nn.Module, decay: float) -> dict[int, float]:
    """What each parameter's learning rate is multiplied by."""
    family = family_of(network)
    blocks = family.layers(network)
    scales = {id(p): decay ** (len(blocks) + 1) for p in network.parameters()}
    for i, block in enumerate(blocks):
        scales |= {id(p): decay ** (len(blocks) - i) for p in block.parameters()}
    for module in (family.final_tokens(network), *family.classifiers(network)):
        scales |= {id(p): 1.0 for p in module.parameters(recurse=False)}
    return scales
