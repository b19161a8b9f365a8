"""The figures of INT8 are points on the same images, folds of the real weights together."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.product import int8

ROW: dict[str, Any] = {
    "variant": int8.CHOSEN, "method": "max", "share": 1.0, "images": 100, "lost": 3, "gained": 1, "kl": 0.01,
}  # fmt: skip


def test_points_are_of_images_that_changed() -> None:
    points, half = int8.lost_points([ROW, {**ROW, "images": 300, "lost": 5, "gained": 7}])
    assert points == pytest.approx(0.0) and half == pytest.approx(1.96 * 100 * 16**0.5 / 400)


def test_a_record_becomes_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {case: {**ROW, "case": case} for case in ("finer", "real-0", "real-1")}
    rows |= {
        f"{case} corrected": {**ROW, "case": case, "variant": list(int8.VARIANTS)[-1], "expected": 0.002}
        for case in ("finer", "real-0", "real-1")
    }
    latency = {"finer": {"ratio": 0.6, "low": 0.55, "high": 0.65, "ms": 1.0}}
    fused = {"fp16_fused": 6, "int8_fused": 5, "fp16_kernels": 30, "int8_kernels": 40}
    plan = {"finer": {"linear": 25, "layers": 24, **fused}}
    record = {"rows": rows, "latency": latency, "compiled": plan, "processor": "a CPU"}
    monkeypatch.setattr(int8, "load", lambda _: record)
    text = " ".join(int8.section().split())
    assert "| 0.20, 0.0100 | 0.60 (0.55 to 0.65) | 24 of 25 | 5 and 6 | 40 and 30 |" in text
    assert "| real | 200 | | | 2.0 (-0.8 to 4.8) | | 0.20, 0.0100 | |" in text
