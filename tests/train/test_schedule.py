"""The learning rate warms up, holds or falls, and goes by the loss."""

from __future__ import annotations

from math import sqrt

import pytest
from teaching import Bench

from edgevit.train import loop
from edgevit.train.schedule import RATE_OF_LOSS, highest_rate, learning_rate
from edgevit.train.settings import Training


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
    histories = {}
    for lr in (1e-6, 0.05):
        training = {"lr_by_loss": True, "schedule": "constant", "lr": lr}
        monkeypatch.setattr(loop, "highest_rate", lambda _, lr=lr: lr)
        histories[lr] = bench.train(bench.spoilt(0.05), 4, keep="best", distillation=bench.teacher(), training=training)
    assert histories[1e-6].lines[1]["lr"] == pytest.approx(1e-6), "a rate without harm stays"
    assert histories[0.05].lines[1]["lr"] < 0.05 * 0.31
    first, second = (history.lines[0]["loss_validation"] for history in histories.values())
    assert first == pytest.approx(second), "the trial follows the first look"
    monkeypatch.setattr(loop, "MANY", 10**6)  # no trial
    plain = bench.train(
        bench.spoilt(0.05), 4, keep="best", distillation=bench.teacher(),
        training={"lr_by_loss": True, "schedule": "constant", "lr": 1e-6},
    )  # fmt: skip
    monkeypatch.setattr(loop, "highest_rate", highest_rate)
    assert plain.lines[1]["loss_teacher"] == pytest.approx(histories[1e-6].lines[1]["loss_teacher"], rel=1e-5)
