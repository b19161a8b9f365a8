"""SnapViT: the heads and neurons that outputs depend on least are removed, without labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from problems import untrained

from edgevit.baselines.snapvit import Config, derive, evolve
from edgevit.data.task import open_task
from edgevit.network.model import describe


def test_the_evolution_finds_the_maximum_of_a_skewed_parabola() -> None:
    goal = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    scale = torch.tensor([1.0, 0.1, 10.0, 1.0], dtype=torch.float64)

    def worth(x: torch.Tensor) -> float:
        return -float(((x - goal).square() * scale).sum())

    torch.testing.assert_close(evolve(worth, 4, 200, seed=0), goal, atol=1e-3, rtol=0)
    torch.testing.assert_close(evolve(worth, 4, 0, seed=0), torch.zeros(4, dtype=torch.float64))


def test_units_without_influence_go(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=2, num_heads=4)
    blocks = network.read()
    unread = torch.arange(0, blocks[0].dims.ffn, 2)
    with torch.no_grad():
        for block in blocks:
            block.ffn.w1[unread] *= 5
            block.ffn.w2[:, unread] = 0
            block.attention.wo[0] = 0
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.5, tmp_path, shape="free")
    for generations in (0, 3):
        plan = derive(problem, Config(calibration_images=8, generations=generations)).plan
        for block in plan.blocks:
            assert block.ffn is not None and block.attention is not None
            assert not set(block.ffn.neurons.tolist()) & set(unread.tolist())
            assert 0 not in block.attention.heads


def test_the_correction_has_the_error_of_sparsegpt(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=1, num_heads=4)
    base = describe(network, "vit_tiny_patch16_224", {"depth": 1, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.4, tmp_path, shape="free")
    plain, corrected = (
        derive(problem, Config(calibration_images=8, generations=0, correct=correct)) for correct in (False, True)
    )
    assert plain.network.dims == corrected.network.dims
    (block,) = corrected.plan.blocks
    assert block.ffn is not None and block.attention is not None
    images = torch.cat([batch for batch, _ in problem.calibration(512).batches(64, 0)])

    def read_by(model: Any, layer: Any) -> torch.Tensor:
        inputs: list[torch.Tensor] = []
        with layer.register_forward_pre_hook(lambda _, read: inputs.append(read[0])), torch.inference_mode():
            model(images)
        return inputs[0].flatten(0, 1).double()

    # The attention is the first site: its inputs are the base's without those of the removed heads.
    width = network.read()[0].dims.vo
    gone = [h * width + i for h in set(range(4)) - set(block.attention.heads) for i in range(width)]
    assert gone, "a head is removed"
    whole, layer = read_by(network, network.attention_outputs[0]), network.attention_outputs[0]
    assert layer is not None
    weight = layer.weight.detach().double()
    target = (whole - whole.mean(0)) @ weight.mT  # the bias makes up for means
    errors = []
    for derived in (plain, corrected):
        slim = derived.network.attention_outputs[0]
        assert slim is not None
        inputs = read_by(derived.network, slim)
        errors.append(float(((inputs - inputs.mean(0)) @ slim.weight.detach().double().mT - target).square().sum()))
    inverse = torch.linalg.inv((whole - whole.mean(0)).mT @ (whole - whole.mean(0)) + 1e-6 * torch.eye(len(weight)))
    for column in gone:  # SparseGPT, one column after the other
        weight -= torch.outer(weight[:, column], inverse[column]) / inverse[column, column]
        inverse -= torch.outer(inverse[column], inverse[column]) / inverse[column, column].clone()
        inverse[column, column] = 1.0
    of_sparsegpt = float(((whole - whole.mean(0)) @ weight.mT - target).square().sum())
    assert errors[1] < 1.05 * of_sparsegpt < 0.9 * errors[0], "a ridge costs a little"
