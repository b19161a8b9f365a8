"""The scores are the diagonal of the Hessian that they are said to be, and nothing of the network changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import untrained
from torch import Tensor, nn

from edgevit.data.task import open_task
from edgevit.derivation.methods.heart.scores import (
    Gates,
    HessianScores,
    gate_losses,
    measure_scores,
    spearman,
    twice_differentiable,
)
from edgevit.network.model import describe

TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
FORMS: dict[str, dict[str, Any]] = {
    "class token": {}, "none": {"class_token": False, "global_pool": "avg"}, "LayerScale": {"init_values": 0.5},
}  # fmt: skip


def orthogonal_signs(size: int) -> Tensor:
    """As many rows of 1 and -1 as are needed for `size` columns that are orthogonal to each other."""
    rows = torch.ones(1, 1, dtype=torch.float64)
    while len(rows) < size:
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)])
    return rows[:, :size]


@pytest.mark.parametrize("args", FORMS.values(), ids=FORMS)
def test_scores_are_the_diagonal_of_the_explicit_hessian(small_vit: Callable[..., Any], args: dict[str, Any]) -> None:
    network = small_vit(**{**TINY, **args}).double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    labels = torch.tensor([0, 2])
    with twice_differentiable(network):
        gates = Gates.open_(network, images)
        torch.testing.assert_close(gates.logits(images), network(images))
        loss = F.cross_entropy(gates.logits(images), labels, reduction="sum")
        signs = [row.expand_as(gates.values) for row in orthogonal_signs(gates.values.shape[1])]
        found = gate_losses(loss, gates.values, signs)

        def by_hand(values: Tensor, image: int) -> Tensor:
            alone = Gates.open_(network, images[image : image + 1])
            alone.values = values[None]
            return F.cross_entropy(alone.logits(images[image : image + 1]), labels[image : image + 1])

        for i in range(2):
            ones = torch.ones_like(gates.values[i])
            hessian = torch.autograd.functional.hessian(lambda v, i=i: by_hand(v, i), ones)
            expected = hessian.diagonal() / 2
            assert expected.abs().max() > 1e-4
            torch.testing.assert_close(found[i], expected, rtol=1e-6, atol=1e-12)
    assert all(p.requires_grad for p in network.parameters())


def test_a_gate_of_zero_is_a_head_that_is_gone(small_vit: Callable[..., Any]) -> None:
    network, images = small_vit(**TINY), torch.randn(2, 3, 16, 16)
    gates = Gates.open_(network, images)
    with torch.no_grad():
        _, heads = gates.parts(gates.values)
        heads[1][:, 0] = 0
        blocks = network.read()
        assert blocks[1].attention is not None
        kept = [blocks[0], type(blocks[1])(blocks[1].attention.keep([1]), blocks[1].ffn)]
        torch.testing.assert_close(gates.logits(images), network.build(kept).eval()(images))


def test_before_the_last_block_a_token_has_a_score_of_zero(small_vit: Callable[..., Any]) -> None:
    """LayerNorm restores its size."""
    network, images = small_vit(**TINY).double(), torch.randn(2, 3, 16, 16).double()
    with twice_differentiable(network):
        gates = Gates.open_(network, images)
        loss = F.cross_entropy(gates.logits(images), torch.tensor([0, 2]), reduction="sum")
        scores = gate_losses(loss, gates.values, list(orthogonal_signs(gates.values.shape[1])))
    tokens, heads = gates.parts(scores)
    assert float(tokens[0][:, 1:].abs().max()) < 1e-3 * float(heads[0].abs().max())


def test_random_signs_tell_of_the_same(small_vit: Callable[..., Any], tmp_path: Path) -> None:
    """The mean over many draws, beside that of all orthogonal ones: within its error."""
    network = small_vit(**TINY).double()
    images = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    with twice_differentiable(network):
        gates = Gates.open_(network, images)
        loss = F.cross_entropy(gates.logits(images), torch.tensor([1]), reduction="sum")
        exact = gate_losses(loss, gates.values, list(orthogonal_signs(gates.values.shape[1])))
        gates = Gates.open_(network, images)
        loss = F.cross_entropy(gates.logits(images), torch.tensor([1]), reduction="sum")
        drawn = torch.randint(2, (200, gates.values.shape[1]), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        seen = gate_losses(loss, gates.values, list(drawn.double()))
    assert float((seen - exact).norm() / exact.norm()) < 0.5
    assert float(torch.nn.functional.cosine_similarity(seen.flatten(), exact.flatten(), dim=0)) > 0.9


def test_scores_of_images_are_means_and_leave_the_network_as_it_was(
    small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    base = describe(small_vit(depth=3), "vit_tiny_patch16_224", {"depth": 3})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.2, tmp_path)
    before = {name: value.clone() for name, value in problem.network.state_dict().items()}
    images = task.train.subset(12)
    one, two = (measure_scores(problem.network, images, problem.passes, probes=2, seed=1) for _ in range(2))
    assert one.ranked.shape == one.placed.shape == (2, 16) and [len(h) for h in one.heads] == [2, 2, 2]
    torch.testing.assert_close(one.ranked.sum(1), one.placed.sum(1))
    assert all(torch.equal(value, two.tensors()[name]) for name, value in one.tensors().items())
    assert all(torch.equal(value, before[name]) for name, value in problem.network.state_dict().items())
    assert HessianScores.of(one.tensors()).tensors().keys() == one.tensors().keys()
    both = torch.cat([one.placed[1], one.heads[1]])
    torch.testing.assert_close(one.standard_heads()[1], (one.heads[1] - both.mean()) / both.std(correction=0))
    assert not any(isinstance(m, nn.Module) and m._forward_pre_hooks for m in problem.network.modules())


def test_a_rank_correlation_looks_at_the_order_alone() -> None:
    x = torch.tensor([1.0, 5.0, 2.0, 9.0])
    assert float(spearman(x, x.exp())) == pytest.approx(1) and float(spearman(x, -x)) == pytest.approx(-1)
    assert float(spearman(x, torch.tensor([1.0, 2.0, 5.0, 9.0]))) == pytest.approx(0.8)
