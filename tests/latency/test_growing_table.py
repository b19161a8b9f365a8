"""The table of one target, as it grows; tables that are given are in test_run.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from some_costs import ARGS, TARGET, fill, here
from some_rounds import TABLE

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.errors import UnfitBoardError
from edgevit.latency import growing_table, table
from edgevit.latency.request import MeetRequest
from edgevit.latency.target import MeasurementTarget
from edgevit.progress import Silent
from edgevit.records.model import BlockDims

pytestmark = pytest.mark.usefixtures("examined_once")


class Warnings(Silent):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def warn(self, text: str) -> None:
        self.seen.append(text)


def test_noise_that_hides_what_sizes_cost_is_told_or_refused_before_any_round(
    small_vit: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "_refine", lambda *_: None)
    request = MeetRequest(base="b", data="digits", out=tmp_path / "t", ms=4, method="vulcan")
    network, told = small_vit(**ARGS), Warnings()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "some"))
    fill(network, here(), None, noise=0.2, energy=False)
    growing_table.GrowingTable(network, request, TARGET, told)
    assert any("noise of" in text and "`edgevit cost --rounds`" in text for text in told.seen)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "much"))
    fill(network, here(), None, noise=3.0, energy=False)
    with pytest.raises(UnfitBoardError, match=r"noise of [\d.]+% in ms hides \d+ of \d+ steps"):
        growing_table.GrowingTable(network, request, TARGET, Silent())


def test_what_is_measured_once_more_is_the_table_from_then_on(
    small_vit: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Any, ...]] = []

    def measured(
        _: Any, target: MeasurementTarget, *, sizes: Any, embed: Any, narrower: bool, energy: bool, **__: Any
    ) -> CostTable:
        asked.append((target.board, sizes, embed, narrower, energy))
        return CostTable.model_validate({**TABLE, "measured_on": f"try {len(asked)}"})

    monkeypatch.setattr(growing_table, "measured_table", measured)
    request = MeetRequest(base="b", data="digits", out=tmp_path / "t", mj=40, target=MeasurementTarget(board="nano"))
    known = growing_table.GrowingTable(small_vit(), request, request.run_target, Silent())
    assert known.table.measured_on == "try 1" and known.origin == {}
    sizes = (BlockDims(1, 16, 16, 8),)
    assert known.measured(sizes, 32) is known.table and known.table.measured_on == "try 2"
    assert asked == [("nano", (), None, True, True), ("nano", sizes, 32, True, True)]
    nothing_narrower = MeetRequest(base="b", data="digits", out=tmp_path / "t", ms=4, method="vulcan")
    growing_table.GrowingTable(small_vit(), nothing_narrower, MeasurementTarget(), Silent())
    assert asked[-1] == (None, (), None, False, False)
