"""Decay draws matrices to zero and nothing else; the learning rate warms up, holds or falls, and goes by the loss."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_progress import RecordedProgress
from small_base import press_ctrl_c_in_step
from teaching import Bench, kept_step

from edgevit.errors import Interrupted, UnfinishedError
from edgevit.train import loop
from edgevit.train.optimizer import RATE_OF_LOSS, TYPICAL_RMS, highest_rate, learning_rate, make_optimizer
from edgevit.train.settings import Training

VARIANTS = {
    "class token": ("vit_tiny_patch16_224", {}),
    "distillation token": ("deit_tiny_distilled_patch16_224", {}),
    "registers and LayerScale": ("vit_tiny_patch16_224", {"reg_tokens": 4, "init_values": 0.1}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_without_gradients_shrinks_the_matrices_alone(small_vit: Any, variant: str) -> None:
    name, args = VARIANTS[variant]
    network = small_vit(name, **args)
    before = {name: p.detach().clone() for name, p in network.module.named_parameters()}
    optimizer = make_optimizer(network, Training(lr=0.1, weight_decay=0.5))
    for p in network.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    shrunk = {
        name for name, p in network.module.named_parameters() if torch.allclose(p, 0.95 * before[name], rtol=1e-6)
    }
    same = {name for name, p in network.module.named_parameters() if torch.equal(p, before[name])}
    assert shrunk | same == before.keys() and not shrunk & same
    heads = {name.rpartition(".")[0] for name in before if name.startswith("head")}
    layers = {f"blocks.{i}.{of}" for i in range(2) for of in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert shrunk == {f"{layer}.weight" for layer in {*layers, *heads, "patch_embed.proj"}}
    assert not shrunk & set(network.module.no_weight_decay()), "what timm says must not decay does not"


def test_the_rate_of_a_step_is_that_of_every_weight(bench: Bench) -> None:
    network = bench.spoilt()
    before = {name: p.detach().clone() for name, p in network.module.named_parameters()}
    bench.train(network, 1, training={"weight_decay": 0.0, "warmup_steps": 0})
    moved = {name: float((p - before[name]).abs().max().detach()) for name, p in network.module.named_parameters()}
    # Adam's first step is the learning rate, whatever the gradient.
    assert moved["head.weight"] == pytest.approx(1e-3, rel=0.02)
    assert moved["blocks.0.mlp.fc1.weight"] == pytest.approx(1e-3, rel=0.02)


def test_a_gentle_step_moves_small_weights_by_a_share_of_the_rate(bench: Bench) -> None:
    network = bench.spoilt()
    small = network.module.blocks[0].mlp.fc2
    with torch.no_grad():
        small.weight.mul_(0.2 * TYPICAL_RMS / small.weight.square().mean().sqrt())
        network.module.blocks[1].mlp.fc2.weight.zero_()
    before = {name: p.detach().clone() for name, p in network.module.named_parameters()}
    settings = {"weight_decay": 0.0, "warmup_steps": 0, "lr_by_loss": True, "teacher": "restricted"}
    history = bench.train(network, 1, keep="best", distillation=bench.teacher(), training=settings)
    moved = {name: float((p - before[name]).abs().max().detach()) for name, p in network.module.named_parameters()}
    rate = history.lines[1]["lr"]
    shares = {"blocks.0.mlp.fc2.weight": 0.2, "blocks.0.mlp.fc2.bias": 0.2, "blocks.0.mlp.fc1.bias": 1.0}
    for name, share in {**shares, "blocks.1.mlp.fc2.weight": 1.0, "norm.weight": 1.0}.items():
        assert moved[name] == pytest.approx(share * rate, rel=0.02), name


def test_a_state_of_a_training_that_decayed_everything_is_refused_in_one_line(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_alike(network: torch.nn.Module, training: Training) -> torch.optim.AdamW:
        return torch.optim.AdamW(network.parameters(), lr=training.lr, weight_decay=training.weight_decay)

    press_ctrl_c_in_step(1, monkeypatch)
    with monkeypatch.context() as older, pytest.raises(Interrupted):
        older.setattr(loop, "make_optimizer", all_alike)
        bench.train(bench.spoilt(), 5, folder=tmp_path / "state")
    with pytest.raises(UnfinishedError, match=r"of another edgevit .*parameter group") as told:
        bench.train(bench.spoilt(), 5, folder=tmp_path / "state")
    assert "\n" not in str(told.value) and "without --resume" in str(told.value)


def test_schedules_warm_up_hold_and_fall() -> None:
    constant = Training(steps=10, warmup_steps=4, schedule="constant")
    cosine = Training(steps=10, schedule="cosine")
    assert [learning_rate(constant, s, 1.0) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert learning_rate(cosine, 0, 1.0) == 1.0 and learning_rate(cosine, 5, 1.0) == pytest.approx(0.5)


def test_a_loss_of_a_quarter_halves_the_highest_rate() -> None:
    assert highest_rate(0.25) == pytest.approx(RATE_OF_LOSS / 2) and highest_rate(0.0) == 0.0


def test_the_rate_is_lower_the_less_is_wrong_at_the_start(bench: Bench) -> None:
    training = {"lr_by_loss": True, "schedule": "constant", "lr": RATE_OF_LOSS}
    for noise in (0.0, 0.003, 0.05, 0.5):  # the last is so wrong that the rate is the one asked for
        network = bench.spoilt(noise)
        history = bench.train(network, 1, keep="best", distillation=bench.teacher(), training=training)
        before = history.lines[0]["loss_validation"]
        assert history.lines[1]["lr"] == pytest.approx(RATE_OF_LOSS * min(1, sqrt(before)), abs=1e-12)


def test_weights_that_are_nearly_right_are_not_spoilt_by_the_first_steps(bench: Bench) -> None:
    worst = {}
    for by_loss in (False, True):
        training = {"lr_by_loss": by_loss, "evaluations": 6}
        history = bench.train(bench.spoilt(0.002), 6, keep="best", distillation=bench.teacher(), training=training)
        losses = [line["loss_validation"] for line in history.lines if "loss_validation" in line]
        worst[by_loss] = max(losses) / losses[0]
    assert worst[True] < 2 < worst[False]


def test_a_rate_that_harms_is_lowered_after_a_trial_that_leaves_no_trace(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MANY", 0)
    monkeypatch.setattr(loop, "TRIAL_STEPS", 3)
    histories, progress = {}, {lr: RecordedProgress() for lr in (1e-6, 0.01, 0.05)}
    for lr in progress:
        training = {"lr_by_loss": True, "schedule": "constant", "lr": lr}
        monkeypatch.setattr(loop, "highest_rate", lambda _, lr=lr: lr)
        histories[lr] = bench.train(
            bench.spoilt(0.05), 4, keep="best", distillation=bench.teacher(), training=training, progress=progress[lr]
        )
    assert histories[1e-6].lines[1]["lr"] == pytest.approx(1e-6), "a rate without harm stays"
    chosen = histories[0.05].lines[1]["lr"]
    assert chosen < 0.05 * 0.31
    lower = histories[0.01].lines[1]["lr"]
    assert progress[0.01].notes[0] == f"train: learning rate {lower:.2g}; 0.01 raises the loss at once" and lower < 0.01
    assert progress[0.05].warnings[0].startswith(f"train: 3 steps at a learning rate of {chosen:.2g}, the lowest")
    assert not any("raises the loss" in text for text in (*progress[1e-6].notes, *progress[1e-6].warnings))
    first, *_, second = (history.lines[0]["loss_validation"] for history in histories.values())
    assert first == pytest.approx(second), "the trial follows the first look"
    monkeypatch.setattr(loop, "MANY", 10**6)  # no trial
    plain = bench.train(
        bench.spoilt(0.05), 4, keep="best", distillation=bench.teacher(),
        training={"lr_by_loss": True, "schedule": "constant", "lr": 1e-6},
    )  # fmt: skip
    monkeypatch.setattr(loop, "highest_rate", highest_rate)
    assert plain.lines[1]["loss_teacher"] == pytest.approx(histories[1e-6].lines[1]["loss_teacher"], rel=1e-5)


def test_a_distillation_that_will_not_help_says_so_before_it_and_halfway(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MANY", 0)
    monkeypatch.setattr(loop, "TRIAL_STEPS", 3)
    monkeypatch.setattr(loop, "highest_rate", lambda _: 0.5)
    progress = RecordedProgress()
    training = {"lr_by_loss": True, "schedule": "constant", "lr": 0.5, "evaluations": 4}
    history = bench.train(
        bench.spoilt(0.002), 4, keep="best", distillation=bench.teacher(), training=training, progress=progress
    )
    assert kept_step(history) == 0
    before, halfway = progress.warnings
    assert before.startswith(f"train: {loop.TRIAL_STEPS} steps at a learning rate of 0.015, the lowest that is tried")
    assert before.endswith("so it is unlikely to help; try --steps 0, or more images, without labels as --unlabelled")
    assert halfway.startswith("train: after 2 of 4 steps no state is better than the one before them")
