"""What is cut may be the base after training on the classes, where that is asked for, or is better."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import untrained
from safetensors.torch import load_file
from small_base import ARGS, NAME, PREPROCESSING, assert_same_weights
from small_base import derive as derive_small

from edgevit.data.task import open_task
from edgevit.derivation.session.derive import Derivation
from edgevit.derivation.session.start import loss_on_validation
from edgevit.errors import OptionError, UnknownNameError
from edgevit.network.classifier import with_classes
from edgevit.network.copies import bare_copy
from edgevit.network.opening import open_network
from edgevit.records.derivation import StartRecord
from edgevit.records.model_folder import ModelFolder

CLOSED = {"steps": 0, "lr": 3e-3}
PLAIN = {"purification": "none"}  # or nuwa trains
FEW = {"calibration_images": 64, "sensitivity_images": 16, "sequential": False}  # of forge


def start(checkpoint: Path, out: Path, derive_from: str, *, training: dict[str, Any] | None = None, **more: Any) -> Any:
    """Nothing trains but the base."""
    given: dict[str, Any] = {"method": "nuwa", "options": PLAIN, "rate": 0.3, "base_steps": 10, **more}
    return derive_small(checkpoint, out, derive_from=derive_from, training=training or CLOSED, **given)


def least_loss(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Of all temperatures; no image is wholly of its class."""
    doubt = 1 / (len(labels) + 2)
    smoothing = doubt * logits.shape[1] / (logits.shape[1] - 1)
    scales = torch.logspace(-2, 2, 2001).tolist()
    return min(float(F.cross_entropy(scale * logits, labels, label_smoothing=smoothing)) for scale in scales)


def stages(folder: Path) -> set[str]:
    return {json.loads(line)["stage"] for line in (folder / "history.jsonl").read_text().splitlines()}


def found(made: Derivation) -> StartRecord:
    assert made.record.start is not None
    return made.record.start


def test_the_base_is_cut_after_training_and_its_losses_are_those_of_the_labels(
    digits_checkpoint: Path, tmp_path: Path
) -> None:
    cache, forge = tmp_path / "cache", {"method": "forge", "options": {}, "base_steps": 30}
    made = start(digits_checkpoint, tmp_path / "m", "finetuned", cache=cache, **forge)
    record, begun = made.record, found(made)
    assert (begun.network, begun.steps, record.facts.steps) == ("finetuned", 30, 0)
    trained = record.base_training
    assert trained is not None and (trained.steps, trained.more["warmup_steps"]) == (30, 3)
    # both losses anew, of the base and of the weights that were kept
    model = open_network(
        NAME, checkpoint=digits_checkpoint, pretrained=False, model_args=ARGS, preprocessing=PREPROCESSING
    )
    task = open_task("digits", ["3", "7", "9"], preprocessing=model.preprocessing, base_outputs=10)
    network = with_classes(model, task.base_columns).eval()
    images, labels = next(task.validation.batches(len(task.validation)))
    (kept,) = cache.glob("finetuned-*.safetensors")
    losses, logits = [], torch.empty(0)
    for weights in (network.state_dict(), load_file(kept)):
        network.load_state_dict(weights)
        with torch.inference_mode():
            logits = network(images)
        losses.append(least_loss(logits, labels))
    assert [begun.loss_validation_base, begun.loss_validation_finetuned] == pytest.approx(losses, rel=1e-4)
    assert losses[1] < losses[0]
    # forge imitates what it was given
    slim = made.model.eval()
    with torch.inference_mode():
        assert (slim(images) - logits).norm() < 0.25 * logits.norm()
    finetuned = record.accuracy.base_finetuned
    assert finetuned is not None and finetuned.top1 > record.accuracy.base_restricted.top1
    assert record.accuracy.derived.top1 == pytest.approx(finetuned.top1, abs=0.02)


def test_to_be_surer_alone_is_not_better(digits_checkpoint: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"pretrained": False, "model_args": ARGS, "preprocessing": PREPROCESSING}
    model = open_network(NAME, checkpoint=digits_checkpoint, **given)
    task = open_task("digits", ["3", "7", "9"], preprocessing=model.preprocessing, base_outputs=10)
    problem = untrained(model, task, 0.5, tmp_path)
    surer = bare_copy(problem.network)
    for parameter in surer.module.get_classifier().parameters():
        parameter.data.mul_(3)
    losses = [loss_on_validation(problem, network) for network in (problem.network, surer)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0] > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "taken"), [(3e-3, "finetuned"), (1.0, "base")])
def test_the_better_of_both_is_the_one_of_less_loss(
    digits_checkpoint: Path, tmp_path: Path, lr: float, taken: str
) -> None:
    training, same = {"steps": 0, "lr": lr}, "base_steps" if taken == "finetuned" else "training"
    made = start(digits_checkpoint, tmp_path / "m", "better", training=training)
    assert found(made).network == taken
    told = ("finetuned", {}) if same == "base_steps" else ("base", {"base_steps": None})
    other = start(digits_checkpoint, tmp_path / "other", told[0], training=training, **told[1])
    assert_same_weights(made.model.state_dict(), other.model.state_dict())
    card, line = (tmp_path / "m" / "README.md").read_text(), found(made).format()
    assert line in card and f"pruned from the base {'after training' if taken == 'finetuned' else 'as it is'}" in line
    assert "cut from" not in (tmp_path / "other" / "README.md").read_text() or taken == "finetuned"


@pytest.mark.slow
def test_budgets_share_one_trained_base(digits_checkpoint: Path, tmp_path: Path) -> None:
    made = [
        start(digits_checkpoint, tmp_path / str(rate), "finetuned", rate=rate, cache=tmp_path / "cache")
        for rate in (0.3, 0.5)
    ]
    assert ["finetune base" in stages(one.folder) for one in made] == [True, False]
    assert "finetuned" in made[1].record.facts.reused
    assert found(made[0]) == found(made[1])
    alone = start(digits_checkpoint, tmp_path / "alone", "finetuned", rate=0.5, cache=False)
    assert_same_weights(made[1].model.state_dict(), alone.model.state_dict())


@pytest.mark.slow
def test_methods_share_one_trained_base(
    digits_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However gently and long each trains what it cuts, if at all: it is one of the baselines."""
    monkeypatch.setattr("edgevit.train.settings.PASSES", 1)
    nuwa = {"options": {**PLAIN, "finetune_epochs": 2}, "training": {**CLOSED, "steps": None}}
    asked: dict[str, dict[str, Any]] = {"random": {"options": {}}, "corp": {"options": {}}, "nuwa": nuwa}
    given: dict[str, Any] = {"base_steps": None, "cache": tmp_path / "cache"}
    made = [
        start(digits_checkpoint, tmp_path / method, "finetuned", method=method, **given, **more)
        for method, more in asked.items()
    ]
    assert ["finetune base" in stages(one.folder) for one in made] == [True, False, False]
    assert all(found(one) == found(made[0]) for one in made)
    assert all(one.record.accuracy.base_finetuned == made[0].record.accuracy.base_finetuned for one in made)
    record = made[-1].record
    assert record.data is not None and found(made[-1]).steps == round(record.data.images.train / 24)
    assert record.facts.steps == 2 * math.ceil(record.data.images.train / 24)


@pytest.mark.slow
@pytest.mark.parametrize("teacher", ["restricted", "finetuned"])
def test_its_answers_are_the_restricted_teachers_too(digits_checkpoint: Path, tmp_path: Path, teacher: str) -> None:
    training = {"steps": 2, "lr": 1e-9, "teacher": teacher}
    few: dict[str, Any] = {"method": "forge", "options": FEW, "rate": 0.05}
    made = start(digits_checkpoint, tmp_path / "m", "finetuned", training=training, **few)
    lines = [json.loads(line) for line in (made.folder / "history.jsonl").read_text().splitlines()]
    taught = [line["loss_teacher"] for line in lines if line["stage"] == "distil" and "loss_teacher" in line]
    assert taught and max(taught) < 0.02


@pytest.mark.slow
def test_a_teacher_is_trained_where_anything_learns_from_it(digits_checkpoint: Path, tmp_path: Path) -> None:
    closed = start(
        digits_checkpoint, tmp_path / "closed", "base", base_steps=5, cache=False,
        training={**CLOSED, "teacher": "finetuned"},
    )  # fmt: skip
    assert not [stage for stage in stages(closed.folder) if "finetune" in stage]
    trained = start(
        digits_checkpoint, tmp_path / "trained", "base", method="vulcan", options={}, rate=0.1, base_steps=5,
        cache=False, training={"steps": 2, "lr": 3e-3, "teacher": "finetuned"},
    )  # fmt: skip
    assert "finetune base" in stages(trained.folder)


@pytest.mark.slow
def test_going_on_with_another_start_is_refused(
    digits_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from small_base import press_ctrl_c_in_step

    from edgevit.errors import Interrupted

    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted, match="stopped at step 4 of 10 of finetune base"):
        start(digits_checkpoint, tmp_path / "m", "finetuned", cache=False)
    for other in ({"derive_from": "better"}, {"derive_from": "finetuned", "base_steps": 20}):
        with pytest.raises(OptionError, match=r"cannot resume .* with other options: (derive_from was|base_steps was)"):
            start(digits_checkpoint, tmp_path / "m", **other, cache=False, resume=True)
    resumed = start(digits_checkpoint, tmp_path / "m", "finetuned", cache=False, resume=True)
    whole = start(digits_checkpoint, tmp_path / "whole", "finetuned", cache=False)
    assert_same_weights(resumed.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"derive_from": "finetune"}, UnknownNameError, "did you mean 'finetuned'"),
        ({"derive_from": "better", "base_steps": 0}, OptionError, "--base-steps 0 is not in"),
        ({"derive_from": "base"}, OptionError, "--base-steps is for a base that is trained; give --finetune-base"),
        ({"derive_from": "better", "method": "skd"}, OptionError, "--method skd slices a super-network; leave it out"),
        ({"derive_from": "better", "method": "skd", "data": None}, OptionError, "slices a super-network; leave it out"),
    ],
)
def test_what_cannot_be_is_one_line(
    digits_checkpoint: Path, tmp_path: Path, asked: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        start(digits_checkpoint, tmp_path / "m", **asked)
    assert not (tmp_path / "m").exists() and not (tmp_path / "m.partial").exists()


@pytest.mark.slow
def test_a_base_that_training_makes_better_is_named_where_it_is_only_a_baseline(
    digits_checkpoint: Path, tmp_path: Path, edgevit_main: Any
) -> None:
    args = [part for name, value in ARGS.items() for part in ("--model-arg", f"{name}={value}")]
    base = [NAME, "--checkpoint", digits_checkpoint, *args, "--mean", "0.5", "--std", "0.5", "--crop-pct", "1"]
    asked = ["--data", "digits", "--classes", "3,7,9", "--rate", "0.3", "--steps", "0", "--lr", "3e-3"]
    asked += [
        "--method",
        "nuwa",
        "--set",
        "nuwa.purification=none",
        "--accept-preprocessing",
    ]  # few images, on which another crop happens to do better
    judged = edgevit_main("derive", *base, *asked, "--finetune-base", "--base-steps", "30", "--out", tmp_path / "m")
    assert judged.code == 0, judged.err
    assert "--derive-from better would cut it after them" in " ".join(judged.err.split())
    assert ModelFolder(tmp_path / "m").derivation().start is None  # type: ignore[union-attr]
    untrained = edgevit_main("derive", *base, *asked, "--finetune-base", "--out", tmp_path / "u")
    assert "warning: the base is fine-tuned for no steps, so it is no baseline" in " ".join(untrained.err.split())
    assert "fine-tuned on them │ not asked for" in " ".join(untrained.out.split())
    cut = edgevit_main(
        "derive", *base, *asked, "--derive-from", "better", "--base-steps", "30", "--out", tmp_path / "n"
    )
    assert cut.code == 0 and "pruned from the base after training: 30 steps" in " ".join(cut.err.split())
    assert "pruned from the base after training: 30 steps" in " ".join(edgevit_main("show", tmp_path / "n").out.split())
