"""The ways in which training images are changed; `data.task.training_transform` carries them out."""

from __future__ import annotations

from typing import Literal

Augment = Literal["none", "crop", "flip"]
AUGMENTS: tuple[Augment, ...] = ("none", "crop", "flip")
