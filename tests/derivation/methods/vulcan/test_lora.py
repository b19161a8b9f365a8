"""Low-rank updates: what trains, what is held, that constraints see whole weights, that a merge changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_base import assert_same_weights, derive, press_ctrl_c_in_step, write_checkpoint
from teaching import kept_step, open_bench
from torch import Tensor, nn

from edgevit.derivation.methods.vulcan.lora import linear_layers, low_rank_updates, smallest_side
from edgevit.derivation.methods.vulcan.method import Config, Redundancy
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.errors import Interrupted, OptionError
from edgevit.train.compute import open_compute
from edgevit.train.optimizer import make_optimizer
from edgevit.train.settings import Training

RANK = 8
PLAIN: dict[str, Any] = {}
GATED: dict[str, Any] = {"name": "vit_giant_patch14_dinov2", "mlp_ratio": 4.0}


def updated(network: nn.Module) -> nn.Module:
    """Give the updates some size, as training does."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith(".up"):
                p.add_(torch.randn(p.shape, generator=generator) * 0.05)
    return network


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def seen(network: nn.Module) -> Tensor:
    size = network.input_size[1]
    with torch.inference_mode():
        answer: Tensor = network(nn.functional.interpolate(images(), (size, size)))
        return answer


def plan_of(network: nn.Module) -> Plan:
    ffn = [block.ffn for block in network.read()]
    made = []
    for i, part in enumerate(ffn):
        assert part is not None
        kept = part.neurons // 2
        neurons = FfnPlan(torch.arange(kept), torch.arange(part.neurons) % kept)
        made.append(BlockPlan(i, AttentionPlan((0, 1), (16, 16)), neurons))
    return Plan(tuple(made))


@pytest.mark.parametrize("args", [PLAIN, GATED], ids=["plain", "gated"])
def test_what_is_merged_is_what_was_trained_and_has_plain_names(small_vit: Any, args: dict[str, Any]) -> None:
    network = small_vit(**args)
    names, before = sorted(network.state_dict()), seen(network)
    with low_rank_updates(network, RANK, 42):
        torch.testing.assert_close(seen(network), before, rtol=0, atol=1e-6)  # B is zero
        trained = seen(updated(network))
        weights = [layer.weight.detach().clone() for layer in linear_layers(network)]
        slim = network.build(network.read())
    assert (trained - before).abs().max() > 1e-2
    for made in (network, slim):
        torch.testing.assert_close(seen(made), trained, rtol=1e-6, atol=1e-6)
        assert sorted(made.state_dict()) == names
    assert all(p.requires_grad for p in network.parameters())
    for layer, weight in zip(linear_layers(network), weights, strict=True):
        assert torch.equal(layer.weight, weight) and type(layer) is nn.Linear


def test_updates_biases_of_their_layers_and_the_classifier_train_and_nothing_else_is_held(small_vit: Any) -> None:
    network = small_vit()
    layers = linear_layers(network)
    with low_rank_updates(network, RANK, 42):
        optimizer = make_optimizer(network, Training())
        trained = {name for name, p in network.named_parameters() if p.requires_grad}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        decayed = sum(p.numel() for group in optimizer.param_groups if group["weight_decay"] for p in group["params"])
        network(images()).square().mean().backward()
        with_gradient = {name for name, p in network.named_parameters() if p.grad is not None}
    low = sum(RANK * sum(layer.weight.shape) for layer in layers)
    biases, head = sum(layer.out_features for layer in layers), network.module.head
    assert sum(p.numel() for p in held) == low + biases + head.weight.numel() + head.bias.numel()
    assert decayed == low + head.weight.numel(), "matrices alone decay, to the weights that there were"
    assert with_gradient == trained
    assert {name.rpartition(".")[2] for name in trained} == {"up", "down", "bias", "weight"}
    assert not any("norm" in name or "embed" in name or "original" in name for name in trained)


def test_constraints_draw_the_updates_as_they_draw_the_weights(small_vit: Any) -> None:
    """The gradient of B is that of W times A, and that of A is B times that of W; and so is the network's own."""
    compute = open_compute(Training(device="cpu", batch_size=8))
    network = small_vit()
    with low_rank_updates(network, RANK, 42):
        updated(network)
        merged = copy.deepcopy(small_vit())
        for layer, own in zip(linear_layers(merged), linear_layers(network), strict=True):
            layer.weight = nn.Parameter(own.weight.detach().clone())
        figures = []
        for one in (network, merged):
            config = Config(lora_rank=RANK if one is network else 0)
            constraint = Redundancy(one, plan_of(one), config, compute)
            constraint.multipliers += 0.1
            penalty, found = constraint.penalty()
            (penalty + one(images()).square().mean()).backward()
            figures.append(found)
        assert figures[0] == pytest.approx(figures[1], rel=1e-5)
        for own, layer in zip(linear_layers(network), linear_layers(merged), strict=True):
            of: Any = own.parametrizations
            update, gradient = of.weight[0], layer.weight.grad
            torch.testing.assert_close(update.up.grad, gradient @ update.down.mT, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(update.down.grad, update.up.mT @ gradient, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(own.bias.grad, layer.bias.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_it_is_gone_on_with_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a teacher, half precision and steps in parts, too."""
    checkpoint = write_checkpoint(tmp_path)
    options = {"calibration_images": 48, "lora_rank": RANK}
    training = {"steps": 4, "teacher": "restricted", "grad_accum": 2, "precision": "bf16", "lr": 1e-2}
    given: dict[str, Any] = {"rate": 0.5, "options": options, "training": training}
    whole = derive(checkpoint, tmp_path / "m", **given)
    press_ctrl_c_in_step(2, monkeypatch)
    with pytest.raises(Interrupted):
        derive(checkpoint, tmp_path / "n", **given)
    resumed = derive(checkpoint, tmp_path / "n", resume=True, **given)
    assert_same_weights(whole.model.state_dict(), resumed.model.state_dict())
    assert not any("parametrizations" in name for name in whole.model.state_dict())


def test_the_best_state_on_validation_images_is_what_is_merged(digits_checkpoint: Path) -> None:
    bench = open_bench(digits_checkpoint)
    network = bench.spoilt()
    with low_rank_updates(network, RANK, 42):
        history = bench.train(network, 6, keep="best", training={"lr": 0.03})
    judged = {line["step"]: line["accuracy_trained"] for line in history.lines if "accuracy_trained" in line}
    assert judged[kept_step(history)] == max(judged.values()) > judged[0]
    assert bench.accuracy(network) == pytest.approx(max(judged.values()))


def test_a_rank_that_is_none_or_not_low_is_refused(tmp_path: Path, small_vit: Any) -> None:
    with pytest.raises(OptionError, match=r"vulcan\.lora_rank -1 is not in .*; 0 trains whole weights$"):
        Config(lora_rank=-1)
    assert smallest_side(small_vit()) == 64
    checkpoint = write_checkpoint(tmp_path)
    with pytest.raises(OptionError, match=r"is not a low rank: .* is 64; try 21, the paper's share"):
        derive(checkpoint, tmp_path / "m", rate=0.5, options={"calibration_images": 48, "lora_rank": 64})
