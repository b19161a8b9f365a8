"""Energy of an emulated board, through the sensors of a captured one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.product.emulated_energy import TREES, WINDOW_S, EnergyBoard, PowerTree, draw_energy


@pytest.mark.parametrize("profile", TREES)
def test_the_meter_finds_the_energy_that_was_drawn_whatever_ran_before(tmp_path: Path, profile: str) -> None:
    tree = PowerTree(tmp_path, profile)
    assert len(tree.currents) == (3 if profile == "agx-orin-64gb" else 1)
    for milliwatts in (12_000, 4_000, 9_500):
        assert tree.energy_mj(milliwatts) == pytest.approx(milliwatts * WINDOW_S, rel=0.01)


@pytest.mark.slow
def test_energy_is_measured_as_the_board_has_it_and_is_no_multiple_of_time(tmp_path: Path) -> None:
    bench = draw_energy(3, tmp_path / "tree")
    board, half = bench.board, bench.base[: len(bench.base) // 2]
    assert isinstance(board, EnergyBoard)
    seen = board.measure(half, bench.random)
    assert seen.value == pytest.approx(board.ms(half), rel=0.03) and seen.low is not None and seen.low < seen.value
    powers = {board.ms(blocks) / board.time_ms(blocks) for blocks in (half, bench.base, [bench.base[0]])}
    assert len(powers) == 3 and bench.table.in_quantity("ms").base == pytest.approx(board.ms(bench.base), rel=0.1)
