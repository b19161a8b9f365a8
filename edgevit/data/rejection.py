"""Count the images that are rejected as `other`: of the target classes (wrongly), and of other classes of the data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor

from edgevit.data.examine import find_unreadable
from edgevit.data.sources import Reference
from edgevit.data.splitting import Splitting
from edgevit.data.task import UNLABELLED, Split, Task
from edgevit.errors import DataError
from edgevit.progress import Progress, Silent
from edgevit.records.derivation import RejectedRecord
from edgevit.records.reading import Reading

_FOREIGN_IMAGES = 2000  # most images of other classes from one part: a standard error of 1.1 points


def foreign_images(
    task: Task, part: Literal["validation", "test"], model_classes: Collection[str], progress: Progress | None = None
) -> Split:
    """List images of one part whose class is not among the model's, spread evenly over the classes.

    Raises:
        DataError: one cannot be read, and bad images are not to be skipped.
    """
    source, arguments = task.test.source, task.arguments
    splitting = Splitting(source, arguments["validation_fraction"], arguments["seed"], arguments["group_by"])
    references: list[Reference] = []
    for name in source.class_names:
        if name not in model_classes:
            with suppress(DataError):  # a class too small to be split
                references += splitting.parts(name)[part]
    labels = (UNLABELLED,) * len(references)
    split = Split(source, tuple(references), labels, task.test.preprocessing).subset(_FOREIGN_IMAGES)
    if not source.files:
        return split
    reading = Reading.of(split.preprocessing)
    bad = find_unreadable(list(split.references), arguments["skip_bad_images"], progress or Silent(), reading)
    good = tuple(r for r in split.references if r not in bad)
    return Split(source, good, (UNLABELLED,) * len(good), split.preprocessing)


def count_rejected(
    rejects: Callable[[Tensor], Tensor], logits: Tensor, labels: Sequence[int], foreign_logits: Tensor
) -> RejectedRecord:
    """Count rejected images; `rejects` gives bool [N] from the target classes' logits [N, C]."""
    rejected, right = rejects(logits), logits.argmax(1) == torch.as_tensor(labels)
    foreign = int(rejects(foreign_logits).sum())
    right_answers = int((right & ~rejected).sum())
    return RejectedRecord(len(logits), int(rejected.sum()), right_answers, len(foreign_logits), foreign)
