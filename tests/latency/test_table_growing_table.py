"""The table of one target, as it grows; tables that are given are in test_run.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from some_rounds import TABLE

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.latency import table
from edgevit.latency.request import MeetRequest
from edgevit.latency.target import MeasurementTarget
from edgevit.progress import Silent
from edgevit.records.model import BlockDims


def test_what_is_measured_once_more_is_the_table_from_then_on(
    small_vit: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Any, ...]] = []

    def measured(
        _: Any, target: MeasurementTarget, *, sizes: Any, embed: Any, narrower: bool, energy: bool, **__: Any
    ) -> CostTable:
        asked.append((target.board, sizes, embed, narrower, energy))
        return CostTable.model_validate({**TABLE, "measured_on": f"try {len(asked)}"})

    monkeypatch.setattr(table, "measured_table", measured)
    request = MeetRequest(base="b", data="digits", out=tmp_path / "t", mj=40, target=MeasurementTarget(board="nano"))
    known = table.GrowingTable(small_vit(), request, request.run_target, Silent())
    assert known.table.measured_on == "try 1" and known.origin == {}
    sizes = (BlockDims(1, 16, 16, 8),)
    known.extend(sizes, 32)
    assert known.table.measured_on == "try 2"
    assert asked == [("nano", (), None, True, True), ("nano", sizes, 32, True, True)]
    nothing_narrower = MeetRequest(base="b", data="digits", out=tmp_path / "t", ms=4, method="vulcan")
    table.GrowingTable(small_vit(), nothing_narrower, MeasurementTarget(), Silent())
    assert asked[-1] == (None, (), None, False, False)
