"""What is said of the board that an engine was made on; tests/engines/test_build.py makes engines."""

from __future__ import annotations

from dataclasses import asdict

from some_engines import facts

from edgevit.engines.workshop import board_in_short, mode_name

CUDA = {"runtime": "12.6", "device": "Orin", "sms": 8, "capability": "8.7"}


def test_a_board_in_short_is_what_decides_how_fast_an_engine_is() -> None:
    found = facts(power_mode={"id": 0, "name": "MAXN"}, jetpack="6.2", cuda=CUDA)
    assert asdict(board_in_short(found)) == {
        "model": "NVIDIA Jetson Orin NX Engineering Reference Developer Kit Super", "part": "p3767-0000", "super": True,
        "jetpack": "6.2", "l4t": "36.4.3", "tensorrt": "10.3.0", "cuda": "12.6", "device": "Orin", "sms": 8,
        "capability": "8.7", "power_mode": "MAXN",
    }  # fmt: skip
    assert mode_name(facts(power_mode=None)) is None
