"""A small CNN that knows some of scikit-learn's digits, exported as a user would."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from small_base import PREPROCESSING
from torch import nn

from edgevit.data.task import open_task


def write_cnn(file: Path, classes: Sequence[str] | None, steps: int = 30, size: int = 16) -> Path:
    """Train it for some steps on the digits of these classes (None: all), and export it for images of this size."""
    torch.manual_seed(0)
    task = open_task(
        "digits", classes, preprocessing={**PREPROCESSING, "input_size": [3, size, size]}, base_outputs=10,
        base_names=[str(digit) for digit in range(10)],
    )  # fmt: skip
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * (size // 4) ** 2, len(task.classes)),
    )  # fmt: skip
    images, labels = next(task.train.batches(len(task.train)))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network.eval(), (images[:2],), file, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
        )  # fmt: skip
    return file
