"""The drawings that are kept, which RESULTS.md shows."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.papers import vulcan_drawings


def test_every_drawing_is_kept_and_shown_with_the_command_that_makes_it() -> None:
    told = vulcan_drawings.section()
    assert f"`{vulcan_drawings.COMMAND}`" in told and Path(vulcan_drawings.__file__).stem in vulcan_drawings.COMMAND
    for name in vulcan_drawings.SHOWN:
        root = ElementTree.parse(vulcan_drawings.OUT / f"{name}.svg").getroot()
        assert f"](drawings/{name}.svg)" in told and root.findall("{*}polyline")


def test_without_drawings_there_is_no_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulcan_drawings, "_file", lambda name: tmp_path / f"{name}.svg")
    assert vulcan_drawings.section() == ""
