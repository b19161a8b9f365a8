"""A base whose names are in a wrong order: what each command says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}
NAME = "vit_tiny_patch16_224"
BASE = [NAME, *(part for name, value in ARGS.items() for part in ("--model-arg", f"{name}={value}"))]
DATA = ["--data", "digits", "--classes", "3,5,8"]


@pytest.fixture
def reversed_names(tmp_path: Path) -> Path:
    file = tmp_path / "names.txt"
    file.write_text("\n".join(str(i) for i in reversed(range(10))))
    return file


def test_derive_stops_unless_told_to_go_on(
    edgevit_main: Any, digits_checkpoint: Path, reversed_names: Path, tmp_path: Path
) -> None:
    asked = ["derive", *BASE, "--checkpoint", digits_checkpoint, *DATA, "--base-classes", reversed_names, "--rate",
             "0.4", "--method", "nuwa", "--device", "cpu", "--out", tmp_path / "m"]  # fmt: skip
    stopped = edgevit_main(*asked)
    assert stopped.code == 1 and not stopped.out and not (tmp_path / "m").exists()
    assert "classes: 3 is output 6, 5 is output 4, 8 is output 1 of 10 outputs, as --base-classes" in stopped.err
    last = stopped.err.splitlines()[-1]
    assert last.startswith("error: the base is right on ") and "--accept-weak-base" in last
    done = edgevit_main(*asked, "--accept-weak-base", "-q")
    assert done.code == 0 and "warning: the base is right on" in done.err and (tmp_path / "m").is_dir()


def test_evaluate_says_what_it_assumes_and_warns(
    edgevit_main: Any, digits_checkpoint: Path, reversed_names: Path
) -> None:
    asked = ["evaluate", *BASE, "--checkpoint", digits_checkpoint, *DATA, "--device", "cpu"]
    right = edgevit_main(*asked, "--std", "0.5")
    assert right.code == 0 and "warning" not in right.err
    assert "classes: 3 is output 3, " in right.err
    assert "preprocessing: std 0.5, given; crop_pct 0.9, interpolation bicubic, mean 0.5, assumed" in right.err
    wrong = edgevit_main(*asked, "--base-classes", reversed_names, "-q")
    assert wrong.code == 0 and f"warning: {NAME} is right on " in wrong.err and "--base-classes" in wrong.err


def test_a_plan_may_accept_a_weak_base(
    edgevit_main: Any, digits_checkpoint: Path, reversed_names: Path, tmp_path: Path
) -> None:
    plan = {
        "base": NAME, "checkpoint": str(digits_checkpoint), "model_args": ARGS, "base_classes": str(reversed_names),
        "data": "digits", "out": str(tmp_path / "fleet"), "tasks": [{"name": "few", "classes": ["3", "5", "8"]}],
        "budgets": [{"name": "r", "rate": 0.4}], "methods": [{"name": "nuwa"}], "training": {"device": "cpu"},
    }  # fmt: skip
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(plan))
    stopped = edgevit_main("derive-many", file)
    assert stopped.code == 1 and "the base is right on" in stopped.err
    file.write_text(yaml.safe_dump({**plan, "accept_weak_base": True}))
    assert edgevit_main("derive-many", file).code == 0
