"""Distillation: the loss by hand, and teachers that do not fit."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch
from small_models import with_fewer_tokens
from teaching import CLASSES, Bench, divergence

from edgevit.derivation.solve.embedding import encoder, flat_basis
from edgevit.errors import OptionError
from edgevit.network.anatomy import Decoder
from edgevit.network.output import Logits
from edgevit.train import products
from edgevit.train.distil import (
    Distillation,
    Lesson,
    make_distillation,
    token_loss,
    way_back,
)
from edgevit.train.settings import Training


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are compared with those of a teacher in fp32 here."""
    monkeypatch.setattr(products, "multiplies_bf16", lambda: False)


def test_the_teachers_part_is_what_the_formula_says() -> None:
    network, teacher = torch.tensor([[1.0, 0.0], [2.0, 2.0]]), torch.tensor([[0.0, 2.0], [2.0, 2.0]])
    p = 1 / (1 + exp(1.0))  # softmax of (0, 1): the teacher's logits over T = 2
    q = exp(0.5) / (1 + exp(0.5))  # softmax of (0.5, 0)
    by_hand = 4 * (p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))) / 2  # T^2; the second image agrees
    assert float(Logits((0, 1)).imitation(teacher, network, 2.0)) == pytest.approx(by_hand, rel=1e-6)


def test_the_tokens_part_is_relative_to_the_teachers_square_image_by_image() -> None:
    tokens, taught = torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]]), torch.tensor([[[1.0, 1.0]], [[6.0, 0.0]]])
    assert float(token_loss(tokens, taught)) == pytest.approx((0.5 / 1 + 4.5 / 18) / 2)


def test_the_error_of_tokens_is_relative_to_the_teachers_square() -> None:
    tokens, taught = torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[2.0], [1.0]]])
    assert float(token_loss(tokens, taught)) == pytest.approx((1 + 4) / (4 + 1))


def test_a_step_mixes_labels_teacher_and_tokens_by_their_weights(bench: Bench) -> None:
    network, images = bench.spoilt(), next(bench.task.train.batches(8))[0]
    lesson = Lesson(bench.teacher(0.7, 2.0, 0.5), network.with_columns(CLASSES))
    with lesson.watch():
        logits = network(images)
        parts = {"loss_task": torch.tensor(3.0), **lesson.losses(images, logits)}
    final = [m.forward_features(images) for m in (network, bench.base)]  # type: ignore[operator]
    torch.testing.assert_close(parts["loss_tokens"], token_loss(*final))
    assert float(parts["loss_teacher"].detach()) == pytest.approx(divergence(bench.base, network, images), rel=1e-5)
    expected = 0.3 * 3 + 0.7 * parts["loss_teacher"] + 0.5 * parts["loss_tokens"]
    torch.testing.assert_close(lesson.total(parts), expected)


def test_the_teacher_alone_is_rounded_and_only_where_the_processor_multiplies_bf16(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, images = bench.spoilt(), next(bench.task.train.batches(8))[0]
    logits, found = network(images), []
    for has in (False, True):
        monkeypatch.setattr(products, "multiplies_bf16", lambda has=has: has)
        lesson = Lesson(bench.teacher(0.7, 2.0, 0.5), network.with_columns(CLASSES))
        with lesson.watch():
            torch.testing.assert_close(network(images), logits, rtol=0, atol=0)
            found.append(lesson.losses(images, logits))
    for name, exact in found[0].items():
        assert found[1][name].dtype == torch.float32
        assert float(found[1][name].detach()) != float(exact.detach())
        assert float(found[1][name].detach()) == pytest.approx(float(exact.detach()), rel=0.02)


@pytest.mark.parametrize("args", [{}, {"global_pool": "avg"}], ids=["class token", "pooled before its norm"])
def test_tokens_of_another_embedding_are_compared_in_the_teachers(small_vit: Any, args: dict[str, Any]) -> None:
    """At full width they are the same tokens, but for their mean where no norm has taken it away."""
    teacher, images = small_vit(**args).eval(), torch.randn(2, 3, 32, 32)
    encode = encoder(flat_basis(64), 64)
    distillation = make_distillation(teacher, Training(teacher="restricted", token_weight=1.0), encode)
    network = teacher.with_embedding(encode)
    lesson = Lesson(distillation, network.with_columns(CLASSES))
    lesson.check(images)
    with lesson.watch(), torch.no_grad():
        network(images)
        teacher = distillation.teacher
        wanted = teacher.forward_features(images)  # type: ignore[operator]
    if args:
        wanted = wanted - wanted.mean(-1, keepdim=True)
    torch.testing.assert_close(lesson.student_tokens(), wanted, rtol=1e-4, atol=1e-4)


def test_final_tokens_of_a_narrower_embedding_are_compared_through_the_decoder_of_the_last_norm(small_vit: Any) -> None:
    encode = encoder(flat_basis(64), 24)
    decode = Decoder(torch.randn(64, 24).double(), torch.randn(64).double())
    teacher = small_vit()
    weight, bias = way_back(teacher, encode, decode)
    narrow = torch.randn(5, 24)
    wide = narrow @ decode.weight.float().mT + decode.bias.float()  # type: ignore[union-attr]
    expected = wide * teacher.module.norm.weight + teacher.module.norm.bias
    torch.testing.assert_close(narrow @ weight.mT + bias, expected, rtol=1e-4, atol=1e-4)
    pooled = small_vit(global_pool="avg")  # whose norm sees pooled tokens: those that are compared have none
    assert torch.equal(way_back(pooled, encode, decode)[0], way_back(pooled, encode)[0])


@pytest.mark.parametrize("args", [{}, {"global_pool": "avg", "class_token": False}, {"reg_tokens": 4}])
def test_final_tokens_are_what_the_head_pools(small_vit: Any, args: dict[str, Any]) -> None:
    network, images, seen = small_vit(**args), torch.randn(2, 3, 32, 32), []
    hook = network.ends.final.register_forward_hook(lambda m, i, output: seen.append(output))
    logits = network(images)
    hook.remove()
    torch.testing.assert_close(network.module.forward_head(seen[0]), logits)


def test_where_tokens_leave_those_are_compared_that_always_stay(bench: Bench) -> None:
    images, fewer = next(bench.task.train.batches(8))[0], with_fewer_tokens(bench.base, 6, 0)
    lesson = Lesson(bench.teacher(0.7, 2.0, 0.5), fewer.with_columns(CLASSES))
    lesson.check(images)
    with lesson.watch():
        parts = lesson.losses(images, fewer(images))
    final = [m.forward_features(images)[:, :1] for m in (fewer, bench.base)]  # type: ignore[operator]
    torch.testing.assert_close(parts["loss_tokens"], token_loss(*final))


def test_no_more_tokens_are_compared_than_the_distillation_says(bench: Bench) -> None:
    images, network = next(bench.task.train.batches(8))[0], bench.spoilt()
    distillation = replace(bench.teacher(0.7, 2.0, 0.5), compared=3)
    lesson = Lesson(distillation, network.with_columns(CLASSES))
    with lesson.watch():
        found = lesson.losses(images, network(images))["loss_tokens"]
    final = [m.forward_features(images)[:, :3] for m in (network, bench.base)]  # type: ignore[operator]
    torch.testing.assert_close(found, token_loss(*final))
    none = replace(distillation, compared=0)
    with pytest.raises(OptionError, match="it has no token that always remains to be compared; set --token-weight 0"):
        Lesson(none, network.with_columns(CLASSES)).check(images)
    Lesson(replace(none, tokens=0.0), network.with_columns(CLASSES)).check(images)


def test_tokens_that_all_may_leave_are_not_compared(small_vit: Any) -> None:
    base = small_vit(class_token=False, global_pool="avg")
    lesson = Lesson(Distillation(base, 0.9, 2.0, tokens=1.0), with_fewer_tokens(base, 6, 0).with_columns(CLASSES))
    with pytest.raises(OptionError, match="it has no token that always remains to be compared; set --token-weight 0"):
        lesson.check(torch.zeros(1, 3, 32, 32))


def test_a_teacher_that_does_not_fit_is_refused(bench: Bench, small_vit: Any) -> None:
    other = Distillation(small_vit(num_classes=4), 0.9, 2.0)
    with pytest.raises(OptionError, match="the teacher has 4 classes and the network 10"):
        bench.train(bench.spoilt(), 1, distillation=other)
    wide = Distillation(small_vit(embed_dim=96), 0.9, 2.0, tokens=1.0)
    with pytest.raises(OptionError, match=r"final tokens are \[17, 96\] and the network's \[17, 64\]"):
        bench.train(bench.spoilt(), 1, distillation=wide)
