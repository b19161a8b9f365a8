"""Preprocessing of images of 32 px, and the task of a folder by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgevit.data.task import Task, open_task

PREPROCESSING: dict[str, Any] = {
    "input_size": (3, 32, 32),
    "interpolation": "bicubic",
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.3, 0.4),
    "crop_pct": 0.9,
    "crop_mode": "center",
}


def task_of(data: str | Path, classes: Any = None, outputs: int = 10, **options: Any) -> Task:
    return open_task(data, classes, preprocessing=PREPROCESSING, base_outputs=outputs, **options)
