"""Criteria that score each dimension of attention by itself: what is kept, and by which gradients."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from small_base import ARGS, NAME, PREPROCESSING, write_checkpoint

from benchmarks.papers import attention
from benchmarks.sources import Source, add_source
from edgevit.data.task import open_task
from edgevit.network.anatomy import attentions
from edgevit.network.families import load_family
from edgevit.network.model import describe
from edgevit.network.network import Network
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


def test_cuts_keep_what_is_worth_most_and_the_function_where_all_is_kept(small_vit: Callable[..., Any]) -> None:
    base = describe(small_vit(num_classes=2), "vit_tiny_patch16_224", {"num_classes": 2})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    cuts = attention.Cuts(base, task)
    images, labels = next(task.train.subset(attention.IMAGES).batches(attention.IMAGES))
    with torch.no_grad():
        whole = base(images[:4])
        for kind in attention.CRITERIA:
            again, half = (cuts.dimensions(kind, share) for share in (1.0, 0.5))
            torch.testing.assert_close(again(images[:4]), whole, rtol=1e-4, atol=1e-4)
            assert {(a.qk, a.vo) for a in attentions(half.read())} == {(16, 16)}, kind
    assert [a.heads for a in attentions(cuts.heads(0.5).read())] == [1, 1]

    # The gradient by a factor on one dimension of the values is that of the weights that make it.
    qkv = base.module.blocks[0].attn.qkv
    gradients = torch.autograd.grad(F.cross_entropy(base(images), labels), (qkv.weight, qkv.bias))
    by_weights = sum(float((w * g)[-1].detach().sum()) for w, g in zip((qkv.weight, qkv.bias), gradients, strict=True))
    assert float(cuts.gates[0].vo.mean(0)[-1, -1]) == pytest.approx(by_weights, rel=1e-3)

    # S2ViTE's saliency is of the same products of weights and gradients, none of which makes up for another.
    (_, saliency), (_, squared) = cuts.scores["S2ViTE"][0], cuts.scores["NViT"][0]
    assert (saliency >= cuts.gates[0].vo.mean(0).abs() * (1 - 1e-6)).all() and (squared >= 0).all()


@pytest.mark.slow
def test_a_swin_is_cut_by_every_criterion_but_one() -> None:
    torch.manual_seed(0)
    arguments = {"img_size": 32, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4), "window_size": 4}
    name, swin = "swin_tiny_patch4_window7_224", load_family("swin")
    network = Network(swin.interchange.adopted(timm.create_model(name, num_classes=2, **arguments)))
    base = describe(network, name, {"num_classes": 2, **arguments})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    cuts = attention.Cuts(base, task)
    keys = [*attention.row_keys(2, [kind for kind in attention.CRITERIA if kind != "NISP"])]
    images = next(task.test.batches(4))[0]
    assert {key["kind"] for key in keys} >= {*attention.TABLE_3, "WPAC"} and "NISP" not in cuts.scores
    with torch.no_grad():
        for key in (key for key in keys if key["share"] in (0.25, 0.5, 0.75)):
            assert cuts.network_of_row(base, key)(images).isfinite().all()
    quarter = attentions(cuts.dimensions("WPAC", 0.25).read())
    assert [(a.heads, a.qk, a.vo) for a in quarter] == [(2, 2, 2), (4, 2, 2)]
    assert [a.heads for a in attentions(cuts.heads(0.5).read())] == [1, 2]


def test_importance_is_handed_back_through_the_size_of_weights(small_vit: Callable[..., Any]) -> None:
    network = small_vit(num_classes=2)
    found = attention.propagated(network)
    last = network.module.blocks[-1]
    with torch.no_grad():
        worth = (network.module.head.weight * network.module.norm.weight).abs().sum(0)
        fc1 = (last.mlp.fc1.weight * last.norm2.weight).abs()
        worth = worth + worth @ last.mlp.fc2.weight.abs() @ fc1
        vo = (worth @ last.attn.proj.weight.abs()).unflatten(0, (last.attn.num_heads, -1))
        wq, wk, _ = (last.attn.qkv.weight * last.norm1.weight).abs().sum(1).unflatten(0, (3, last.attn.num_heads, -1))
    torch.testing.assert_close(found[-1][1].float(), vo, rtol=1e-4, atol=0)
    torch.testing.assert_close(found[-1][0].float(), vo.sum(1, keepdim=True) * (wq + wk), rtol=1e-4, atol=0)
    with torch.no_grad():
        last.attn.qkv.weight[-1] = 0  # one value of the last head is nothing but its bias: what is before is worth less
    again = attention.propagated(network)
    assert torch.equal(again[-1][1], found[-1][1]) and (again[0][1] < found[0][1]).all()


def test_the_section_has_a_line_for_every_criterion() -> None:
    known = {"source": "demo", "all_classes": 6, "base_sha256": "b", "task": 3, "classes": ["a"], "images": 10}
    rows = [{**known, **one, "top1": 0.5 + one["share"] / 4} for one in attention.row_keys(3)]
    text = attention.criteria_section({"rows": rows})
    assert all(
        f"| 3 classes, {kind} | 51.6 | 53.1 | 56.2 | 62.5 | 68.8 | 75.0 |" in text for kind in attention.CRITERIA[1:]
    )
    assert "|  | 0.333 | 0.667 | whole |" in text and f"| 3 classes, {attention.HEADS} |" in text
    assert attention.criteria_section(None) == ""


def test_moments_are_of_the_tokens_that_are_chosen(small_vit: Callable[..., Any]) -> None:
    base = describe(small_vit(num_classes=2), "vit_tiny_patch16_224", {"num_classes": 2})
    task = open_task("digits", "3,7", preprocessing=base.preprocessing, base_outputs=10)
    network, images = base, task.train.subset(attention.IMAGES)
    found = {(kind, draw): of for kind, draw, of in attention.moments(network, task, [0, 1])}
    draws = {(f"random {count}", draw) for count in attention.DRAWN for draw in range(attention.DRAWS)}
    assert found.keys() - draws == {
        (kind, 0) for kind in ("weights", "activations", "activations x 0.01", "tokens", "class token")
    }
    every, one = found["activations", 0], found["random 1", 0]
    assert every is not None and one is not None and found["weights", 0] is None
    # All tokens, chosen one by one, are all tokens.
    passes = open_passes(Training(device="cpu"))
    tokens = network.geometry.tokens
    chosen = attention.random_tokens(len(images), tokens, tokens, 0)
    assert (chosen.sort(1).values == torch.arange(tokens)).all()
    for ours, theirs in zip(attention.token_moments(network, images, chosen, passes), every, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(one[1], every[1], rtol=1e-2) and torch.linalg.matrix_rank(one[0]) <= len(images)
    small = found["activations x 0.01", 0]
    assert small is not None
    for ours, theirs in zip(small, every, strict=True):  # a weight that all tokens share cancels
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rows_of_moments_are_of_any_base(tmp_path: Path) -> None:
    start = {"base": NAME, "checkpoint": write_checkpoint(tmp_path), "model_args": ARGS, "preprocessing": PREPROCESSING}
    mine = Source("mine", Path("digits"), start, tuple("0123456789"))
    rows = list(attention.moments_rows(mine, ["3", "7"]))
    assert rows[0]["kind"] == "base" and rows[0]["width"] == 32 and rows[0]["task"] == 2
    kinds = 5 + len(attention.DRAWN) * attention.DRAWS
    assert len(rows) == 1 + 3 * kinds and {row["width"] for row in rows[1:]} == {4, 8, 16}, "below 32, and half of it"
    assert "device" not in rows[0] and all(0 <= row["top1"] <= 1 for row in rows)


def test_moments_have_a_record_of_each_base_and_a_line_of_each_selection() -> None:
    def asked(*more: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        add_source(parser)
        return parser.parse_args(more)

    files = [attention.moments_file(asked(*more)).name for more in ((), ("--base", "fashion"), ("--data", "pets"))]
    assert files == ["attention.json", "attention_fashion.json", "attention_pets.json"]
    row = {"task": 3, "images": 90, "width": 64, "kind": "base", "draw": 0, "top1": 0.9}
    rows = [row, {**row, "kind": "activations x 0.01", "width": 32, "top1": 0.8}]
    rows += [{**row, "kind": "random 2", "width": 32, "draw": draw, "top1": 0.6 + draw / 10} for draw in range(2)]
    told = attention.moments_section({"rows": rows, "calibration_images": 128, "source": "fashion"})
    assert "## Attention alone, base fashion: factorised" in told and "range over 2 draws" in told
    assert "| 3 classes, 2 random | 90.0 | 65.0 (60.0 to 70.0) |" in told
    assert "| 3 classes, all tokens x 0.01 | 90.0 | 80.0 |" in told
    first = attention.moments_section({"rows": rows[:2], "calibration_images": 128})
    assert "## Attention alone, base rendered: factorised" in first and "draws" not in first
    assert attention.moments_section({"rows": rows[1:], "calibration_images": 128}) == "", "nothing of the base"
