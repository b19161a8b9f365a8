"""What is said of an engine's batches and of the board it was made on; tests/engines/test_build.py makes engines."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from some_engines import facts
from some_runs import MS, ON_A_BOARD

from edgevit.board.answers import Built
from edgevit.board.request import Conditions
from edgevit.engines import builder
from edgevit.engines.builder import Attempt, EngineBuilder, batches_of, board_in_short, mode_name
from edgevit.engines.gate import EngineVerdict
from edgevit.engines.options import EngineOptions
from edgevit.engines.precision_levels import FIRST, PrecisionSearch
from edgevit.progress import Silent

BUILT = Built(
    refused=None,
    seconds=1.0,
    engine="1.engine",
    sha256="0" * 64,
    bytes=1,
    tensorrt="10.3.0",
    strongly_typed=True,
    workspace_bytes=None,
    device_memory_bytes=1,
    timing_cache=None,
    layers=(),
    fused=None,
    inputs=(),
    outputs=(),
    warnings=(),
)
CUDA = {"runtime": "12.6", "device": "Orin", "sms": 8, "capability": "8.7"}


@pytest.mark.parametrize("batch", ["dynamic", 4])
def test_batches_may_be_a_list(batch: Any) -> None:
    exported: Any = SimpleNamespace(batch=batch)
    given: Any = [4, 4, 4]
    assert batches_of(exported, EngineOptions(batches=given)) == (4, 4, 4)


def test_a_board_in_short_is_what_decides_how_fast_an_engine_is() -> None:
    found = facts(power_mode={"id": 0, "name": "MAXN"}, jetpack="6.2", cuda=CUDA)
    assert asdict(board_in_short(found)) == {
        "model": "NVIDIA Jetson Orin NX Engineering Reference Developer Kit Super", "part": "p3767-0000", "super": True,
        "jetpack": "6.2", "l4t": "36.4.3", "tensorrt": "10.3.0", "cuda": "12.6", "device": "Orin", "sms": 8,
        "capability": "8.7", "power_mode": "MAXN",
    }  # fmt: skip
    assert mode_name(facts(power_mode=None)) is None


@pytest.mark.parametrize(
    ("clocks_khz", "said"),
    [
        ((306_000, 918_000), "as the GPU clock moved between 306 and 918 MHz; run `sudo jetson_clocks` there"),
        ((918_000, 918_000), None),
    ],
)
def test_engines_whose_clocks_moved_are_not_compared_and_what_to_do_is_said(
    clocks_khz: tuple[int, int], said: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clocks = tuple({"gpu": khz} for khz in clocks_khz)
    runs = [
        replace(
            ON_A_BOARD, label=label, model_sha256=label[0] * 64, session="s", round=number, turn=1, visit=10,
            latencies_ns=(ms * MS,) * 100, gpu_ns=(ms * MS,) * 100, wall_ns=100 * ms * MS, clocks_during_khz=clocks,
        )
        for number in range(1, 9)
        for label, ms in (("fp16", 8), ("int8", 5))
    ]  # fmt: skip
    measured: list[Conditions] = []

    def take_turns(_: Any, conditions: Conditions, *__: Any) -> SimpleNamespace:
        measured.append(conditions)
        return SimpleNamespace(failed=None, runs=runs)

    monkeypatch.setattr(builder, "take_turns", take_turns)
    monkeypatch.setattr(EngineBuilder, "attempt", lambda *_: attempt)
    attempt: Any = Attempt(Path(), None, (), BUILT, EngineVerdict({}, None))
    exported: Any = SimpleNamespace(written_of=None, report=SimpleNamespace(batch="dynamic"))
    board: Any = SimpleNamespace(host="orin")
    asked = Conditions(power_mode="25W", lock_clocks=True)
    there = EngineBuilder(board, facts(), exported, attempt, tmp_path, EngineOptions(), Silent(), asked)
    search = there.with_int8(PrecisionSearch(FIRST, attempt, ()))
    assert [(given.power_mode, given.lock_clocks, given.idle_s) for given in measured] == [("25W", True, 0.0)]
    assert search.level.precision == ("int8" if said is None else "fp16")
    assert [said in str(failed.failure) for _, failed in search.failed] == ([] if said is None else [True])
