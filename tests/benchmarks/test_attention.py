"""Criteria that score each dimension of attention by itself: what is kept, and by which gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attention
import pytest
import torch
import torch.nn.functional as F

from edgevit.data.task import open_task
from edgevit.models.anatomy import attentions
from edgevit.models.checkpoint import describe
from edgevit.models.families import vit


def test_cuts_keep_what_is_worth_most_and_the_function_where_all_is_kept(small_vit: Callable[..., Any]) -> None:
    base = describe(small_vit(num_classes=2), "vit_tiny_patch16_224", {"num_classes": 2})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    cuts = attention.Cuts(base.network, task)
    images, labels = next(task.train.subset(attention.IMAGES).batches(attention.IMAGES))
    with torch.no_grad():
        whole = base.network(images[:4])
        for kind in attention.CRITERIA:
            again, half = (cuts.dimensions(kind, share) for share in (1.0, 0.5))
            torch.testing.assert_close(again(images[:4]), whole, rtol=1e-4, atol=1e-4)
            assert {(a.qk, a.vo) for a in attentions(vit.read(half))} == {(16, 16)}, kind
    assert [a.heads for a in attentions(vit.read(cuts.heads(1)))] == [1, 1]

    # The gradient by a factor on one dimension of the values is that of the weights that make it.
    qkv = base.network.blocks[0].attn.qkv
    gradients = torch.autograd.grad(F.cross_entropy(base.network(images), labels), (qkv.weight, qkv.bias))
    by_weights = sum(float((w * g)[-1].detach().sum()) for w, g in zip((qkv.weight, qkv.bias), gradients, strict=True))
    assert float(cuts.gates[0].vo.mean(0)[-1, -1]) == pytest.approx(by_weights, rel=1e-3)


def test_the_section_has_a_line_for_every_criterion() -> None:
    known = {"source": "demo", "all_classes": 6, "base_sha256": "b", "task": 3, "classes": ["a"], "images": 10}
    rows = [{**known, **one, "top1": 0.5 + one["share"] / 4} for one in attention.wanted(3)]
    text = attention.section({"rows": rows})
    assert all(
        f"| 3 classes, {kind} | 51.6 | 53.1 | 56.2 | 62.5 | 68.8 | 75.0 |" in text for kind in attention.CRITERIA[1:]
    )
    assert "|  | 0.333 | 0.667 | whole |" in text and f"| 3 classes, {attention.HEADS} |" in text
    assert attention.section(None) == ""
