"""A derivation ends in the same weights however it is run, and its folder is the base of another derivation."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_base import ARGS, DEVICE, assert_same_weights, derive, press_ctrl_c_in_step, write_checkpoint

import edgevit
from edgevit.derivation.session import derive as session
from edgevit.derivation.session import opening
from edgevit.errors import DataError, EdgeVitError, Interrupted, ModelError, TrainingError
from edgevit.records.model_folder import ModelFolder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def derived(checkpoint, tmp_path_factory):
    return derive(checkpoint, tmp_path_factory.mktemp("derived") / "whole").folder


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def assert_close(a, b):
    """Logits, not weights: factors of nearly equal singular values may be rotated, and Adam moves a weight whose
    gradient is rounding noise by a whole learning rate."""
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(edgevit.load(a)(images), edgevit.load(b)(images), rtol=1e-2, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"as_published": True}])
def test_an_interrupted_derivation_resumed_ends_in_the_same_weights(
    checkpoint, derived, tmp_path, options, monkeypatch
):
    whole = derive(checkpoint, tmp_path / "whole", options=options).folder if options else derived
    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted, match=r"stopped at step 4 of 6 .* --resume goes on from .*resumed\.partial"):
        derive(checkpoint, tmp_path / "resumed", options=options)
    assert not (tmp_path / "resumed").exists()
    resumed = derive(checkpoint, tmp_path / "resumed", options=options, resume=True)
    assert_same_weights(weights(whole), weights(resumed.folder))
    assert not (tmp_path / "resumed.partial").exists()

    def steps(folder):
        lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "images_per_s"} for line in lines]

    lines = steps(resumed.folder)
    if DEVICE != "cpu":  # which adds up in no fixed order
        lines = [pytest.approx(line, rel=1e-3) for line in lines]
    assert steps(whole) == lines


@pytest.mark.slow
def test_where_blocks_are_dropped_at_random_a_resumed_training_drops_the_same(checkpoint, tmp_path, monkeypatch):
    given = {"model_args": {**ARGS, "drop_path_rate": 0.3}}
    whole = derive(checkpoint, tmp_path / "whole", **given)
    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted):
        derive(checkpoint, tmp_path / "resumed", **given)
    resumed = derive(checkpoint, tmp_path / "resumed", resume=True, **given)
    assert_same_weights(weights(whole.folder), weights(resumed.folder))


@pytest.mark.parametrize("method", ["nuwa", "corp"])
def test_too_few_images_for_second_moments_are_refused_before_the_baselines(checkpoint, tmp_path, method, monkeypatch):
    monkeypatch.setattr(session, "evaluate_base", lambda *_: pytest.fail("the baselines take long"))
    with pytest.raises(DataError, match=f"4 calibration images give 68 tokens.*; raise {method}.calibration_images$"):
        derive(checkpoint, tmp_path / "t", method=method, training={"steps": 0}, options={"calibration_images": 4})


@pytest.mark.slow
def test_micro_batches_match_one_batch(checkpoint, tmp_path):
    one = derive(checkpoint, tmp_path / "one", training={"lr": 1e-4})
    three = derive(checkpoint, tmp_path / "three", training={"lr": 1e-4, "grad_accum": 3})
    assert_close(one.folder, three.folder)


@pytest.mark.slow
def test_two_processes_match_one(checkpoint, tmp_path, image_folder):
    teacher, start = {"teacher": "restricted", "token_weight": 0.1}, {"derive_from": "finetuned", "base_steps": 3}
    more = image_folder(tmp_path / "more", {"any": 40})
    on_cpu = {"lr": 1e-4, "device": "cpu", **teacher}
    one = derive(checkpoint, tmp_path / "one", training=on_cpu, unlabelled=more, **start)
    arguments = [f"--model-arg={name}={value}" for name, value in ARGS.items()]
    command = [
        # --multi_gpu means several processes here; with --device cpu they talk through gloo
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
        "--num_machines", "1", "--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no",
        "-m", "edgevit", "derive", "vit_tiny_patch16_224", "--checkpoint", str(checkpoint), *arguments,
        "--mean=0.5", "--std=0.5", "--crop-pct=1.0", "--interpolation=bicubic", "--data=digits", "--classes=3,7,9",
        "--rate=0.5", "--method=vulcan", "--steps=6", "--batch-size=24", "--device=cpu", "--evaluations=2", "--lr=1e-4",
        "--no-early-stop", "--accept-weak-base", "--quiet", "--json", "--out", str(tmp_path / "two"),
        f"--unlabelled={more}",
        *(f"--{name.replace('_', '-')}={value}" for name, value in {**teacher, **start}.items()),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # exactly one process speaks
    assert (told["folder"], told["processes"]) == (str(tmp_path / "two"), 2)
    assert told["answers"]["test"]["base_restricted"] == asdict(one.record.answers["test"].base_restricted)
    assert told["start"]["loss_validation_finetuned"] == pytest.approx(
        one.record.start.loss_validation_finetuned, rel=1e-3
    )
    assert_close(one.folder, tmp_path / "two")
    lines = [json.loads(line) for line in (tmp_path / "two" / "history.jsonl").read_text().splitlines()]
    ours = [json.loads(line) for line in (one.folder / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [line["step"] for line in ours]
    for name in ("loss_task", "loss_teacher", "loss_tokens"):
        assert lines[-1][name] == pytest.approx(ours[-1][name], rel=1e-2), "sums of other orders, after six steps"


@pytest.mark.slow
def test_workers_change_nothing(checkpoint, derived, tmp_path):
    two = derive(checkpoint, tmp_path / "two", training={"workers": 1})
    assert_same_weights(weights(derived), weights(two.folder))


@pytest.mark.slow
def test_bf16_trains_and_the_model_folder_is_fp32(checkpoint, tmp_path):
    derivation = derive(checkpoint, tmp_path / "bf16", training={"precision": "bf16"})
    images = torch.randn(2, 3, 32, 32)
    # accelerate wraps the forward of what it trains; the derived model must be its own
    torch.testing.assert_close(derivation.model(images), edgevit.load(derivation.folder)(images))
    assert all(t.dtype == torch.float32 for t in weights(derivation.folder).values())
    assert derivation.record.training.more["precision"] == "bf16"


def test_a_loss_that_is_no_number_stops_with_advice(checkpoint, tmp_path):
    told = r"no longer a number; try a lower --lr, .*; .*burst.partial keeps what was done before, .*: remove it"
    with pytest.raises(TrainingError, match=told):
        derive(checkpoint, tmp_path / "burst", training={"weight_decay": 1e36})
    with pytest.raises(TrainingError, match=r"instead of fp16$"):  # where nothing that took long is lost
        derive(checkpoint, tmp_path / "random", method="random", training={"weight_decay": 1e36})
    assert not (tmp_path / "random.partial").exists()


@pytest.mark.slow
def test_training_stops_once_both_accuracies_have_met(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("edgevit.train.stopping.MET", 1.0)  # a random base never meets closely
    training = {"steps": 60, "evaluations": 30, "early_stop": True, "lr": 1e-7, "schedule": "constant"}
    derivation = derive(checkpoint, tmp_path / "met", training=training)
    facts = derivation.record.facts
    assert facts.steps < facts.more["steps_planned"] == 60
    last = json.loads((derivation.folder / "history.jsonl").read_text().splitlines()[-1])
    assert last["step"] == facts.steps


def test_ctrl_c_while_the_model_is_written_comes_too_late(tmp_path, monkeypatch):
    save = opening.save

    def press_and_save(*of, **how):
        os.kill(os.getpid(), signal.SIGINT)
        save(*of, **how)

    monkeypatch.setattr(opening, "save", press_and_save)
    derive(write_checkpoint(tmp_path), tmp_path / "out", training={"steps": 1})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["base.safetensors", "out"]


# -- a derived folder as a base ----------------------------------------------------------------------------------------

FORGE = {"calibration_images": 32, "sensitivity_images": 16, "measured_images": 8}
AGAIN = {"classes": "3,9", "data": "digits", "accept_weak_base": True, "steps": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def half(checkpoint, tmp_path_factory):
    """A folder that dcvit derived, one of whose blocks has no attention."""
    out = tmp_path_factory.mktemp("half") / "m"
    options = {"options": {"calibration_images": 8}, "training": {"steps": 0}, "cache": False}
    derivation = derive(checkpoint, out, method="dcvit", rate=0.3, **options)
    assert sum(not dims.has("attention") for dims in derivation.model.spec.blocks) == 1
    return derivation


@pytest.mark.slow
def test_a_derived_folder_is_the_base_of_another_derivation_and_their_plans_chain(half, tmp_path):
    given = {"rate": 0.4, "options": FORGE, "cache": tmp_path / "cache", **AGAIN}
    second = edgevit.derive(half.folder, out=tmp_path / "second", **given)
    assert [step.method for step in ModelFolder(second.folder).plan().steps] == ["dcvit", "forge"]
    assert 0.57 * half.model.spec.macs < second.model.spec.macs <= 0.6 * half.model.spec.macs
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(edgevit.load(second.folder)(images), second.model(images))
    again = edgevit.derive(half.folder, out=tmp_path / "again", **given)
    assert_same_weights(weights(second.folder), weights(again.folder))  # what the cache had is what was worked out
    third = edgevit.derive(second.folder, out=tmp_path / "third", method="magnitude", rate=0.1, **AGAIN)
    assert [step.method for step in ModelFolder(third.folder).plan().steps] == ["dcvit", "forge", "magnitude"]


def test_a_base_that_the_method_cannot_cut_is_refused_before_anything_is_measured(half, tmp_path):
    with pytest.raises(EdgeVitError, match="vulcan cuts blocks that have both") as error:
        edgevit.derive(half.folder, out=tmp_path / "m", method="vulcan", data="digits", classes="3,9", rate=0.3)
    with pytest.raises(EdgeVitError, match="a super-network is of a model whose blocks have both attention and FFN"):
        edgevit.supernet(half.folder, out=tmp_path / "m", data="digits", classes="3,9")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_base_whose_plan_is_of_a_newer_schema_is_refused_before_anything_is_measured(half, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(half.folder, folder)
    file = ModelFolder(folder).plan_file
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))
    with pytest.raises(ModelError, match=r"schema 99, written by edgevit .*; edgevit .* reads schema 1: write"):
        edgevit.derive(folder, data="digits", classes="3,7", rate=0.6, out=tmp_path / "m")
    assert not (tmp_path / "m.partial").exists()
