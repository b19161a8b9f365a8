"""Gates that are shut are tokens and heads that are gone, and a training in which they close goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_base import derive, press_ctrl_c_in_step, write_checkpoint

from edgevit.derivation.methods.heart.gates import Closing, ClosingGates, closing_gates, head_gates
from edgevit.derivation.methods.heart.method import _plan
from edgevit.errors import Interrupted

FORMS: dict[str, dict[str, Any]] = {
    "class token": {}, "no class token": {"class_token": False, "global_pool": "avg"}, "registers": {"reg_tokens": 2},
    "post-norm": {"name": "vit_base_patch16_rpn_224"},
}  # fmt: skip


def closing(network: Any, *, gamma: float, tokens: tuple[int, ...], gone: dict[int, list[int]]) -> ClosingGates:
    blocks = network.read()
    kept = [[h for h in range(2) if h not in gone.get(i, [])] for i in range(len(blocks))]
    dims = [replace(b.dims, tokens=n, heads=len(heads)) for b, n, heads in zip(blocks, tokens, kept, strict=True)]
    heads = [head_gates(torch.tensor([0.5, -1.0]), gone.get(i, [])) for i in range(len(blocks))]
    return ClosingGates(network, Closing(partial(_plan, dims=dims, heads=kept), dims, heads, gamma, gamma, 4))


@pytest.mark.parametrize("args", FORMS.values(), ids=FORMS)
def test_shut_gates_are_the_cut_model(small_vit: Callable[..., Any], args: dict[str, Any]) -> None:
    network, images = small_vit(depth=3, **args).double(), torch.randn(3, 3, 32, 32).double()
    gates = closing(network, gamma=1e9, tokens=(9, 5, 0), gone={1: [1]})
    with torch.no_grad():
        whole, slim = network(images), gates.pruned()(images)
        with gates.watch():
            gated = network(images)
            torch.testing.assert_close(gates.pruned()(images), slim)  # a copy is without gates
        torch.testing.assert_close(gated, slim, rtol=1e-3, atol=1e-4)
        assert (whole - slim).abs().max() > 1e-2
        torch.testing.assert_close(network(images), whole)


def test_open_gates_weigh_all_tokens_and_train_through_them(small_vit: Callable[..., Any]) -> None:
    network, images = small_vit(depth=3), torch.randn(3, 3, 32, 32)
    gates = closing(network, gamma=1.0, tokens=(9, 0, 0), gone={1: [1]})
    with gates.watch():
        logits = network(images)
    assert not torch.allclose(logits, gates.pruned()(images), rtol=1e-2)
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_gates_close_from_first_to_last(small_vit: Callable[..., Any]) -> None:
    network = small_vit(depth=2)
    gates = closing(network, gamma=1.0, tokens=(9, 0), gone={})
    gates.closing = replace(gates.closing, first=1.0, last=100.0, steps=3)
    seen = []
    for _ in range(3):
        seen.append(gates.penalty()[1]["gamma"])
        gates.after_step()
    assert seen == pytest.approx([1, 10, 100])
    again = closing(network, gamma=1.0, tokens=(9, 0), gone={})
    again.load_state(gates.state())
    assert again.step == 3


def test_as_many_gates_are_open_as_tokens_go_on() -> None:
    scores = torch.rand(5, 16, generator=torch.Generator().manual_seed(0))
    for gamma in (1.0, 50.0):
        opened = closing_gates(scores, 6, gamma)
        assert ((opened > 0.5).sum(1) == 6).all()
        assert torch.equal(opened.topk(6).indices.sort(1).values, scores.topk(6).indices.sort(1).values)
    assert torch.isinf(head_gates(torch.tensor([1.0, 2.0]), [])).all()
    assert (head_gates(torch.tensor([3.0, 1.0, 2.0]), [1]) > 0).tolist() == [True, False, True]


@pytest.mark.slow
def test_a_training_that_was_interrupted_ends_in_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "method": "heart", "rate": 0.25, "cache": False, "options": {"calibration_images": 8, "probes": 1},
    }  # fmt: skip
    checkpoint = write_checkpoint(tmp_path)
    whole = derive(checkpoint, tmp_path / "whole", **given)
    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted):
        derive(checkpoint, tmp_path / "m", **given)
    again = derive(checkpoint, tmp_path / "m", resume=True, **given)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
