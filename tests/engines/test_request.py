"""What an export and an evaluation are asked, engines and boards among it, from all three sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import edgevit
from edgevit.cli.app import app
from edgevit.cli.command import Command
from edgevit.engines.request import IMAGES, EvaluateRequest, ExportRequest
from edgevit.errors import OptionError, UnknownNameError
from edgevit.request import request_from, request_of

COMMANDS: dict[str, Command] = get_command(app).commands  # type: ignore[attr-defined]
TYPED = [
    "runs/t1", "--trt", "--board", "jetson@orin", "--ssh-config", "ssh", "--batches", "1,2,4", "--workspace", "512",
    "--engine-drop", "0.02", "--fp16-tolerance", "0.03", "--no-fp16", "--batch", "4", "--rebuild", "--mean", "0.5",
    "--profile", "orin-nx-16gb",
]  # fmt: skip
WRITTEN = {
    "model": "runs/t1", "trt": True, "board": "jetson@orin", "ssh-config": "ssh", "batches": [1, 2, 4],
    "workspace": 512, "engine-drop": 0.02, "fp16-tolerance": 0.03, "fp16": False, "batch": 4, "rebuild": True,
    "mean": 0.5, "profile": "orin-nx-16gb",
}  # fmt: skip
KEYWORDS: dict[str, Any] = {
    "model": "runs/t1", "trt": True, "board": "jetson@orin", "ssh_config": "ssh", "batches": (1, 2, 4),
    "workspace_bytes": 512 << 20, "drop": 0.02, "fp16_error": 0.03, "fp16": False, "batch": 4, "rebuild": True,
    "mean": [0.5, 0.5, 0.5], "profile": "orin-nx-16gb",
}  # fmt: skip


def typed(*arguments: object) -> ExportRequest:
    with COMMANDS["export"].make_context("export", [str(one) for one in arguments]) as context:
        return request_from(ExportRequest, context.params)


def test_command_line_file_and_keywords_make_the_same_request_of_an_engine(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(WRITTEN))
    request = request_of(ExportRequest, KEYWORDS, "edgevit.exporting")
    assert typed(*TYPED) == typed("--config", file) == request
    assert (request.engine.batches, request.engine.tolerances.drop, request.board) == ((1, 2, 4), 0.02, "jetson@orin")


@pytest.mark.parametrize("given", [{"board": "orin"}, {"ssh_config": "c"}, {"profile": "p"}, {"rebuild": True}])
def test_what_is_of_an_engine_needs_one(given: dict[str, Any], tmp_path: Path) -> None:
    name = next(iter(given)).replace("_", "-")
    with pytest.raises(OptionError, match=f"--{name} is for an engine; give --trt, too"):
        edgevit.export(tmp_path, **given)


def test_a_profile_that_there_is_not_is_refused_before_the_board_is_bothered(tmp_path: Path) -> None:
    from small_models import write_derived

    folder = write_derived(tmp_path / "m", 16, 16, depth=1)
    with pytest.raises(UnknownNameError, match="no profile 'orin-nxx'"):
        edgevit.export(folder, trt=True, profile="orin-nxx", board="nobody@nowhere")


def test_an_engine_is_judged_on_some_images_unless_others_are_asked_for() -> None:
    asked = [ExportRequest(model=Path("m"), max_images=number).engine_images for number in (None, 7)]
    assert asked == [IMAGES, 7]


def test_only_an_engine_is_evaluated_on_a_board() -> None:
    assert EvaluateRequest(model="a.engine").of_engine and not EvaluateRequest(model="a.onnx").of_engine
    with pytest.raises(OptionError, match="--board is for an engine, and runs/t1 is not one"):
        edgevit.evaluate("runs/t1", board="orin")
