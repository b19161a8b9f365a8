"""The options of training: names and numbers only, so that they can be checked before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from edgevit.data.request import AUGMENTS, Augment
from edgevit.errors import UnknownNameError
from edgevit.network.device import check_device_name
from edgevit.numbers import COUNT, SEED, check_number
from edgevit.request import COMPUTING, TRAINING, Option

_Precision = Literal["fp32", "bf16", "fp16"]
_PRECISIONS: tuple[_Precision, ...] = get_args(_Precision)
_Schedule = Literal["constant", "cosine"]
_SCHEDULES: tuple[_Schedule, ...] = ("constant", "cosine")
Teacher = Literal["none", "restricted", "finetuned"]
_TEACHERS: tuple[Teacher, ...] = ("none", "restricted", "finetuned")
# The fields of `Training` that describe the teacher.
TEACHING = ("teacher", "teacher_weight", "teacher_temperature", "token_weight")

_INTERVALS = (
    ("steps", "[0, 2**31)", "0 trains nothing"),
    ("batch_size", COUNT, ""),
    ("lr", "(0, 1]", "the papers use 1e-4"),  # AdamW moves a weight by up to this in a step
    ("weight_decay", "[0, inf)", "the papers use 0.05"),
    ("warmup_steps", "[0, 2**31)", ""),
    ("clip_norm", "[0, inf)", "0 leaves gradients as they are"),
    ("grad_accum", COUNT, ""),
    ("workers", "[0, 2**10]", ""),
    ("seed", SEED, ""),
    ("evaluations", COUNT, ""),
    ("teacher_weight", "[0, 1]", "0 trains on the labels alone, 1 on the teacher alone"),
    ("teacher_temperature", "(0, inf)", "try 2"),
    ("token_weight", "[0, inf)", "0 compares no tokens"),
)


_Device = Annotated[str, Option("Device for torch: auto, cpu, cuda or cuda:1.", COMPUTING, common=True)]
Workers = Annotated[
    int | None,
    Option(
        "Number of data-loading processes; 0 loads in the main process.  [default: up to 8 for a GPU, else 0]",
        COMPUTING,
    ),
]


@dataclass(frozen=True)
class Training:
    """How to train. Defaults are those published for Vulcan, but for the schedule: docs/decisions/012-training.md.

    None stands for the method's own rule, which `fill` puts in its place.
    """

    steps: Annotated[
        int | None,
        Option("Number of optimiser steps; 0 skips training.  [default: the method's own rule]", TRAINING, common=True),
    ] = None
    batch_size: Annotated[
        int | None,
        Option(
            "Images per optimiser step, over all processes and micro-batches.  [default: 256; fewer for features and "
            "maps of few images]",
            TRAINING,
        ),
    ] = None
    lr: Annotated[float, Option("Peak learning rate of AdamW.", TRAINING)] = 1e-4
    weight_decay: Annotated[float, Option("Weight decay of AdamW.", TRAINING)] = 0.05
    schedule: Annotated[_Schedule, Option("Learning-rate schedule: cosine (decays to 0) or constant.", TRAINING)] = (
        "cosine"
    )
    warmup_steps: Annotated[
        int | None,
        Option("Number of warm-up steps of the learning rate.  [default: the method's own]", TRAINING),
    ] = None
    lr_by_loss: Annotated[
        bool | None,
        Option(
            "Lower the learning rate where it would raise the loss against the teacher.  [default: the method's own]",
            TRAINING,
        ),
    ] = None
    clip_norm: Annotated[float, Option("Maximum norm of the gradient; 0 disables clipping.", TRAINING)] = 0.0
    grad_accum: Annotated[int, Option("Number of micro-batches per step, to save memory.", TRAINING)] = 1
    precision: Annotated[_Precision, Option("Precision of training: fp32, bf16 or fp16 (on a GPU only).", TRAINING)] = (
        _PRECISIONS[0]
    )
    device: _Device = "auto"
    workers: Workers = None
    seed: Annotated[int, Option("Seed of all random choices, including the split of the images.", COMPUTING)] = 42
    augment: Annotated[
        Augment | None,
        Option(
            "Augmentation of training images: none, crop, flip (crop and mirror), views (small crops in other colours, "
            "for features and maps), or deit (RandAugment, mixup, CutMix, label smoothing and stochastic depth).  "
            "[default: views for features, else crop]",
            TRAINING,
        ),
    ] = None
    evaluations: Annotated[int, Option("Number of validation passes during training.", TRAINING)] = 10
    # For methods that prune during training (`Meeting`): when the accuracies of trained and pruned network are equal.
    early_stop: Annotated[
        bool, Option("Stop when validation accuracy stops improving; only with --schedule constant.", TRAINING)
    ] = True
    teacher: Annotated[
        Teacher | None,
        Option(
            "Network whose outputs the model learns: the base, as it is (restricted) or trained on the target classes "
            "(finetuned), or none.  [default: the method's own]",
            TRAINING,
        ),
    ] = None
    teacher_weight: Annotated[
        float | None,
        Option(
            "Share of the teacher's outputs in the loss, from 0 to 1; labels, or a detector's own losses, have the "
            "rest.  [default: 0.9; 1 where the output is no classes]",
            TRAINING,
        ),
    ] = None
    teacher_temperature: Annotated[
        float, Option("Temperature of both softmaxes in the teacher's part of the loss.", TRAINING)
    ] = 2.0
    token_weight: Annotated[
        float | None,
        Option(
            "Weight of the squared error of the final tokens, relative to the square of the teacher's; 0 compares no "
            "tokens.  [default: the method's own]",
            TRAINING,
        ),
    ] = None

    @property
    def batch(self) -> int:
        """Images per optimiser step; the usual number before `fill`."""
        return self.batch_size or BATCH

    @property
    def has_teacher(self) -> bool:
        """Whether there is a training, and it has a teacher; only after `fill`."""
        return self.teacher not in (None, "none") and self.steps != 0

    def check(self) -> None:
        """Raise OptionError if a value is invalid."""
        for name, interval, hint in _INTERVALS:
            if (value := getattr(self, name)) is not None:
                check_number(f"--{name.replace('_', '-')}", value, interval, hint)
        for kind, value, allowed in (
            ("precision", self.precision, _PRECISIONS),
            ("augmentation", self.augment, (None, *AUGMENTS)),
            ("schedule", self.schedule, _SCHEDULES),
            ("teacher", self.teacher, (None, *_TEACHERS)),
        ):
            if value not in allowed:
                raise UnknownNameError(kind, str(value), [name for name in allowed if name])
        check_device_name(self.device)


TEACHER_WEIGHT = 0.9  # where there are labels
WARMUP = 0.1  # share of the steps, for gentle methods
BATCH, LEAST_BATCH = 256, 32  # images of a step: the usual number, and the least where few are varied
PASSES = 10  # over the training images, for methods whose paper gives no number of steps


def usual_steps(images: int, batch_size: int) -> int:
    """Count the steps of ten passes over the training images, for methods whose paper gives no number."""
    return max(round(PASSES * images / batch_size), 1)


def batch_of_few(images: int, parts: int = 1) -> int:
    """Choose the images of a step where few of them are varied: a pass is 16 steps, if these have 32 to 256 images.

    Args:
        parts: micro-batches of a step over all processes, of which each has an image or more.
    """
    batch = BATCH
    while batch > LEAST_BATCH and 16 * batch > images and batch // 2 % parts == 0:
        batch //= 2
    return batch


def fill(
    training: Training,
    *,
    gentle: bool,
    imitates_base: bool = False,
    teacher_weight: float = TEACHER_WEIGHT,
    augment: Augment = "crop",
) -> Training:
    """Replace each None by the method's default.

    docs/decisions/012-training.md has the reasons and the numbers.

    Args:
        gentle: training starts from weights that are nearly right; else the defaults are those published for Vulcan.
        imitates_base: the default teacher is the restricted base, final tokens included; else there is no teacher.
        teacher_weight: the default share of a teacher in the loss.
        augment: the default augmentation.
    """
    warmup, by_loss, tokens = training.warmup_steps, training.lr_by_loss, training.token_weight
    if warmup is None:
        warmup = round(WARMUP * (training.steps or 0)) if gentle else 0
    return replace(
        training,
        warmup_steps=warmup,
        lr_by_loss=gentle if by_loss is None else by_loss,
        teacher=training.teacher or ("restricted" if imitates_base else "none"),
        teacher_weight=teacher_weight if training.teacher_weight is None else training.teacher_weight,
        token_weight=float(imitates_base) if tokens is None else tokens,
        augment=training.augment or augment,
        batch_size=training.batch,
    )
