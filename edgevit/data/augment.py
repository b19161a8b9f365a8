"""The ways in which training images are changed: `data.task.training_transform`, and `train.mixing` for "deit"."""

from __future__ import annotations

from typing import Literal

Augment = Literal["none", "crop", "flip", "deit"]
AUGMENTS: tuple[Augment, ...] = ("none", "crop", "flip", "deit")
