"""A derived model that gets most images wrong."""

from __future__ import annotations

from pathlib import Path

from small_base import derive, write_checkpoint


def derive_wrong(folder: Path) -> Path:
    """Random weights, and half of them gone; returns the model's folder."""
    options = {"method": "random", "training": {"steps": 0}, "cache": False}
    derive(write_checkpoint(folder), folder / "t1", **options)
    return folder / "t1"
