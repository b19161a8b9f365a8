"""AdamW with parameter groups of timm: which weights decay, and which learn more slowly."""

from __future__ import annotations

import torch
from timm.optim import create_optimizer_v2

from edgevit.network.network import Network
from edgevit.train.settings import Training


def make_optimizer(network: Network, training: Training) -> torch.optim.Optimizer:
    """Create AdamW, which decays weight matrices and neither norms, biases, LayerScale, positions nor tokens.

    With a `layer_decay` r, groups have an `lr_scale`: 1 for the head, r for the last block, r^2 for the block before,
    and so on to the patch embedding (BEiT, Bao et al., 2022).
    """
    optimizer: torch.optim.Optimizer = create_optimizer_v2(
        network.module,  # which says what does not decay, and in which layer a parameter is
        "adamw",
        lr=training.lr,
        weight_decay=training.weight_decay,
        layer_decay=None if training.layer_decay == 1 else training.layer_decay,
    )
    return optimizer
