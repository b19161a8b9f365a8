"""`edgevit derive` and `edgevit show` from end to end on digits, as a person types them."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forks import Program
from safetensors.torch import load_file
from seals import reseal
from small_base import TYPED
from small_models import write_narrower

from edgevit.cli.console import Console
from edgevit.cli.derive import show_derived
from edgevit.derivation.session.card import model_card
from edgevit.derivation.session.derive import Derivation
from edgevit.network.folder import load
from edgevit.network.model import tensors_sha256
from edgevit.records.answers import RightImages
from edgevit.records.model_folder import ModelFolder

TASK = ["--data", "digits", "--classes", "3,5,8"]
SHORT = ["--steps", "6", "--batch-size", "16", "--lr", "1e-3", "--evaluations", "2", "--device", "cpu"]
PROGRAM = "import sys; sys.argv[0] = 'edgevit'; from edgevit.cli.app import main; main()"


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory, digits_checkpoint: Path) -> Any:
    """One derivation by the program itself, with its streams; tests/test_imports.py has the imports from nothing."""
    out = tmp_path_factory.mktemp("two words") / "t1"
    command = ["derive", *TYPED, "--checkpoint", digits_checkpoint, *TASK, *SHORT, "--rate", "0.5", "--out", out]
    done = Program("-c", PROGRAM, *command, "--finetune-base")
    assert done.wait() == 0, done.stderr
    return out, done


def test_a_person_sees_the_baselines_and_what_to_do_next(derived: Any) -> None:
    out, done = derived
    for row in ("base, full head", "base, restricted to the classes", "base, fine-tuned on them", "derived"):
        assert row in done.stdout
    assert "(95 % interval)" in done.stdout and " % (" in done.stdout, "numbers with their uncertainty"
    assert "top-1 by class, and in brackets of the restricted base: 3 " in " ".join(done.stdout.split())
    assert "heads" in done.stdout and "/256" in done.stdout, "widths of each block beside the base's"
    assert f"Next: edgevit export '{out}'" in done.stdout.replace("\n", "")
    assert f"One page of it all: edgevit report '{out.parent}'" in done.stdout.replace("\n", "")
    _, _, suggested = done.stdout.partition("To set it against its base: ")
    assert suggested.startswith("edgevit base ") and "--batch-size" in suggested and "--steps" not in suggested
    told = [
        done.stderr.index(line) for line in ("classes: 3 is output 3, ", "preprocessing: crop_pct ", "baselines on")
    ]
    assert told == sorted(told), "what is assumed is said before the work begins"
    assert "Traceback" not in done.stderr
    assert not set(done.stderr) & {"\r", "\x1b"}, "plain lines where stderr is no terminal"


def test_the_folder_is_complete_and_nothing_else_is_left(derived: Any) -> None:
    out, _ = derived
    names = ["README.md", "derivation.json", "history.jsonl", "model.json", "model.safetensors", "plan.json"]
    assert sorted(f.name for f in out.iterdir()) == names
    assert [f.name for f in out.parent.iterdir()] == ["t1"]
    record = json.loads((out / "derivation.json").read_text())
    accuracy, assumed = record["accuracy"], record["assumptions"]
    assert assumed["classes_from"] == "data" and assumed["output_names"] == [str(i) for i in range(10)]
    assert set(assumed["preprocessing_from"].values()) == {"timm"} and not assumed["base_check"]["near_chance"]
    assert accuracy["base_restricted"]["top1"] > 0.8 and accuracy["derived"]["top1"] > 0.4
    assert accuracy["base_finetuned"]["images"] == accuracy["derived"]["images"] == record["data"]["images"]["test"]
    assert set(accuracy["derived"]["per_class"]) == {"3", "5", "8"}
    for who in ("base_restricted", "base_finetuned", "derived"):
        on_test, on_validation = (RightImages(**record["answers"][part][who]) for part in ("test", "validation"))
        assert on_test.right == round(accuracy[who]["top1"] * on_test.images)
        assert (on_validation.right, on_validation.images) == (
            record["validation"][who],
            record["validation"]["images"],
        )
    assert record["budget"]["option"] == "rate 0.5" and record["method"] == "forge"
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert {"accuracy_trained", "loss_teacher", "loss_task", "lr"} <= set(lines[-1])
    spec = json.loads((out / "model.json").read_text())
    assert 0 <= spec["base"]["macs"] * 0.5 - spec["macs"] < 0.03 * spec["base"]["macs"]
    assert [c["name"] for c in spec["classes"]] == ["3", "5", "8"]


def test_show_tells_block_by_block(derived: Any, edgevit_main: Any) -> None:
    out, _ = derived
    shown = edgevit_main("show", out)
    assert (shown.code, shown.err) == (0, "")
    for text in ("block", "/32", "/256", "3 classes, subset head: 3, 5, 8", "method forge, rate 0.5", "seed 42"):
        assert text in shown.out, text
    answer = edgevit_main("show", out, "--json")
    assert (answer.code, answer.err) == (0, "")
    told = json.loads(answer.out)
    assert told["model"]["blocks"] == json.loads((out / "model.json").read_text())["blocks"]
    assert told["derivation"] == json.loads((out / "derivation.json").read_text())


def test_show_and_the_card_say_when_training_did_not_help(derived: Any, edgevit_main: Any, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    shutil.copytree(derived[0], out)
    record = json.loads((out / "derivation.json").read_text())
    assert record["facts"]["steps"] == 6 and record["facts"]["kept_step"] in (0, 3, 6)
    facts = {"kept_step": 0, "accuracy_validation_before": 0.877, "accuracy_validation_trained": 0.87}
    reseal(out / "derivation.json", lambda content: content["facts"].update(facts))
    told = "closed-form weights, as 6 steps of training did not help (87.0 % of the validation images at best, 87.7 %"
    assert told in " ".join(edgevit_main("show", out).out.split())
    spec, kept = load(out).spec, ModelFolder(out).derivation()
    assert kept is not None and told in model_card("kept", spec, kept, None)
    better = replace(kept, facts=replace(kept.facts, kept_step=3))
    assert "made: 6 steps, best after 3." in model_card("kept", spec, better, None)


def test_derive_and_the_card_show_that_the_embedding_is_narrower(derived: Any, tmp_path: Path, capsys: Any) -> None:
    narrow, record = load(write_narrower(tmp_path / "n", 48)), ModelFolder(derived[0]).derivation()
    assert record is not None
    show_derived(Console(), Derivation(tmp_path / "n", narrow, record))
    assert "\nthe embedding has 48 channels of the base's 64\n" in capsys.readouterr().out
    assert "\nThe embedding has 48 channels of the base's 64.\n" in model_card("n", narrow.spec, record, None)


def test_json_is_all_there_is_on_stdout_and_the_model_can_be_a_base(
    derived: Any, edgevit_main: Any, tmp_path: Path
) -> None:
    out, _ = derived
    again = tmp_path / "t2"
    done = edgevit_main("derive", out, "--data", "digits", "--classes", "5,3", "--params", "30k", *SHORT, "--method",
                        "magnitude", "--shape", "paper", "--head", "full", "--out", again, "--json")  # fmt: skip
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["folder"] == str(again) and told["params"] <= 30_000 and told["shape"]["name"] == "paper"
    assert told["data"]["classes"] == [{"name": "5", "base_index": 1}, {"name": "3", "base_index": 0}]
    assert told["accuracy"]["base_restricted"]["top1"] > 0.5
    assert edgevit_main("show", again).code == 0
    base = json.loads((again / "model.json").read_text())["base"]
    state = load_file(out / "model.safetensors")
    assert base["weights_sha256"] == tensors_sha256(state), "its base is the model it was derived from"


@pytest.mark.slow
def test_a_closed_form_is_trained_for_as_many_epochs_as_asked(
    edgevit_main: Any, tmp_path: Path, digits_checkpoint: Path
) -> None:
    asked = ["derive", *TYPED, "--checkpoint", digits_checkpoint, *TASK, "--rate", "0.5", "--device", "cpu",
             "--out", tmp_path / "a", "--json", "-q", "--batch-size", "64"]  # fmt: skip
    nuwa = ["--method", "nuwa", "--set", "nuwa.purification=none", "--set", "nuwa.finetune_epochs=1"]
    told = json.loads(edgevit_main(*asked, *nuwa).out)
    assert told["facts"]["steps"] == -(-told["data"]["images"]["train"] // 64)


@pytest.mark.slow
def test_a_derived_model_with_a_full_head_can_be_a_base(
    edgevit_main: Any, tmp_path: Path, digits_checkpoint: Path
) -> None:
    common = ["--steps", "0", "--device", "cpu", "--data", "digits", "--json", "-q", "--method", "magnitude"]
    first = edgevit_main("derive", *TYPED, "--checkpoint", digits_checkpoint, *common, "--classes", "8,5,3",
                         "--rate", "0.3", "--head", "full", "--out", tmp_path / "a")  # fmt: skip
    assert first.code == 0, first.err
    second = edgevit_main("derive", tmp_path / "a", *common, "--classes", "5,3", "--rate", "0.2",
                          "--out", tmp_path / "b")  # fmt: skip
    assert second.code == 0, second.err
    before, after = (json.loads(done.out) for done in (first, second))
    expected = before["accuracy"]["derived"]["per_class"]
    seen = after["accuracy"]["base_restricted"]["per_class"]
    assert all(seen[name] >= expected[name] for name in ("3", "5")), "one class fewer to be mistaken for"


@pytest.mark.slow
def test_ctrl_c_leaves_a_state_that_the_same_command_resumes(
    tmp_path: Path, digits_checkpoint: Path, edgevit_main: Any
) -> None:
    out = tmp_path / "t1"
    long = ["--steps", "60", "--batch-size", "16", "--evaluations", "3", "--device", "cpu", "--rate", "0.5"]
    long += ["--method", "magnitude"]  # soon trains
    arguments = ["derive", *TYPED, "--checkpoint", digits_checkpoint, *TASK, *long, "--out", out]
    program = Program("-c", PROGRAM, *arguments)
    history = tmp_path / "t1.partial" / "history.jsonl"
    deadline = time.monotonic() + 120
    while not (history.is_file() and '"step": 2' in history.read_text()):
        assert program.poll() is None and time.monotonic() < deadline, program.stderr
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    code, stderr = program.wait(), program.stderr
    assert (code, program.stdout) == (130, ""), stderr
    assert stderr.splitlines()[-1].startswith("error: stopped at step ") and "--resume goes on from" in stderr
    assert "Traceback" not in stderr
    assert [f.name for f in tmp_path.iterdir()] == ["t1.partial"]

    assert "holds an unfinished derivation; add --resume" in edgevit_main(*arguments).error
    other = edgevit_main(*arguments, "--resume", "--lr", "0.5").told[-1]
    assert f"cannot resume {out}.partial with other options: training.lr was 0.0001 and is 0.5; give the same" in other
    other = edgevit_main(*arguments, "--resume", "--mean", "0.1").told[-1]
    assert "with other options: preprocessing.mean was not given and is 0.1,0.1,0.1; give the same ones" in other
    assert [f.name for f in tmp_path.iterdir()] == ["t1.partial"]

    resumed = edgevit_main("derive", "--resume", "--out", out)  # the request is in its folder
    assert resumed.code == 0, resumed.err
    assert [f.name for f in tmp_path.iterdir()] == ["t1"]
    steps = [json.loads(line)["step"] for line in (out / "history.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)) and steps[-1] == 60


def test_derive_stops_unless_told_to_go_on(
    edgevit_main: Any, digits_checkpoint: Path, reversed_names: Path, tmp_path: Path
) -> None:
    asked = ["derive", *TYPED, "--checkpoint", digits_checkpoint, *TASK, "--base-classes", reversed_names, "--rate",
             "0.4", "--method", "nuwa", "--set", "nuwa.purification=none", "--device", "cpu",
             "--out", tmp_path / "m"]  # fmt: skip
    stopped = edgevit_main(*asked)
    assert stopped.code == 1 and not stopped.out and not (tmp_path / "m").exists()
    assert "classes: 3 is output 6, 5 is output 4, 8 is output 1 of 10 outputs, as --base-classes" in stopped.err
    last = stopped.err.splitlines()[-1]
    assert last.startswith("error: the base is right on ") and "--accept-weak-base" in last
    done = edgevit_main(*asked, "--accept-weak-base", "-q")
    assert done.code == 0 and "warning: the base is right on" in done.err and (tmp_path / "m").is_dir()
