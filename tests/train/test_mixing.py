"""DeiT's recipe: pairs of images and labels are mixed, branches dropped, and all of it again after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_base import assert_same_weights, derive, press_ctrl_c_in_step
from teaching import Bench

from edgevit.errors import Interrupted, OptionError
from edgevit.train.mixing import DEEPEST, SMOOTHING, Mixing
from edgevit.train.settings import Training

DEIT: Any = {"augment": "deit"}


def test_images_and_labels_are_mixed_alike(bench: Bench) -> None:
    mixing = Mixing(bench.base, Training(batch_size=4), 1, 0)
    images = torch.eye(4)[:, :, None, None].expand(4, 4, 32, 32)  # channel i of image i is one
    target = torch.tensor([0, 3, 5, 9])
    shares = set()
    for number in range(40):
        mixed, probabilities = mixing.mix(images, target, number)
        torch.testing.assert_close(probabilities.sum(1), torch.ones(4))
        share = float(mixed[0, 0].mean())  # of itself: an area of CutMix, or a weight of mixup
        own = share * (1 - SMOOTHING) + SMOOTHING / 10
        assert float(probabilities[0, 0]) == pytest.approx(own, abs=1e-3)
        assert float(mixed[0].mean((1, 2)).sum()) == pytest.approx(1, abs=1e-5)
        shares.add(float(mixed[0, 0, 0, 0]) in (0.0, 1.0))
        again = mixing.mix(images, target, number)
        assert torch.equal(again[0], mixed) and torch.equal(again[1], probabilities)
    assert shares == {False, True}, "mixup and CutMix, each some of the time"


def test_branches_of_deep_blocks_are_dropped_for_some_images_while_training(bench: Bench) -> None:
    network, images = bench.spoilt(), torch.randn(1, 3, 32, 32).expand(600, 3, 32, 32)
    mixing = Mixing(network, Training(batch_size=4), 1, 0)
    mixing.mix(images[:2], torch.tensor([0, 1]), 0)
    with torch.no_grad():
        whole = network.eval()(images)
        with mixing.dropping():
            assert torch.equal(network(images), whole)
            outputs = network.train()(images)
        after = network(images[:1])
    # Of the last of two blocks either branch, or both, are dropped; those that stay are larger, so that the mean stays.
    kinds, counts = torch.unique(outputs.mul(100).round(), dim=0, return_counts=True)
    assert 2 <= len(kinds) <= 4 and int(counts.max()) / 600 == pytest.approx((1 - DEEPEST) ** 2, abs=0.05)
    torch.testing.assert_close(after, whole[:1], rtol=1e-4, atol=1e-4, msg="hooks are gone")


def test_the_generators_of_others_are_left_alone(bench: Bench) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    bench.train(bench.spoilt(), 2, training=DEIT)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]


def test_a_teacher_sees_the_mixed_images(bench: Bench) -> None:
    history = bench.train(bench.spoilt(), 20, distillation=bench.teacher(1.0), training=DEIT)
    assert history.lines[-1]["loss_teacher"] < history.lines[0]["loss_teacher"]


@pytest.mark.parametrize(
    ("training", "unlabelled", "message"),
    [({"batch_size": 15}, False, "a micro-batch has 15; give --batch-size 16"), ({}, True, "not all images have one")],
)
def test_what_cannot_be_mixed_is_refused(bench: Bench, training: Any, unlabelled: bool, message: str) -> None:
    more = bench.task.unlabelled if unlabelled else None
    with pytest.raises(OptionError, match=message):
        bench.train(bench.spoilt(), 2, distillation=bench.teacher(), unlabelled=more, training={**DEIT, **training})


@pytest.mark.slow
def test_an_interrupted_training_ends_in_the_same_weights(
    digits_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"method": "random", "training": DEIT, "cache": False}
    whole = derive(digits_checkpoint, tmp_path / "whole", **given)
    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted):
        derive(digits_checkpoint, tmp_path / "again", **given)
    resumed = derive(digits_checkpoint, tmp_path / "again", resume=True, **given)
    assert_same_weights(whole.model.state_dict(), resumed.model.state_dict())
