"""Drawings of model folders: what is drawn of a history and of blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from small_models import write_derived

from benchmarks.product import drawings
from benchmarks.product.drawings import Drawn
from edgevit.derivation.solve.factorise import effective_rank
from edgevit.network.anatomy import Block
from edgevit.reporting.axes import AccuracyTask

TASK = AccuracyTask(("cat", "dog"), None)


def test_everything_is_drawn_that_a_folder_has(small_vit: Callable[..., Any]) -> None:
    network = small_vit()
    blocks = network.read()
    slim = network.build([blocks[0], Block(None, blocks[1].ffn)])
    history = [
        {"stage": "finetune base", "step": 9, "loss_task": 9.0},
        {"stage": "train", "step": 0, "accuracy_trained": 0.5, "accuracy_pruned": 0.1},
        {"stage": "train", "step": 5, "loss_task": 2.0},
        {
            "stage": "train",
            "step": 10,
            "loss_task": 1.0,
            "accuracy_trained": 0.6,
            "accuracy_pruned": 0.4,
            "loss_x": 3.0,
        },
    ]
    history += [{"stage": "train", "step": step, "lambda_1": step / 5} for step in (5, 10)]
    models = [Drawn("a", slim.dims, history, slim, TASK)]
    made = dict(drawings.drawings(models))
    assert set(made) == {"accuracy", "lambda_1", "loss_task", "neurons", "qk", "vo", "ranks"}
    assert all(ElementTree.fromstring(text).tag.endswith("svg") for text in made.values())
    assert drawings.accuracy(models)["a, what is left"] == [(0.0, 10.0), (10.0, 40.0)]
    assert drawings.losses(models) == {
        "lambda_1": {"a": [(5.0, 1.0), (10.0, 2.0)]},
        "loss_task": {"a": [(5.0, 2.0), (10.0, 1.0)]},
    }
    assert drawings.sizes(models, "qk")["a"] == [(1.0, 64.0), (2.0, 0.0)]
    attention = blocks[0].attention
    assert attention is not None
    products = attention.wv.detach().mT @ attention.wo.detach().mT
    expected = float(effective_rank(torch.linalg.svdvals(products)[:, : attention.vo]).sum())
    ((block, rank),) = drawings.ranks(models)[1]["a"]
    assert (block, rank) == (1.0, pytest.approx(expected, rel=1e-3))


def test_curves_of_different_tasks_are_on_no_axis_together(small_vit: Callable[..., Any]) -> None:
    network = small_vit()
    dims = network.dims
    history = [{"stage": "train", "step": step, "accuracy_trained": 0.5, "loss_task": 1.0} for step in (0, 5)]
    other = AccuracyTask(("cat", "fox"), None)
    pair = [Drawn("a", dims, history, network, TASK), Drawn("b", dims, history, network, other)]
    assert drawings.tasks_apart(pair) == ["classes"]
    assert {name for name, _ in drawings.drawings(pair)} == {"neurons", "qk", "vo", "ranks"}
    untrained = Drawn("b", dims, [], network, other)
    assert drawings.tasks_apart([pair[0], untrained]) == [], "it has no curve"
    assert "accuracy" in dict(drawings.drawings([pair[0], untrained]))


def test_a_folder_is_read_with_its_task(tmp_path: Path) -> None:
    first, second = (drawings.read(write_derived(tmp_path / f"m{seed}", 16, 16, seed=seed)) for seed in (7, 8))
    assert first.task.classes == ("3", "5", "8") and first.history == [] and first.blocks[0].qk == 16
    assert "seed (7, 8), which splits the images" in drawings.apart_tasks([first.task, second.task])
