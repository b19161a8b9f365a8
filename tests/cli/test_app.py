"""What every command shares: help without heavy imports, exit codes, usage errors in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edgevit
from edgevit.version import written_by

COMMANDS = [
    "derive", "methods", "derive-many", "supernet", "cache", "export", "bench", "evaluate", "show",
    "compare", "board", "profiles",
]  # fmt: skip

HELP = """
import sys
from edgevit.cli.app import main
sys.argv = ["edgevit", *sys.argv[1:]]
try:
    main()
finally:
    heavy = {"torch", "numpy", "timm", "onnx", "onnxruntime", "accelerate", "sklearn", "PIL"}
    print("loaded:", *sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], [], *([command, "--help"] for command in COMMANDS)], ids=str)
def test_help_works_and_loads_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, *arguments], text=True, capture_output=True)
    assert done.returncode == 0 and "Usage: edgevit" in done.stdout
    assert done.stderr.split() == ["loaded:"]
    if len(arguments) < 2:
        assert all(command in done.stdout for command in COMMANDS)


def test_help_shows_every_default_that_was_written_by_hand() -> None:
    folder = Path(edgevit.__file__).parent
    wide = {**os.environ, "COLUMNS": "500"}
    told = ""
    for command in COMMANDS:
        asked = [sys.executable, "-m", "edgevit.cli", command, "--help"]
        told += " ".join(subprocess.run(asked, text=True, capture_output=True, env=wide).stdout.split())
    by_hand = re.compile(r'(?:^ *"|  )(\[default: .+?\])"', re.MULTILINE)
    written = [text for file in folder.rglob("*.py") for text in by_hand.findall(file.read_text())]
    assert len(written) > 10
    assert [text for text in written if text not in told] == []


def test_the_installed_command_knows_its_version() -> None:
    done = subprocess.run([sys.executable, "-m", "edgevit.cli", "--version"], text=True, capture_output=True)
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
