"""How to train, as it is asked for: names and numbers alone, so that they can be checked before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edgevit.data.augment import AUGMENTS, Augment
from edgevit.errors import UnknownNameError
from edgevit.models.device import check_device_name
from edgevit.numbers import COUNT, SEED, check_number

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
Schedule = Literal["constant", "cosine"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "cosine")


INTERVALS = (
    ("steps", "[0, 2**31)", "0 trains not at all"),
    ("batch_size", COUNT, ""),
    ("lr", "(0, inf)", "the papers use 1e-4"),
    ("weight_decay", "[0, inf)", "the papers use 0.05"),
    ("warmup_steps", "[0, 2**31)", ""),
    ("clip_norm", "[0, inf)", "0 leaves gradients as they are"),
    ("grad_accum", COUNT, ""),
    ("workers", "[0, 2**10]", ""),
    ("seed", SEED, ""),
    ("evaluations", COUNT, ""),
)


@dataclass(frozen=True)
class Training:
    """How to train. Defaults are those published for Vulcan, but for the schedule: docs/decisions/006-cosine.md."""

    steps: int | None = None  # None: the method's own rule, filled in before it starts
    batch_size: int = 256  # images per optimiser step, over all processes and micro-batches
    lr: float = 1e-4
    weight_decay: float = 0.05
    schedule: Schedule = "cosine"
    warmup_steps: int | None = None  # None: the method's own rule (`fill`)
    lr_by_loss: bool | None = None  # lower the rate where the loss against the teacher is small already; None: likewise
    clip_norm: float = 0.0  # a step's gradient is shortened to this norm; 0: never
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
        for name, interval, hint in INTERVALS:
            if (value := getattr(self, name)) is not None:
                check_number(f"--{name.replace('_', '-')}", value, interval, hint)
        for kind, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("augmentation", self.augment, AUGMENTS),
            ("schedule", self.schedule, SCHEDULES),
        ):
            if value not in known:
                raise UnknownNameError(kind, value, known)
        check_device_name(self.device)


WARMUP = 0.1  # share of the steps, of a method that is GENTLE


def fill(training: Training, *, gentle: bool) -> Training:
    """Fill in what the method decides: gently, for weights that are nearly right, or as published for Vulcan.

    docs/decisions/015-gentle-training.md has the reasons and the numbers.
    """
    warmup, by_loss = training.warmup_steps, training.lr_by_loss
    if warmup is None:
        warmup = round(WARMUP * (training.steps or 0)) if gentle else 0
    return replace(training, warmup_steps=warmup, lr_by_loss=gentle if by_loss is None else by_loss)
