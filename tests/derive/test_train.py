import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_base import ARGS, derive, press_ctrl_c_in_step, write_checkpoint

import edgevit
from edgevit.derive import session
from edgevit.errors import Interrupted, OptionError, TrainingError, UnknownNameError
from edgevit.train.compute import open_compute
from edgevit.train.history import History
from edgevit.train.loop import Meeting, learning_rate
from edgevit.train.order import sample_order
from edgevit.train.settings import Training, fill


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("base"))


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_close(a, b):
    """Logits, not weights: factors of nearly equal singular values may be rotated, and Adam moves a weight whose
    gradient is rounding noise by a whole learning rate."""
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(edgevit.load(a)(images), edgevit.load(b)(images), rtol=1e-2, atol=5e-3)


def flat(order):
    return [pair for batch in order for pair in batch]


@pytest.mark.parametrize(("world", "accum"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_every_step_sees_the_same_images_however_it_is_shared(world, accum):
    whole = Training(batch_size=12)
    shared = Training(batch_size=12, grad_accum=accum)
    for step in range(4):
        expected = flat(sample_order(17, whole, step, step + 1))
        seen = [p for rank in range(world) for p in flat(sample_order(17, shared, step, step + 1, rank, world))]
        assert sorted(seen) == sorted(expected)


def test_images_are_seen_equally_often_and_never_augmented_alike():
    pairs = flat(sample_order(10, Training(batch_size=8), 0, 10))
    counts = [sum(position == i for position, _ in pairs) for i in range(10)]
    assert counts == [8] * 10
    assert len({seed for _, seed in pairs}) == 80


def test_schedules_warm_up_hold_and_fall():
    constant, cosine = Training(lr=1.0, warmup_steps=4, schedule="constant"), Training(lr=1.0, schedule="cosine")
    assert [learning_rate(constant, s, 10) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert learning_rate(cosine, 0, 10) == 1.0 and learning_rate(cosine, 5, 10) == pytest.approx(0.5)


def test_a_method_that_is_gentle_warms_up_and_the_others_train_as_published():
    assert fill(Training(steps=200), gentle=False) == Training(steps=200, warmup_steps=0, lr_by_loss=False)
    gentle = fill(Training(steps=200), gentle=True)
    assert (gentle.warmup_steps, gentle.lr_by_loss) == (20, True)
    asked = Training(steps=200, warmup_steps=3, lr_by_loss=False)
    assert fill(asked, gentle=True) == asked, "what the user says holds"


@pytest.mark.parametrize("options", [{}, {"anchor_update": "ema"}, {"multiplier_update": "ascent"}])
def test_an_interrupted_derivation_resumed_ends_in_the_same_weights(checkpoint, tmp_path, options, monkeypatch):
    whole = derive(checkpoint, tmp_path / "whole", options=options)
    press_ctrl_c_in_step(3, monkeypatch)
    with pytest.raises(Interrupted, match=r"stopped at step 4 of 6 .* --resume goes on from .*resumed\.partial"):
        derive(checkpoint, tmp_path / "resumed", options=options)
    assert not (tmp_path / "resumed").exists()
    resumed = derive(checkpoint, tmp_path / "resumed", options=options, resume=True)
    assert_same(weights(whole.folder), weights(resumed.folder))
    assert not (tmp_path / "resumed.partial").exists()

    def steps(folder):
        lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "images_per_s"} for line in lines]

    assert steps(whole.folder) == steps(resumed.folder)


def test_micro_batches_match_one_batch(checkpoint, tmp_path):
    one = derive(checkpoint, tmp_path / "one", training={"lr": 1e-4})
    three = derive(checkpoint, tmp_path / "three", training={"lr": 1e-4, "grad_accum": 3})
    assert_close(one.folder, three.folder)


@pytest.mark.parametrize("taught", [False, True])
def test_two_processes_match_one(checkpoint, tmp_path, image_folder, taught):
    options = {"teacher": "restricted", "token_weight": "0.1"} if taught else {}
    more = image_folder(tmp_path / "more", {"any": 40}) if taught else None
    one = derive(checkpoint, tmp_path / "one", training={"lr": 1e-4}, options=options, unlabelled=more)
    arguments = [f"--model-arg={name}={value}" for name, value in ARGS.items()]
    command = [
        # --multi_gpu means several processes here; with --device cpu they talk through gloo
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
        "--num_machines", "1", "--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no",
        "-m", "edgevit.cli", "derive", "vit_tiny_patch16_224", "--checkpoint", str(checkpoint), *arguments,
        "--mean=0.5", "--std=0.5", "--crop-pct=1.0", "--interpolation=bicubic", "--data=digits", "--classes=3,7,9",
        "--rate=0.5", "--method=vulcan", "--steps=6", "--batch-size=24", "--device=cpu", "--evaluations=2", "--lr=1e-4",
        "--no-early-stop", "--accept-weak-base", "--quiet", "--json", "--out", str(tmp_path / "two"),
        *(f"--set=vulcan.{name}={value}" for name, value in options.items()),
        *([f"--unlabelled={more}"] if more else []),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # exactly one process speaks
    assert (told["folder"], told["processes"]) == (str(tmp_path / "two"), 2)
    assert_close(one.folder, tmp_path / "two")
    lines = [json.loads(line) for line in (tmp_path / "two" / "history.jsonl").read_text().splitlines()]
    ours = [json.loads(line) for line in (one.folder / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [line["step"] for line in ours]
    for name in ("loss_task", "loss_teacher", "loss_tokens") if taught else ("loss_task",):
        assert lines[-1][name] == pytest.approx(ours[-1][name], rel=1e-3)


def test_workers_change_nothing(checkpoint, tmp_path):
    one = derive(checkpoint, tmp_path / "one")
    two = derive(checkpoint, tmp_path / "two", training={"workers": 1})
    assert_same(weights(one.folder), weights(two.folder))


def test_bf16_trains_and_the_model_folder_is_fp32(checkpoint, tmp_path):
    derivation = derive(checkpoint, tmp_path / "bf16", training={"precision": "bf16"})
    images = torch.randn(2, 3, 32, 32)
    # accelerate wraps the forward of what it trains; the derived model must be its own
    torch.testing.assert_close(derivation.model(images), edgevit.load(derivation.folder)(images))
    assert all(t.dtype == torch.float32 for t in weights(derivation.folder).values())
    assert derivation.record["training"]["precision"] == "bf16"


def test_a_loss_that_is_no_number_stops_with_advice(checkpoint, tmp_path):
    with pytest.raises(TrainingError, match=r"no longer a number; try a lower --lr"):
        derive(checkpoint, tmp_path / "burst", training={"lr": 1e30})


def test_trained_and_pruned_have_met_only_after_both_conditions_hold_for_long_enough():
    meeting = Meeting()
    assert not any(meeting.add(0.9, pruned) for pruned in (0.1, 0.5, 0.88))  # apart
    assert not any(meeting.add(0.9, 0.9) for _ in range(3))  # met, but just improved
    assert meeting.add(0.9, 0.9)
    assert not meeting.add(0.9, 0.91)  # apart again


def test_training_stops_once_both_accuracies_have_met(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("edgevit.train.loop.MET", 1.0)  # a random base never meets closely
    training = {"steps": 60, "evaluations": 30, "early_stop": True, "lr": 1e-7, "schedule": "constant"}
    derivation = derive(checkpoint, tmp_path / "met", training=training)
    facts = derivation.record["facts"]
    assert facts["steps"] < facts["steps_planned"] == 60
    last = json.loads((derivation.folder / "history.jsonl").read_text().splitlines()[-1])
    assert last["step"] == facts["steps"]


@pytest.mark.parametrize(
    ("training", "error", "message"),
    [
        ({"device": "cuda"}, OptionError, "no cuda device"),
        ({"device": "gpu"}, UnknownNameError, "no device 'gpu'"),
        ({"precision": "fp16"}, OptionError, "fp16 trains on CUDA only"),
        ({"precision": "int8"}, UnknownNameError, "no precision 'int8'"),
        ({"batch_size": 10, "grad_accum": 3}, OptionError, "does not divide into 3 micro-batches"),
        ({"steps": -1}, OptionError, r"--steps -1 is not in \[0, 2\*\*31\)"),
        ({"lr": 0.0}, OptionError, "--lr 0 is not a finite number above 0"),
        ({"augment": "flop"}, UnknownNameError, "did you mean 'flip'"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(training, error, message):
    if training.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    settings = Training(**{"device": "cpu", **training})
    with pytest.raises(error, match=message):
        settings.check()
        open_compute(settings)


def test_history_is_gone_on_with_after_an_interruption(tmp_path):
    first = History(tmp_path / "history.jsonl")
    for stage, step in (("purify", 0), ("train", 0), ("train", 5)):
        first.add(stage=stage, step=step)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"stage": "train", "st')  # a full disk
    again = History(tmp_path / "history.jsonl")
    assert again.lines == first.lines
    again.rewind("train", -1)
    assert again.lines == [{"stage": "purify", "step": 0}]
    again.add(stage="train", step=0)
    assert History(tmp_path / "history.jsonl").lines == again.lines


def test_ctrl_c_while_the_model_is_written_comes_too_late(tmp_path, monkeypatch):
    save = session.save

    def press_and_save(*of, **how):
        os.kill(os.getpid(), signal.SIGINT)
        save(*of, **how)

    monkeypatch.setattr(session, "save", press_and_save)
    derive(write_checkpoint(tmp_path), tmp_path / "out", training={"steps": 1})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["base.safetensors", "out"]
