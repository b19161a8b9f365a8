"""What every command shares: help without heavy imports, exit codes, usage errors in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import edgevit
from edgevit.cli.app import app
from edgevit.errors import OptionError
from edgevit.version import written_by

GROUP: Any = get_command(app)
COMMANDS = sorted(name for name, command in GROUP.commands.items() if not command.hidden)
ASKED = [["--help"], [], *([command, "--help-all"] for command in COMMANDS)]
HELP = """
import contextlib, io, json, sys
from edgevit.cli.app import main
told = []
for arguments in json.load(sys.stdin):
    sys.argv = ["edgevit", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    heavy = {"torch", "rich", "numpy", "timm", "onnx", "onnxruntime", "accelerate", "sklearn", "PIL"}
    told.append([code, out.getvalue(), err.getvalue(), sorted(heavy & set(sys.modules))])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def helped() -> list[tuple[int, str, str, list[str]]]:
    """For each of ASKED: exit code, output, errors, and the heavy libraries loaded so far."""
    wide = {**os.environ, "COLUMNS": "500"}
    command, asked = [sys.executable, "-c", HELP], json.dumps(ASKED)
    told = subprocess.run(command, input=asked, text=True, stdout=subprocess.PIPE, check=True, env=wide).stdout
    return [tuple(each) for each in json.loads(told)]


def test_help_works_and_loads_nothing_heavy(helped: list[tuple[int, str, str, list[str]]]) -> None:
    for arguments, (code, out, err, loaded) in zip(ASKED, helped, strict=True):
        assert (code, err, loaded) == (0, "", []), arguments
        assert "Usage: edgevit" in out
        if len(arguments) < 2:
            assert all(command in out for command in COMMANDS)


def test_help_shows_every_default_that_was_written_by_hand(helped: list[tuple[int, str, str, list[str]]]) -> None:
    folder = Path(edgevit.__file__).parent
    told = " ".join(" ".join(out for _, out, _, _ in helped).split())
    by_hand = re.compile(r'(?:^ *"|  )(\[default: .+?\])"', re.MULTILINE)
    written = [text for file in folder.rglob("*.py") for text in by_hand.findall(file.read_text())]
    assert len(written) > 10
    assert [text for text in written if text not in told] == []


def test_the_installed_command_knows_its_version() -> None:
    done = subprocess.run([sys.executable, "-m", "edgevit", "--version"], text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"edgevit {written_by()}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dervie"], "No such command 'dervie'"),
        (["--verson"], "No such option: --verson"),
        (["derive"], "Missing option '--out'"),
        (["supernet"], "Missing argument"),
        (["supernet", "vit", "--out", "o"], "Missing option '--data'"),
        (["derive", "vit", "--frobnicate"], "No such option: --frobnicate"),
        (["derive", "vit", "--out", "o", "--data", "digits", "--steps", "1.5"], "--steps"),
        (["show"], "Missing argument"),
        (["show", "a", "b"], "unexpected extra argument"),
        (["bench"], "Missing argument"),
    ],
)
def test_a_mistyped_command_line_is_one_line(edgevit_main: Any, arguments: list[str], said: str) -> None:
    error = edgevit_main(*arguments).error
    assert said in error and error.endswith(" --help") and "; see edgevit" in error


def test_a_working_folder_that_was_removed_is_one_line(edgevit_main: Any, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert edgevit_main("methods").error.startswith("error: the working folder was removed; change to another")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ImportError("libtorch_cpu.so: failed to map segment", name="torch"), "cannot import torch: libtorch_cpu.so:"),
        (ImportError(), "cannot import a library; make more memory available"),  # of torch in 3 GB of addresses
        (MemoryError(), "out of memory; make more memory available"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            "out of memory: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes; give a smaller",
        ),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA\nis full"), "CUDA is full; give a smaller --batch-size"),
        (OptionError("x" * 10**6), "xxx...xxx"),
    ],
)
def test_want_of_memory_and_messages_without_end_are_one_short_line(edgevit_main, monkeypatch, failure, said):
    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr("edgevit.board.profiles.profile_names", fail)
    error = edgevit_main("profiles").error
    assert said in error and len(error) < 4100
