"""Drawings of model folders: what is drawn of a history and of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import drawings
import pytest
import torch
from drawings import Drawn

from edgevit.derive.algebra.factorise import effective_rank
from edgevit.models.anatomy import Block
from edgevit.models.families import vit


def test_everything_is_drawn_that_a_folder_has(small_vit: Callable[..., Any]) -> None:
    network = small_vit()
    blocks = vit.read(network)
    slim = vit.build(network, [blocks[0], Block(None, blocks[1].ffn)])
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
    models = [Drawn("a", tuple(b.dims for b in vit.read(slim)), history, slim)]
    made = dict(drawings.drawings(models))
    assert set(made) == {"accuracy", "loss_task", "neurons", "qk", "vo", "ranks"}
    assert all(ElementTree.fromstring(text).tag.endswith("svg") for text in made.values())
    assert drawings.accuracy(models)["a, what is left"] == [(0.0, 10.0), (10.0, 40.0)]
    assert drawings.losses(models) == {"loss_task": {"a": [(5.0, 2.0), (10.0, 1.0)]}}
    assert drawings.sizes(models, "qk")["a"] == [(1.0, 64.0), (2.0, 0.0)]
    attention = blocks[0].attention
    assert attention is not None
    products = attention.wv.detach().mT @ attention.wo.detach().mT
    expected = float(effective_rank(torch.linalg.svdvals(products)[:, : attention.vo]).sum())
    ((block, rank),) = drawings.ranks(models)[1]["a"]
    assert (block, rank) == (1.0, pytest.approx(expected, rel=1e-3))
