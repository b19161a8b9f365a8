"""torch-pruning: units go in the order in which its own pruner lets them go."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_pruning
from problems import untrained
from small_models import with_fewer_tokens
from torch import Tensor, nn

import edgevit
from edgevit.baselines.common.ranked import top
from edgevit.baselines.torch_pruning import Config, derive, scores_of
from edgevit.data.task import open_task
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.compatibility import refuse_base
from edgevit.derivation.method import find_method
from edgevit.errors import OptionError
from edgevit.network.model import describe

MEASURES = {
    "taylor": torch_pruning.importance.GroupTaylorImportance,
    "magnitude": torch_pruning.importance.GroupMagnitudeImportance,
}


def with_gradients(network: nn.Module) -> nn.Module:
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    nn.functional.cross_entropy(network(images), torch.arange(8) % 10).backward()
    return network


def gone(scores: Tensor, count: int) -> list[int]:
    """The units that do not stay where `count` of them go."""
    return sorted(set(range(len(scores))) - set(top(scores, len(scores) - count).tolist()))


@pytest.mark.parametrize("measure", MEASURES)
def test_units_go_in_the_order_of_the_librarys_own_pruner(measure: str, small_vit: Callable[..., Any]) -> None:
    network = with_gradients(small_vit(depth=2, num_heads=4))
    scores = scores_of(network, MEASURES[measure]())
    layers = {name: layer for name, layer in network.module.named_modules() if isinstance(layer, nn.Linear)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner = torch_pruning.pruner.BasePruner(
            network.module,
            torch.zeros(1, 3, 32, 32),
            importance=MEASURES[measure](),
            global_pruning=True,
            isomorphic=True,
            pruning_ratio=0.4,
            num_heads={layer: 4 for name, layer in layers.items() if name.endswith("qkv")},
            ignored_layers=[layers["head"]],
        )
    names = {layer: name for name, layer in layers.items()}
    seen = set()
    for group in pruner.step(interactive=True):
        dependency, indices = group[0]
        name = names[dependency.target.module]
        seen.add(name)
        block = scores.blocks[int(name.split(".")[1])]
        if name.endswith("proj"):  # the same dimensions of every head
            width = block["qk"].shape[1]
            every = [head * width + i for head in range(4) for i in gone(block["qk"][0], len(indices) // 4)]
            assert sorted(indices) == every
        elif name.endswith("fc1"):
            assert sorted(indices) == gone(block["ffn"], len(indices))
        else:
            assert sorted(indices) == gone(scores.embed, len(indices))
    assert {"blocks.0.attn.proj", "blocks.1.attn.proj", "blocks.0.mlp.fc1", "blocks.1.mlp.fc1"} < seen
    assert len(seen) == 5  # and the embedding


def test_its_taylor_importance_is_of_absolute_products_without_biases(small_vit: Callable[..., Any]) -> None:
    network = with_gradients(small_vit(depth=1, num_heads=4))
    mlp = network.module.blocks[0].mlp
    into, out = ((layer.weight * layer.weight.grad).abs() for layer in (mlp.fc1, mlp.fc2))
    expected = ((into.sum(1) + out.sum(0)) / 2).detach().double()
    found = scores_of(network, torch_pruning.importance.GroupTaylorImportance()).blocks[0]["ffn"]
    torch.testing.assert_close(found, expected / expected.mean(), rtol=1e-5, atol=0)


def test_the_gradient_of_calibration_images_decides(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit(depth=2, num_heads=4)
    unread = torch.arange(0, 128, 2)
    with torch.no_grad():
        for block in network.module.blocks:
            block.mlp.fc1.weight[unread] *= 5
            block.mlp.fc2.weight[:, unread] = 0  # what comes of them is multiplied by 0: no gradient reaches them
    base = describe(network, "vit_tiny_patch16_224", {"depth": 2, "num_heads": 4})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.6, tmp_path, shape="free")
    kept = {}
    for importance in ("taylor", "magnitude"):
        config = Config(calibration_images=16, importance=importance, attention="widths", cut_embedding=False)
        blocks = derive(problem, config).plan.blocks
        kept[importance] = [set(b.ffn.neurons.tolist()) & set(unread.tolist()) for b in blocks if b.ffn is not None]
    assert not any(kept["taylor"]) and all(kept["magnitude"])


def test_the_library_is_asked_for_before_anything_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    (tmp_path / "no_weights.safetensors").touch()
    with pytest.raises(OptionError, match=r"not installed; try: pip install 'edgevit\[rivals\]', or --method taylor"):
        edgevit.derive(
            "deit_base_patch16_224", checkpoint=tmp_path / "no_weights.safetensors", data="digits", out=tmp_path / "m",
            method="torch_pruning", rate=0.5,
        )  # fmt: skip


def test_without_the_library_other_methods_are_named_in_a_refusal(
    small_vit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    network, dcvit = with_fewer_tokens(small_vit(), 9, 0), find_method("dcvit")
    with pytest.raises(OptionError, match="then derive from its folder with --method heart"):
        refuse_base(dcvit, dcvit.make_config({}), network, make_policy("fused"))


def test_images_are_counted() -> None:
    with pytest.raises(OptionError, match=r"torch_pruning\.calibration_images 0 is not in \[1, "):
        Config(calibration_images=0)
