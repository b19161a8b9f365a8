from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import untrained
from torch import Tensor

from edgevit.data.task import open_task
from edgevit.derivation.methods.forge.measured import measure_losses
from edgevit.network.anatomy import Block
from edgevit.network.model import describe


def divergence(reference: Tensor, outputs: Tensor, logits: bool) -> float:
    if not logits:
        return float((outputs - reference).square().mean() / 2)
    taught, told = (F.log_softmax(x.double(), 1) for x in (reference, outputs))
    return float(F.kl_div(told, taught, log_target=True, reduction="batchmean"))


@pytest.mark.parametrize("logits", [True, False], ids=["logits", "features"])
@torch.no_grad()
def test_a_site_left_out_is_measured_as_a_network_without_it(small_vit: Any, tmp_path: Path, logits: bool) -> None:
    network = small_vit()
    network.module.head.weight.normal_()
    base = describe(network, "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.5, tmp_path)
    if not logits:
        problem = replace(problem, network=small_vit(num_classes=0))
    images = problem.task.train.subset(40)
    whole = problem.network
    found = measure_losses(problem, [whole], images, sites=True)
    pixels = torch.cat([batch for batch, _ in images.batches(40)])
    blocks = whole.read()

    def lost(i: int, block: Block) -> float:
        changed = whole.build([block if i == j else b for j, b in enumerate(blocks)]).eval()
        return divergence(whole(pixels), changed(pixels), logits)

    expected = [[lost(i, Block(None, b.ffn)), lost(i, Block(b.attention, None))] for i, b in enumerate(blocks)]
    torch.testing.assert_close(found.sites, torch.tensor(expected, dtype=torch.float64), rtol=1e-2, atol=1e-6)
    assert float(found.narrowed.max()) < 1e-6 < float(found.without.min()), "put in were the base's own blocks"
    assert bool(measure_losses(problem, [whole], images, sites=False).sites.isinf().all())
