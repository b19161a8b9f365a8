"""What units are worth: sums over all weights that go with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from edgevit.baselines.common.importance import GROUP, group_sums, squared_changes, valued, weights_times_gradients
from edgevit.data.task import Task, open_task
from edgevit.errors import DataError
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


@pytest.fixture(scope="module")
def network(small_vit: Callable[..., Any]) -> Any:
    return small_vit(depth=2, num_heads=2)


@pytest.fixture(scope="module")
def task(network: Any) -> Task:
    plain = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}
    preprocessing = {**plain, "input_size": [3, 32, 32], "crop_mode": "center"}
    return open_task("digits", "3,7", preprocessing=preprocessing, base_outputs=10)


def test_a_unit_is_worth_the_values_of_its_own_weights_alone(network: Any) -> None:
    zero = valued(network, lambda _, w: torch.zeros_like(w))
    first, second = zero.read()
    with torch.no_grad():
        first.attention.wq[1, 3, 5] = 2.0  # one weight of one query row, which reads channel 5
        first.attention.wo[0, 6, 2] = 3.0  # what head 0 writes into channel 6 from dimension 2
        second.ffn.w1[7, 5] = 5.0
        second.ffn.w2[8, 9] = 7.0
        zero.classifiers[0].weight[0, 5] = 11.0
    found = group_sums(zero)
    one, two = found.blocks
    assert one["qk"][1, 3] == 2 and one["qk"].sum() == 2 and one["vo"][0, 2] == 3 and one["vo"].sum() == 3
    assert one["heads"].tolist() == [3, 2]
    assert two["ffn"][7] == 5 and two["ffn"][9] == 7 and two["ffn"].sum() == 12 and two["qk"].sum() == 0
    assert {i: float(v) for i, v in enumerate(found.embed) if v} == {5: 18.0, 6: 3.0, 8: 7.0}


def test_biases_go_with_their_units(network: Any) -> None:
    ones = valued(network, lambda name, w: torch.ones_like(w) if name.endswith("bias") else torch.zeros_like(w))
    block = group_sums(ones).blocks[0]
    assert (block["qk"] == 2).all() and (block["vo"] == 1).all() and (block["ffn"] == 1).all()


def test_the_sum_of_all_products_is_how_the_loss_grows_with_the_weights(network: Any, task: Task) -> None:
    """Euler: for weights scaled by 1 + t, dL/dt is the sum of w dL/dw over all of them."""
    passes, images = open_passes(Training(device="cpu")), task.train.subset(12)
    products = weights_times_gradients(network.with_columns([3, 7]), images, passes)
    total = sum(float(p.detach().double().sum()) for p in products.parameters())

    def loss_at(t: float) -> float:
        scaled, losses = valued(network, lambda _, w: w * (1 + t)).double(), []
        target = torch.tensor([3, 7])

        def see(batch: torch.Tensor, labels: torch.Tensor) -> None:
            found = torch.nn.functional.cross_entropy(scaled(batch.double()), target[labels], reduction="sum")
            losses.append(float(found))

        passes.show(scaled, images, see)
        return sum(losses) / len(images)

    assert total == pytest.approx((loss_at(1e-4) - loss_at(-1e-4)) / 2e-4, rel=1e-3, abs=1e-6)


@pytest.mark.quick("3")
@pytest.mark.parametrize("at_once", [1, 3, 5, 64])
def test_a_change_is_squared_group_by_group_however_many_images_memory_holds(
    network: Any, task: Task, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, images = open_passes(Training(device="cpu")), task.train.subset(GROUP + 4)
    channels = torch.zeros(network.module.embed_dim, dtype=torch.float64)
    neurons = torch.zeros(network.module.blocks[1].mlp.fc1.out_features, dtype=torch.float64)
    for part in (slice(GROUP), slice(GROUP, None)):
        group = replace(images, references=images.references[part], labels=images.labels[part])
        sums = group_sums(weights_times_gradients(network.with_columns([3, 7]), group, passes))  # means over the group
        channels += sums.embed.square() * len(group) / len(images)
        neurons += sums.blocks[1]["ffn"].square() * len(group) / len(images)
    tokens = at_once * network.geometry.tokens
    monkeypatch.setattr("edgevit.train.passes.TOKENS_WITH_GRADIENTS", tokens)
    assert passes.batch_size(network, gradients=True) == at_once
    found = squared_changes(network.with_columns([3, 7]), images, passes)
    torch.testing.assert_close(found.embed, channels, rtol=1e-4, atol=1e-12)
    torch.testing.assert_close(found.blocks[1]["ffn"], neurons, rtol=1e-4, atol=1e-12)


def test_a_gradient_that_is_no_number_is_refused(network: Any, task: Task) -> None:
    broken = valued(network, lambda _, w: torch.full_like(w, torch.nan))
    with pytest.raises(DataError, match="is not finite"):
        weights_times_gradients(broken.with_columns([3, 7]), task.train.subset(2), open_passes(Training(device="cpu")))
