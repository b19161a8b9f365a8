"""Which weights decay."""

from __future__ import annotations

import torch
from torch import nn

from edgevit.train.settings import Training


def make_optimizer(network: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW that decays the matrices of linear and patch-embedding layers, and nothing else.

    Norms, biases, LayerScale, positions, and the class, distillation and register tokens say where activations lie and
    how large they are: drawing those to zero takes away function, and no redundancy.
    """
    layers = (module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d))
    matrices = {id(layer.weight) for layer in layers}
    parameters = [p for p in network.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if id(p) in matrices], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if id(p) not in matrices], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=training.lr)
