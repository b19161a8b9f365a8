"""TensorRT's timing cache: kept per release, GPU and power mode, and left out where it is of no use."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from captured import NANO
from places import BOARDS
from standin_board import build, model_for, play


def test_the_timing_cache_is_kept_per_release_and_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, "10.3.0")
    model = model_for("10.3.0", tmp_path)
    first, second = (build(model)["timing_cache"] for _ in range(2))
    path = Path(first["path"])
    assert path == tmp_path / "edgevit/timing/tensorrt-10.3.0-sm87.cache"
    assert (first["bytes_before"], second["bytes_before"]) == (0, first["bytes_after"])
    assert first["bytes_after"] > 0
    assert build(model, timing_cache=False)["timing_cache"] is None
    path.write_bytes(path.read_bytes()[:-1])
    damaged = build(model)
    assert damaged["timing_cache"]["bytes_before"] == 0
    assert "is damaged, and was started anew" in damaged["warnings"][0]


def test_what_was_timed_in_one_power_mode_says_nothing_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, "10.3.0")
    model, root = model_for("10.3.0", tmp_path), tmp_path / "root"
    shutil.copytree(BOARDS / NANO, root)

    def built_in(mode: int) -> Any:
        (root / "var/lib/nvpmodel/status").write_text(f"pmode:{mode:04d} fmode:quiet\n")
        return build(model, str(root), workspace_bytes=1 << 30)["timing_cache"]

    first, other, again = built_in(0), built_in(1), built_in(0)
    assert [Path(one["path"]).name for one in (first, other)] == [
        f"tensorrt-10.3.0-sm87-{mode}.cache" for mode in ("15W", "25W")
    ]
    assert (first["bytes_before"], other["bytes_before"], again["bytes_before"]) == (0, 0, first["bytes_after"])


def test_a_timing_cache_that_tensorrt_does_not_want_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, "10.3.0")
    model = model_for("10.3.0", tmp_path)
    path = Path(build(model)["timing_cache"]["path"])
    foreign = b"stand-in timing 10.16\n"
    path.write_bytes(hashlib.sha256(foreign).digest() + foreign)
    built = build(model)
    assert any("of another TensorRT or GPU, and was started anew" in warning for warning in built["warnings"])
    assert built["timing_cache"]["bytes_before"] == 0


def test_without_a_gpu_that_can_be_told_there_is_no_timing_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    monkeypatch.setenv("EDGEVIT_CUDART", str(tmp_path / "none.so"))
    built = build(model_for("10.3.0", tmp_path))
    assert built["timing_cache"] is None and built["warnings"][0].startswith("no timing cache")
