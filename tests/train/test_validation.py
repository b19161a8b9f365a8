"""The best state is kept: the most like the teacher, or the most accurate where there is none."""

from __future__ import annotations

import pytest
import torch
from teaching import Bench, divergence, kept_step

from edgevit.network.copies import bare_copy


def test_keeping_the_best_never_ends_below_the_start(bench: Bench) -> None:
    network = bare_copy(bench.base)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    history = bench.train(network, 6, keep="best", training={"lr": 0.3})
    assert history.lines[-1]["accuracy_trained"] < bench.accuracy(bench.base), "too mild to spoil it"
    assert kept_step(history) == 0
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_state_that_is_kept_is_the_most_like_the_teacher_on_the_validation_part(bench: Bench) -> None:
    network, teacher = bench.spoilt(), bench.teacher()
    history = bench.train(network, 12, keep="best", distillation=teacher, training={"evaluations": 6})
    seen = {line["step"]: line["loss_validation"] for line in history.lines if "loss_validation" in line}
    assert sorted(seen) == [0, 2, 4, 6, 8, 10, 12]
    kept = kept_step(history)
    assert seen[kept] == min(seen.values()) and kept > 0
    images = torch.cat([images for images, _ in bench.task.validation.batches(50)])
    assert divergence(bench.base, network, images) == pytest.approx(seen[kept], rel=1e-4)


def test_without_a_teacher_the_state_of_the_best_accuracy_is_kept(bench: Bench) -> None:
    network = bench.spoilt()
    history = bench.train(network, 12, keep="best", training={"evaluations": 6})
    seen = {line["step"]: line["accuracy_trained"] for line in history.lines if "accuracy_trained" in line}
    kept = kept_step(history)
    assert kept == min(step for step, accuracy in seen.items() if accuracy == max(seen.values())) > 0
    assert bench.accuracy(network) == seen[kept]


def test_a_state_that_differs_from_the_teacher_by_rounding_alone_has_no_negative_loss(bench: Bench) -> None:
    """The divergence of nearly equal answers comes out below 0 about as often as above."""
    seen = []
    for noise in torch.logspace(-9, -6, 7).tolist():
        network, teacher = bench.spoilt(noise), bench.teacher()
        history = bench.train(network, 1, keep="best", distillation=teacher, training={"lr_by_loss": True})
        seen.append(history.lines[0]["loss_validation"])
    assert min(seen) >= 0
