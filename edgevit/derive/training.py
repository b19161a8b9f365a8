"""How to train, as it is asked for: names and numbers alone, so that they can be checked before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgevit.data.augment import AUGMENTS, Augment
from edgevit.errors import OptionError, UnknownNameError
from edgevit.models.device import check_device_name

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
Schedule = Literal["constant", "cosine"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "cosine")


@dataclass(frozen=True)
class Training:
    """How to train. Defaults are those published for Vulcan, but for the schedule: docs/decisions/006-cosine.md."""

    steps: int | None = None  # None: the method's own rule, filled in before it starts
    batch_size: int = 256  # images per optimiser step, over all processes and micro-batches
    lr: float = 1e-4
    weight_decay: float = 0.05
    schedule: Schedule = "cosine"
    warmup_steps: int = 0
    grad_accum: int = 1  # micro-batches per optimiser step
    precision: Precision = "fp32"
    device: str = "auto"
    workers: int = 0
    seed: int = 42
    augment: Augment = "crop"
    evaluations: int = 10  # how often both accuracies are taken, on the validation part
    early_stop: bool = True  # once both have met, or the best improves no more; a cosine schedule ends by itself

    def check(self) -> None:
        """Raise OptionError if a value cannot be."""
        for name in ("batch_size", "grad_accum", "evaluations"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name.replace('_', '-')} {getattr(self, name)} is less than 1")
        for name in ("weight_decay", "warmup_steps", "workers"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name.replace('_', '-')} {getattr(self, name):g} is negative")
        if self.steps is not None and self.steps < 0:
            raise OptionError(f"steps {self.steps} is negative; 0 trains not at all")
        if not self.lr > 0:
            raise OptionError(f"lr {self.lr:g} is not above 0; the papers use 1e-4")
        for kind, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("augmentation", self.augment, AUGMENTS),
            ("schedule", self.schedule, SCHEDULES),
        ):
            if value not in known:
                raise UnknownNameError(kind, value, known)
        check_device_name(self.device)
