"""The loop trains the same however a step is shared, and stops where it may."""

from __future__ import annotations

import pytest
import torch
from teaching import CLASSES, QUICK, Bench, divergence
from torch import nn

from edgevit.network.copies import bare_copy
from edgevit.train.order import sample_order
from edgevit.train.settings import Training


def test_a_distilled_network_answers_more_like_its_teacher(bench: Bench) -> None:
    network, images = bench.spoilt(), next(bench.task.validation.batches(100))[0]
    before = divergence(bench.base, network, images)
    history = bench.train(network, 30, distillation=bench.teacher(1.0, tokens=0.1))
    assert divergence(bench.base, network, images) < 0.5 * before
    assert {"loss_task", "loss_teacher", "loss_tokens"} <= history.lines[-1].keys()
    assert history.lines[-1]["loss_teacher"] < history.lines[0]["loss_teacher"]


def test_a_teacher_of_no_weight_changes_nothing(bench: Bench) -> None:
    plain, taught = bench.spoilt(), bench.spoilt()
    bench.train(plain, 3)
    bench.train(taught, 3, distillation=bench.teacher(0.0))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(tensor, taught.state_dict()[name], msg=name)


@pytest.mark.parametrize("unlabelled", [False, True])
def test_micro_batches_match_one_batch_also_with_a_teacher(bench: Bench, unlabelled: bool) -> None:
    more = bench.task.unlabelled if unlabelled else None
    lines = []
    for accum in (1, 4):
        training = {"grad_accum": accum, "lr": 1e-5}
        history = bench.train(bench.spoilt(), 3, distillation=bench.teacher(tokens=0.1), unlabelled=more,
                              training=training)  # fmt: skip
        lines.append([[line[f"loss_{of}"] for of in ("task", "teacher", "tokens")] for line in history.lines])
    assert len(lines[0]) == 3
    torch.testing.assert_close(torch.tensor(lines[0]), torch.tensor(lines[1]), rtol=1e-4, atol=1e-5)


def test_bf16_distils(bench: Bench) -> None:
    network = bench.spoilt()
    history = bench.train(network, 2, distillation=bench.teacher(tokens=0.1), training={"precision": "bf16"})
    assert 0 < history.lines[-1]["loss_tokens"] < 10


def test_unlabelled_images_have_no_part_in_the_loss_of_the_labels(bench: Bench) -> None:
    network, more, task = bench.spoilt(), bench.task.unlabelled, bench.task
    assert more is not None
    training = Training(**QUICK)
    (order,) = sample_order(len(task.train), training, 0, 1, unlabelled=len(more))
    known = [position for position, _ in order if position < len(task.train)]
    assert len(known) == 8
    images = torch.stack([next(task.train.part(p, len(task.train)).batches(1))[0][0] for p in known])
    labels = torch.tensor([CLASSES[task.train.labels[p]] for p in known])
    with torch.no_grad():
        by_hand = float(nn.functional.cross_entropy(network(images), labels))
    history = bench.train(network, 1, distillation=bench.teacher(), unlabelled=more)
    assert history.lines[0]["loss_task"] == pytest.approx(by_hand, rel=1e-5)


def test_without_a_teacher_unlabelled_images_are_not_looked_at(bench: Bench) -> None:
    plain, beside = bench.spoilt(), bench.spoilt()
    bench.train(plain, 2)
    bench.train(beside, 2, unlabelled=bench.task.unlabelled)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, beside.state_dict()[name]), name


def test_a_gradient_is_shortened_to_the_norm_that_was_asked_for(bench: Bench) -> None:
    moved = []
    for norm in (0.0, 1e-12):  # what is shortened so far is nothing beside Adam's epsilon of 1e-8
        network, before = bench.spoilt(), bench.spoilt()
        bench.train(network, 2, training={"clip_norm": norm, "weight_decay": 0.0})
        pairs = zip(network.parameters(), before.parameters(), strict=True)
        moved.append(max(float((a - b).detach().abs().max()) for a, b in pairs))
    assert moved[0] > 1e-3 and moved[1] < 1e-3 * moved[0]


@pytest.mark.parametrize(("schedule", "done"), [("constant", 3), ("cosine", 8)])
def test_a_constant_rate_stops_once_the_best_improves_no_more(bench: Bench, schedule: str, done: int) -> None:
    training = {"lr": 1e-12, "evaluations": 8, "schedule": schedule}
    history = bench.train(bare_copy(bench.base), 8, keep="best", training=training)
    assert history.lines[-1]["step"] == done
