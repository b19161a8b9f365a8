"""The drawings that are kept, which RESULTS.md shows."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import kept_drawings
import pytest


def test_every_drawing_is_kept_and_shown_with_the_command_that_makes_it() -> None:
    told = kept_drawings.section()
    assert f"`{kept_drawings.COMMAND}`" in told and Path(kept_drawings.__file__).name in kept_drawings.COMMAND
    for name in kept_drawings.KEPT:
        root = ElementTree.parse(kept_drawings.OUT / f"{name}.svg").getroot()
        assert f"](drawings/{name}.svg)" in told and root.findall("{*}polyline")


def test_without_drawings_there_is_no_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_drawings, "_file", lambda name: tmp_path / f"{name}.svg")
    assert kept_drawings.section() == ""
