"""What is said of an engine's batches and of the board it was made on; tests/engines/test_build.py makes engines."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from some_engines import facts

from edgevit.engines.builder import batches_of, board_in_short, mode_name
from edgevit.engines.options import EngineOptions

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
