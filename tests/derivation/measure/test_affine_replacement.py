"""What stands in for a site: fitted to what it reads and adds, and what is lost with it in the site's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import untrained
from torch import Tensor, nn

from edgevit.data.task import open_task
from edgevit.derivation.measure.affine_replacement import fit_replacements
from edgevit.derivation.methods.forge.measured import measure_losses, measure_replaced
from edgevit.derivation.problem import Problem
from edgevit.network.model import describe


@pytest.fixture
def problem(small_vit: Any, tmp_path: Path) -> Problem:
    """Of a base whose second FFN is affine."""
    network = small_vit()
    network.module.head.weight.data.normal_()
    network.module.blocks[1].mlp.act = nn.Identity()
    base = describe(network, "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    return untrained(base, task, 0.5, tmp_path)


class InPlace(nn.Module):
    """Adds what a stand-in adds, where a site reads normalised tokens."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor, *_: object, **__: object) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@torch.no_grad()
def test_what_is_lost_is_that_of_a_network_with_the_maps_in_place(problem: Problem) -> None:
    network, images = problem.network, problem.task.train.subset(40)
    found = fit_replacements(network, images, problem.passes)
    without, sites = measure_replaced(problem, found, images, sites=True)
    pixels = torch.cat([batch for batch, _ in images.batches(40)])
    taught = F.log_softmax(network(pixels).double(), 1)

    def lost(block: int, *names: str) -> float:
        whole = {name: getattr(network.module.blocks[block], name) for name in names}
        for name in names:
            one = found[block][name == "mlp"]
            assert one is not None
            setattr(network.module.blocks[block], name, InPlace(one.weight, one.bias))
        told = F.log_softmax(network(pixels).double(), 1)
        for name, module in whole.items():
            setattr(network.module.blocks[block], name, module)
        return float(F.kl_div(told, taught, log_target=True, reduction="batchmean"))

    expected = [[lost(i, "attn"), lost(i, "mlp")] for i in range(2)]
    torch.testing.assert_close(sites, torch.tensor(expected, dtype=torch.float64), rtol=1e-2, atol=1e-6)
    both = [lost(i, "attn", "mlp") for i in range(2)]
    torch.testing.assert_close(without, torch.tensor(both, dtype=torch.float64), rtol=1e-2, atol=1e-6)
    gone = measure_losses(problem, [network], images, sites=True)
    assert sites[1, 1] < 1e-3 * gone.sites[1, 1], "the second FFN is affine"
    assert bool((sites < gone.sites).all()) and bool((without < gone.without).all())
    alone, none = measure_replaced(problem, found, images, sites=False)
    assert torch.equal(alone, without) and bool(none.isinf().all())
