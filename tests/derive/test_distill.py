"""Distillation: the loss by hand, unlabelled images, resuming, and keeping the best state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_base import ARGS, PREPROCESSING, press_ctrl_c_in_step
from small_base import derive as derive_small
from torch import Tensor, nn

from edgevit.data.task import Task, open_task
from edgevit.derive import load_method
from edgevit.errors import Interrupted, OptionError
from edgevit.models.checkpoint import open_base
from edgevit.models.families import family_of
from edgevit.models.slim import bare_copy
from edgevit.progress import Silent
from edgevit.train.distil import Distillation, Lesson, teacher_loss, token_loss
from edgevit.train.history import History
from edgevit.train.loop import RATE_OF_LOSS, Best, train
from edgevit.train.order import sample_order, unlabelled_share
from edgevit.train.passes import evaluate, open_passes
from edgevit.train.settings import Training

CLASSES = [3, 7, 9]
QUICK = {"batch_size": 16, "device": "cpu", "lr": 1e-3, "augment": "none", "evaluations": 3}


@dataclass
class Bench:
    """A base that knows its digits, the task of three of them, and unlabelled images of all."""

    base: nn.Module
    task: Task

    def teacher(self, weight: float = 0.9, temperature: float = 2.0, tokens: float = 0.0) -> Distillation:
        return Distillation(bare_copy(self.base).requires_grad_(False), weight, temperature, tokens)

    def spoilt(self, noise: float = 0.05) -> nn.Module:
        """The base with noise on its weights, which has something to learn again."""
        network = bare_copy(self.base)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in network.parameters():
                p.add_(torch.randn(p.shape, generator=generator) * noise)
        return network

    def train(self, network: nn.Module, steps: int, history: Path | None = None, **more: Any) -> History:
        training = Training(**{**QUICK, **more.pop("training", {})})
        log = History(history)
        train(network, self.task, CLASSES, training, steps=steps, history=log,
              passes=open_passes(training, more.pop("progress", None)), **more)  # fmt: skip
        return log

    def accuracy(self, network: nn.Module) -> float:
        passes = open_passes(Training(**QUICK))
        return evaluate(network, self.task.validation, CLASSES, self.task.class_names, passes).top1


@pytest.fixture(scope="module")
def bench(digits_checkpoint: Path) -> Bench:
    given: Any = {"model_args": ARGS, "preprocessing": PREPROCESSING, "pretrained": False}
    base = open_base("vit_tiny_patch16_224", checkpoint=digits_checkpoint, **given)
    task = open_task("digits", CLASSES, preprocessing=base.preprocessing, base_outputs=10, unlabelled="digits")
    return Bench(base.network, task)


def kept_step(history: History) -> int:
    outcome = history.outcome("train")
    assert outcome is not None
    return outcome.kept_step


def divergence(teacher: nn.Module, network: nn.Module, images: Tensor) -> float:
    with torch.inference_mode():
        return float(teacher_loss(network(images)[:, CLASSES], teacher(images)[:, CLASSES], 2.0))


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_the_teachers_part_is_what_the_formula_says() -> None:
    network, teacher = torch.tensor([[1.0, 0.0], [2.0, 2.0]]), torch.tensor([[0.0, 2.0], [2.0, 2.0]])
    p = 1 / (1 + exp(1.0))  # softmax of (0, 1): the teacher's logits over T = 2
    q = exp(0.5) / (1 + exp(0.5))  # softmax of (0.5, 0)
    by_hand = 4 * (p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))) / 2  # T^2; the second image agrees
    assert float(teacher_loss(network, teacher, 2.0)) == pytest.approx(by_hand, rel=1e-6)


def test_the_tokens_part_is_relative_to_the_teachers_square_image_by_image() -> None:
    tokens, taught = torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]]), torch.tensor([[[1.0, 1.0]], [[6.0, 0.0]]])
    assert float(token_loss(tokens, taught)) == pytest.approx((0.5 / 1 + 4.5 / 18) / 2)


def test_a_step_mixes_labels_teacher_and_tokens_by_their_weights(bench: Bench) -> None:
    network, images = bench.spoilt(), next(bench.task.train.batches(8))[0]
    lesson = Lesson(bench.teacher(0.7, 2.0, 0.5), network, CLASSES)
    with lesson.watch():
        logits = network(images)
        parts = {"loss_task": torch.tensor(3.0), **lesson.losses(images, logits)}
    final = [m.forward_features(images) for m in (network, bench.base)]  # type: ignore[operator]
    torch.testing.assert_close(parts["loss_tokens"], token_loss(*final))
    assert float(parts["loss_teacher"].detach()) == pytest.approx(divergence(bench.base, network, images), rel=1e-5)
    expected = 0.3 * 3 + 0.7 * parts["loss_teacher"] + 0.5 * parts["loss_tokens"]
    torch.testing.assert_close(lesson.total(parts), expected)


@pytest.mark.parametrize("args", [{}, {"global_pool": "avg", "class_token": False}, {"reg_tokens": 4}])
def test_final_tokens_are_what_the_head_pools(small_vit: Any, args: dict[str, Any]) -> None:
    network, images, seen = small_vit(**args), torch.randn(2, 3, 32, 32), []
    hook = family_of(network).final_tokens(network).register_forward_hook(lambda m, i, output: seen.append(output))
    logits = network(images)
    hook.remove()
    torch.testing.assert_close(network.forward_head(seen[0]), logits)


# -- training ----------------------------------------------------------------------------------------------------------


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


# -- unlabelled images -------------------------------------------------------------------------------------------------


def test_unlabelled_images_take_their_share_and_at_most_half() -> None:
    assert unlabelled_share(100, 0, 16) == 0
    assert unlabelled_share(300, 100, 16) == 4
    assert unlabelled_share(100, 10_000, 16) == 8
    assert unlabelled_share(10_000, 1, 16) == 1


@pytest.mark.parametrize(("world", "accum"), [(1, 1), (2, 1), (2, 3)])
def test_every_step_has_the_same_unlabelled_images_however_it_is_shared(world: int, accum: int) -> None:
    def flat(training: Training, first: int, rank: int = 0, world: int = 1) -> list[tuple[int, int]]:
        order = sample_order(17, training, first, first + 1, rank, world, unlabelled=9)
        return [pair for batch in order for pair in batch]

    counts = [0] * 26
    for step in range(26):
        whole = flat(Training(batch_size=12), step)
        shared = [p for r in range(world) for p in flat(Training(batch_size=12, grad_accum=accum), step, r, world)]
        assert sorted(shared) == sorted(whole)
        assert sum(position >= 17 for position, _ in whole) == unlabelled_share(17, 9, 12) == 4
        for position, _ in whole:
            counts[position] += 1
    assert max(counts[:17]) - min(counts[:17]) <= 1 and max(counts[17:]) - min(counts[17:]) <= 1


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


# -- stopping, resuming, keeping ---------------------------------------------------------------------------------------


# The best state is a late one, or that before the first step.
@pytest.mark.parametrize(("lr", "by_loss"), [(1e-3, True), (0.3, False)])
def test_an_interrupted_distillation_resumed_ends_in_the_same_weights(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lr: float, by_loss: bool
) -> None:
    def run(folder: Path, network: nn.Module) -> History:
        return bench.train(
            network, 9, folder / "history.jsonl", folder=folder / "state", distillation=bench.teacher(tokens=0.1),
            unlabelled=bench.task.unlabelled, keep="best",
            training={"augment": "crop", "lr": lr, "lr_by_loss": by_loss, "warmup_steps": 3, "clip_norm": 1.0},
        )  # fmt: skip

    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    whole, resumed = bench.spoilt(), bench.spoilt()
    history = run(tmp_path / "whole", whole)
    press_ctrl_c_in_step(4, monkeypatch)
    with pytest.raises(Interrupted, match="stopped at step 5 of 9"):
        run(tmp_path / "resumed", bench.spoilt())
    again = run(tmp_path / "resumed", resumed)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name

    def told(history: History) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k != "images_per_s"} for line in history.lines]

    assert told(history) == told(again)
    assert (kept_step(history) == 0) == (lr > 0.1)


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


@pytest.mark.parametrize(("lr", "said"), [(0.3, "distillation did not help"), (1e-3, "kept the weights of step")])
def test_whether_training_helped_is_said_in_one_line(bench: Bench, lr: float, said: str) -> None:
    told: list[str] = []

    class Told(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    history = bench.train(
        bench.spoilt(), 6, keep="best", distillation=bench.teacher(), training={"lr": lr}, progress=Told()
    )
    outcome = history.outcome("train")
    assert outcome is not None and said in told[-1] and "\n" not in told[-1]
    assert f"{100 * outcome.accuracy_validation_before:.1f} %" in told[-1]
    assert (outcome.kept_step == 0) == ("closed-form weights are kept; try a lower --lr" in told[-1])
    looked = [line for line in history.lines if "loss_validation" in line]
    assert outcome.loss_validation_before == looked[0]["loss_validation"]
    assert outcome.loss_validation_trained == min(line["loss_validation"] for line in looked[1:])


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


def test_a_gradient_is_shortened_to_the_norm_that_was_asked_for(bench: Bench) -> None:
    moved = []
    for norm in (0.0, 1e-12):  # what is shortened so far is nothing beside Adam's epsilon of 1e-8
        network, before = bench.spoilt(), bench.spoilt()
        bench.train(network, 2, training={"clip_norm": norm, "weight_decay": 0.0})
        pairs = zip(network.parameters(), before.parameters(), strict=True)
        moved.append(max(float((a - b).detach().abs().max()) for a, b in pairs))
    assert moved[0] > 1e-3 and moved[1] < 1e-3 * moved[0]


def test_of_equally_good_states_the_earlier_is_the_best() -> None:
    best = Best()
    assert [best.add(a, step) for step, a in enumerate((0.5, 0.5, 0.7, 0.7, 0.6))] == [True, False, True, False, False]
    assert (best.step, best.since) == (2, 2)


@pytest.mark.parametrize(("schedule", "done"), [("constant", 3), ("cosine", 8)])
def test_a_constant_rate_stops_once_the_best_improves_no_more(bench: Bench, schedule: str, done: int) -> None:
    training = {"lr": 1e-12, "evaluations": 8, "schedule": schedule}
    history = bench.train(bare_copy(bench.base), 8, keep="best", training=training)
    assert history.lines[-1]["step"] == done


# -- options and bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher_weight": 1.2}, r"vulcan\.teacher_weight=1\.2 is not in \[0, 1\]"),
        ({"teacher_weight": float("nan")}, r"vulcan\.teacher_weight=nan is not in \[0, 1\]"),
        ({"temperature": 0.0}, r"vulcan\.temperature=0 is not a number above 0"),
        ({"token_weight": -1.0}, r"vulcan\.token_weight=-1 is not a number of at least 0"),
    ],
)
def test_impossible_options_of_a_teacher_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_method("vulcan").Config(**options)


def test_a_teacher_that_does_not_fit_is_refused(bench: Bench, small_vit: Any) -> None:
    other = Distillation(small_vit(num_classes=4), 0.9, 2.0)
    with pytest.raises(OptionError, match="the teacher tells 4 classes apart and the network 10"):
        bench.train(bench.spoilt(), 1, distillation=other)
    wide = Distillation(small_vit(embed_dim=96), 0.9, 2.0, tokens=1.0)
    with pytest.raises(OptionError, match=r"final tokens are \[17, 96\] and the network's \[17, 64\]"):
        bench.train(bench.spoilt(), 1, distillation=wide)
    with pytest.raises(OptionError, match="unlabelled images need a teacher"):
        bench.train(bench.spoilt(), 1, unlabelled=bench.task.unlabelled)


def test_unlabelled_images_without_a_teacher_are_refused_with_the_way_out(
    digits_checkpoint: Path, tmp_path: Path
) -> None:
    given: Any = {"unlabelled": "digits", "training": {"steps": 2}}
    with pytest.raises(OptionError, match=r"vulcan has none as asked for; try --set vulcan\.teacher=restricted"):
        derive_small(digits_checkpoint, tmp_path / "m", method="vulcan", **given)
    with pytest.raises(OptionError, match="0 steps train not at all"):
        derive_small(digits_checkpoint, tmp_path / "m", method="vulcan", options={"teacher": "restricted"},
                     unlabelled="digits", training={"steps": 0})  # fmt: skip


@pytest.mark.parametrize("method", ["vulcan", "nuwa"])
@pytest.mark.parametrize("head", ["subset", "full"])
def test_a_method_learns_from_the_restricted_base(
    digits_checkpoint: Path, tmp_path: Path, method: str, head: str
) -> None:
    quick = {"nuwa": {"purification": "none"}, "vulcan": {"calibration_images": 64}}
    options = {"teacher": "restricted", "token_weight": "0.1", **quick[method]}
    made = derive_small(digits_checkpoint, tmp_path / "m", method=method, head=head, options=options,
                        unlabelled="digits", training={"steps": 3})  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "m" / "history.jsonl").read_text().splitlines()]
    taught = [line for line in lines if line["stage"] in ("train", "finetune") and line["step"] > 1]
    assert [line["step"] for line in taught] == [2, 3]  # at the first, vulcan's network is the teacher still
    assert all(line["loss_teacher"] > 0 and line["loss_tokens"] > 0 for line in taught)
    assert made.record["config"]["teacher"] == "restricted" and made.record["data"]["unlabelled"]["images"] > 1000


def test_the_finetuned_base_is_baseline_and_teacher_and_trained_once(digits_checkpoint: Path, tmp_path: Path) -> None:
    given: Any = {"method": "nuwa", "training": {"steps": 4, "evaluations": 2}}
    quick = {"purification": "none"}
    taught = {**quick, "teacher": "finetuned", "teacher_weight": "1"}
    alone = derive_small(digits_checkpoint, tmp_path / "a", options=taught, **given)
    judged = derive_small(digits_checkpoint, tmp_path / "b", options=taught, finetune_base=True, **given)
    restricted = derive_small(
        digits_checkpoint, tmp_path / "c", options={**taught, "teacher": "restricted"}, finetune_base=True, **given
    )
    for name, tensor in judged.model.network.state_dict().items():
        torch.testing.assert_close(tensor, alone.model.network.state_dict()[name], rtol=0, atol=0, msg=name)
    for made in (alone, judged):
        lines = [json.loads(line) for line in (made.folder / "history.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line["stage"] == "finetune base"] == [1, 2, 3, 4]
    assert judged.record["accuracy"]["base_finetuned"] == restricted.record["accuracy"]["base_finetuned"]
    pairs = zip(judged.model.network.parameters(), restricted.model.network.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_resuming_with_other_unlabelled_images_is_refused(
    digits_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgevit.derive import session

    def stop(*given: Any) -> None:
        raise Interrupted("stopped")

    (tmp_path / "more").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "a.png")
    given: Any = {"unlabelled": tmp_path / "more", "options": {"teacher": "restricted"}, "method": "vulcan"}
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(session, "_baselines", stop)
        derive_small(digits_checkpoint, tmp_path / "m", **given)
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "b.png")
    with pytest.raises(OptionError, match=r"cannot resume .* with other options: unlabelled was"):
        derive_small(digits_checkpoint, tmp_path / "m", resume=True, **given)
    (tmp_path / "more" / "b.png").unlink()
    derive_small(digits_checkpoint, tmp_path / "m", resume=True, **given)
    assert load_file(tmp_path / "m" / "model.safetensors")
