"""What the demo on a real backbone types."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo_commands import parse_commands

from benchmarks.product import demo_real


def test_the_program_knows_every_command_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = parse_commands(monkeypatch, tmp_path / "demo")
    monkeypatch.setattr(demo_real, "ensure_weights", lambda: tmp_path / "base.safetensors")
    monkeypatch.setattr(demo_real, "ensure_fold", lambda _: tmp_path / "data")
    monkeypatch.setattr(demo_real, "ensure_pictures", lambda: tmp_path / "pictures")
    demo_real.main()
    assert typed == ["base", "sweep", "derive", "export", "bench", "show", "report"]
