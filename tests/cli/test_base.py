"""`edgevit base` from end to end: a folder that every other command takes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from small_base import ARGS

import edgevit

pytestmark = pytest.mark.usefixtures("examined_once")
NAMES = [str(digit) for digit in range(10)]
NETWORK = ["vit_tiny_patch16_224", *(w for k, v in ARGS.items() for w in ("--model-arg", f"{k}={v}"))]
PREPROCESSING = ["--crop-pct", "1", "--mean", "0.5", "--std", "0.5"]


@pytest.fixture
def given(digits_checkpoint: Path) -> list[str]:
    return [*NETWORK, "--checkpoint", str(digits_checkpoint), *PREPROCESSING]


@pytest.mark.quick("some classes")
@pytest.mark.parametrize(
    ("asked", "told", "shown"),
    [
        (["--data", "digits", "--classes", "3,5,8"], "3 of 10 outputs: 3, 5, 8", "3 classes, subset head: 3, 5, 8"),
        (["--data", "digits"], f"10 of 10 outputs: {', '.join(NAMES)}", "10 classes, full head: 0, 1, 2"),
        ([], "10 of 10 outputs, whose names are not known (--base-classes FILE gives them);", "10 outputs"),
    ],
    ids=["some classes", "all classes", "no names"],
)
def test_the_folder_can_be_shown_exported_evaluated_measured_and_compared(
    given: list[str], edgevit_main: Any, tmp_path: Path, asked: list[str], told: str, shown: str
) -> None:
    out = tmp_path / "a base"
    made = edgevit_main("base", *given, *asked, "--out", out)
    assert made.code == 0 and told in made.out
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "model.json", "model.safetensors"]
    seen = edgevit_main("show", out)
    assert seen.code == 0 and shown in seen.out
    forms = [] if "--classes" in asked else ["--no-fp16"]  # once both
    exported = edgevit_main(*shlex.split(made.out.partition("Next: edgevit ")[2]), *forms, "--json")
    assert exported.code == 0, exported.err
    judged = json.loads(edgevit_main("evaluate", out, "--data", "digits", "--json").out)
    assert judged["top1"] > 0.5
    assert not asked or judged["top1"] == json.loads(exported.out)["accuracy"]["torch"]
    onnx = edgevit_main("evaluate", out / "export" / "model.fp32.onnx", "--data", "digits", "--json")
    assert json.loads(onnx.out)["top1"] == judged["top1"]
    runs = [tmp_path / "before.jsonl", tmp_path / "after.jsonl"]
    for file in runs:
        quick = ["--duration", "0", "--samples", "20", "--warmup-seconds", "0", "--output", file]
        measured = edgevit_main("bench", out, *quick, "--json")
        assert measured.code == 0 and json.loads(measured.out)["runs"][0]["label"] == "a base"
    compared = edgevit_main("compare", *runs, "--force", "--json")
    assert compared.code == 0 and json.loads(compared.out)["comparisons"]


def test_a_restricted_base_answers_as_the_base_does_on_its_classes(given: list[str], tmp_path: Path) -> None:
    base = {"checkpoint": given[given.index("--checkpoint") + 1], "model_args": ARGS}
    whole = edgevit.base(given[0], **base, data="digits", out=tmp_path / "whole")
    few = edgevit.base(given[0], **base, data="digits", classes=["8", "3"], out=tmp_path / "few")
    images = torch.randn(4, 3, 32, 32)
    assert whole.classes == NAMES and whole.spec.output_names == NAMES
    torch.testing.assert_close(few(images), whole(images)[:, [8, 3]])
    torch.testing.assert_close(edgevit.load(tmp_path / "few")(images), few(images))
    assert few.spec.base == whole.spec.base and few.spec.rate < 0.01


def test_names_come_from_a_file_from_a_folder_or_not_at_all(
    given: list[str], edgevit_main: Any, tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_text(
        "\n".join(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    )
    named = edgevit_main("base", *given, "--base-classes", tmp_path / "names.txt", "--out", tmp_path / "named")
    assert named.code == 0 and edgevit.load(tmp_path / "named").classes[3] == "three"
    again = edgevit_main("base", tmp_path / "named", "--classes", "two,six", "--out", tmp_path / "two")
    assert again.code == 0 and edgevit.load(tmp_path / "two").classes == ["two", "six"]
    assert edgevit_main("base", *given, "--out", tmp_path / "nameless").code == 0
    assert edgevit.load(tmp_path / "nameless").classes == []
    assert "all 10 outputs, whose names are not known" in (tmp_path / "nameless" / "README.md").read_text()
    refused = edgevit_main("base", *given, "--classes", "2,6", "--out", tmp_path / "x")
    assert "--base-classes" in refused.error and not (tmp_path / "x").exists()


@pytest.mark.slow
def test_derive_names_the_command_that_writes_its_base(given: list[str], edgevit_main: Any, tmp_path: Path) -> None:
    task = ["--data", "digits", "--classes", "3,5,8"]
    budget = ["--rate", "0.5", "--method", "nuwa", "--set", "nuwa.purification=none"]
    derived = edgevit_main("derive", *given, *task, *budget, "--out", tmp_path / "small")
    assert derived.code == 0
    line = next(line for line in derived.out.splitlines() if "edgevit base" in line)
    made = edgevit_main(*shlex.split(line.partition("edgevit ")[2]))
    assert made.code == 0 and edgevit.load(tmp_path / "base").preprocessing["crop_pct"] == 1.0
    again = edgevit_main("derive", *given, *task, *budget, "--out", tmp_path / "small2")
    assert again.code == 0 and "edgevit base" not in again.out, "it is there"


@pytest.mark.parametrize("budget", [("--rate", "0"), ("--macs", "900G"), ("--params", "900M")])
def test_a_budget_that_removes_nothing_is_refused_with_the_command_for_it(
    given: list[str], edgevit_main: Any, tmp_path: Path, budget: tuple[str, str]
) -> None:
    refused = edgevit_main("derive", *given, "--data", "digits", *budget, "--out", tmp_path / "x", "-q")
    assert "use `edgevit base`" in refused.error


@pytest.mark.slow
def test_a_base_without_a_classifier_is_exported_evaluated_and_measured_by_its_features(
    edgevit_main: Any, tmp_path: Path
) -> None:
    args = {**ARGS, "num_classes": 0}
    backbone = timm.create_model("vit_tiny_patch16_224", **args)
    save_file(backbone.state_dict(), tmp_path / "backbone.safetensors")
    given = [w for k, v in args.items() for w in ("--model-arg", f"{k}={v}")]
    out, some = tmp_path / "backbone", ["--data", "digits", "--max-images", 20]
    made = edgevit_main(
        "base", "vit_tiny_patch16_224", *given, "--checkpoint", tmp_path / "backbone.safetensors", "--out", out
    )
    assert made.code == 0 and "vit_tiny_patch16_224, 64 features; " in made.out, made.err
    assert "its outputs are 64 features" in edgevit_main("show", out).out
    exported = edgevit_main("export", out, *some)
    assert exported.code == 0 and "error of features" in " ".join(exported.out.split()), exported.out
    judged = edgevit_main("evaluate", out / "export" / "model.fp16.onnx", *some)
    assert judged.code == 0 and " on 20 test images of digits: agrees to " in " ".join(judged.out.split()), judged.out
    quick = ["--duration", "0", "--samples", "20", "--warmup-seconds", "0"]
    assert edgevit_main("bench", out, *quick).code == 0
