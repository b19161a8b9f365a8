"""Parse the commands that a demo types, instead of running them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.product import demo
from edgevit.jobs.sweep.record import Sweep, SweepPoint, write_sweep


def some_sweep() -> Sweep:
    points = tuple(SweepPoint(f, rate, 9, 10, macs, 1) for f, rate, macs in [("base", None, 10), ("r0.5", 0.5, 5)])
    return Sweep({}, "validation", "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}, points)


def parse_commands(monkeypatch: pytest.MonkeyPatch, out: Path) -> list[str]:
    """Have a demo write to `out`; return the list that the names of its commands are added to."""
    from typer.main import get_command

    from edgevit.cli.app import app

    commands: Any = get_command(app)
    typed = []

    def parse(line: str) -> None:
        name, *arguments = shlex.split(line)
        with commands.commands[name].make_context(name, arguments) as context:
            assert context.info_name == name and not context.args
        typed.append(name)
        if name == "sweep":
            (out / "sweep").mkdir()
            write_sweep(out / "sweep", some_sweep())

    monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(out)])
    monkeypatch.setattr(demo, "edgevit", parse)
    monkeypatch.setattr(demo, "table_rows", lambda *_: [])
    monkeypatch.setattr(demo, "print_table", lambda *_: None)
    return typed
