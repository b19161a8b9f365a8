"""What neurons answer to: the highest are found as images come, shares are of target classes, the page shows them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.papers import neurons
from edgevit.data.task import open_task
from edgevit.network.anatomy import Block
from edgevit.network.model import describe
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


def test_images_that_come_by_batches_give_the_highest_of_all() -> None:
    sums = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    found = neurons.Highest.of(7, count=5)
    for first, part in ((0, sums[:3]), (3, sums[3:30]), (30, sums[30:])):
        found.see(part, first)
    values, images = sums.topk(5, dim=0)
    assert torch.equal(found.values, values) and torch.equal(found.images, images)


def test_a_neuron_answers_to_target_classes_if_all_of_its_images_are_of_these() -> None:
    images = torch.tensor([[0, 0, 4], [1, 2, 5]])
    found = neurons.Highest(torch.zeros(2, 3), images)
    labels = [0, 0, 1, 1, 2, 2]
    (told,) = neurons.block_counts([found], labels, [0, 2])
    assert told == {"neurons": 3, "only": 2, "mostly": 2, "mean_share": pytest.approx(5 / 6)}
    assert neurons.block_counts([None], labels, [0]) == [None]


def test_a_network_is_looked_at_block_by_block_and_shown(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    network = small_vit()
    base = describe(network, "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    network, passes = base, open_passes(Training(device="cpu"))
    blocks = network.read()
    slim = network.build([blocks[0], Block(blocks[1].attention, None)])
    found = neurons.highest(slim, task.test, passes)
    assert found[1] is None and found[0] is not None
    inputs: list[torch.Tensor] = []
    hook = slim.module.blocks[0].mlp.fc2.register_forward_hook(
        lambda _, given, __: inputs.append(given[0][:, 1:].sum(1))
    )
    images, _ = next(task.test.batches(len(task.test)))
    slim(images)
    hook.remove()
    torch.testing.assert_close(found[0].values, inputs[0].topk(neurons.IMAGES, dim=0).values, rtol=1e-4, atol=1e-4)
    page = neurons.sheet("a < b", {"base": found}, task.test, [0])
    assert page.count("<img") == neurons.SHOWN * neurons.IMAGES and "a &lt; b" in page and "<img class=t" in page


def test_a_sheet_is_made_of_what_has_a_row_which_stays_the_only_one() -> None:
    given = argparse.Namespace(seeds=1, methods=["forge", "vulcan"], rate=0.6, steps=60, sheet=None)
    classes = [["a", "b"]]
    (first, known), (second, _) = neurons.row_keys([], classes, "sha", given)
    assert first["method"] == "forge" and not known
    assert list(neurons.row_keys([first], classes, "sha", given)) == [(second, False)]
    given.sheet = Path("sheets")
    assert list(neurons.row_keys([first], classes, "sha", given)) == [(first, True), (second, False)]
    assert [known for _, known in neurons.row_keys([first], classes, "other base", given)] == [False, False]


def test_the_section_adds_up_the_blocks_that_are_there() -> None:
    block = {"neurons": 10, "only": 1, "mostly": 3, "mean_share": 0.4}
    row = {
        "source": "demo", "base_sha256": "b", "all_classes": 6, "task": 2, "method": "forge", "seed": 42, "rate": 0.6,
        "steps": 60, "images": 900, "before": [block, block], "after": [{**block, "only": 4}, None],
    }  # fmt: skip
    text = neurons.section({"rows": [row, {**row, "seed": 43}]})
    assert "| 2 classes, base | 10.0% of 20 | 30.0% of 20 | 10.0% of 10 | 10.0% of 10 |" in text
    assert (
        "| 2 classes, forge | 40.0% of 20 | 30.0% of 20 | 40.0% of 20 |  |" in text
        and "n = 2 (seeds 42, 43), one" in text.replace("\n", " ")
    )
    assert neurons.section(None) == ""
