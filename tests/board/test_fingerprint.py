"""What an engine depends on, as a name."""

from __future__ import annotations

from typing import Any

import pytest
from some_engines import ORIN, facts

from edgevit.board.fingerprint import fingerprint


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ORIN),
        ({"l4t": None}, "orin-nx-16gb-trt10.3.0-8sm"),
        ({"cuda": {"device": "Orin", "sms": 4}}, "orin-nx-16gb-l4t36.4.3-trt10.3.0-4sm"),
        ({"tensorrt": {"version": None}}, "orin-nx-16gb-l4t36.4.3-8sm"),
        (
            {"module": {"part": None, "model": None}, "l4t": None, "cuda": {"device": "NVIDIA H100 80GB", "sms": 132}},
            "nvidia-h100-80gb-trt10.3.0-132sm",
        ),
        ({"module": {"part": "p9999-0000", "model": "A/../Board"}, "cuda": {}}, "a-board-l4t36.4.3-trt10.3.0"),
        ({"module": {}, "cuda": {}, "l4t": None, "tensorrt": {}}, "unknown"),
    ],
)
def test_a_fingerprint_names_what_an_engine_depends_on(changes: dict[str, Any], expected: str) -> None:
    assert fingerprint(facts(**changes)) == expected
