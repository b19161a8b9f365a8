"""How many images are called `other`: of the target classes, wrongly, and of all other classes that the data holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor

from edgevit.data.examine import find_unreadable
from edgevit.data.splitting import Splitting
from edgevit.data.task import UNLABELLED, Split, Task
from edgevit.errors import DataError
from edgevit.progress import Progress, Silent
from edgevit.records.derivation import RejectedRecord
from edgevit.records.reading import Reading

FOREIGN_IMAGES = 2000  # of one part at most: a standard error of 1.1 points, however large the data


def foreign_images(
    task: Task, part: Literal["validation", "test"], known: Collection[str], progress: Progress | None = None
) -> Split:
    """Images of one part whose class is not `known` to the model, spread evenly over the classes.

    Raises:
        DataError: one cannot be read, and bad images are not to be skipped.
    """
    source, asked = task.test.source, task.arguments
    splitting = Splitting(source, asked["validation_fraction"], asked["seed"], asked["group_by"])
    found = []
    for name in source.class_names:
        if name not in known:
            with suppress(DataError):  # a class too small to be split, which nobody asked for
                found += splitting.parts(name)[part]
    split = Split(source, tuple(found), (UNLABELLED,) * len(found), task.test.preprocessing).subset(FOREIGN_IMAGES)
    if not source.files:
        return split
    reading = Reading.of(split.preprocessing)
    bad = find_unreadable(list(split.references), asked["skip_bad_images"], progress or Silent(), reading)
    good = tuple(r for r in split.references if r not in bad)
    return Split(source, good, (UNLABELLED,) * len(good), split.preprocessing)


def count_rejected(
    rejects: Callable[[Tensor], Tensor], logits: Tensor, labels: Sequence[int], foreign_logits: Tensor
) -> RejectedRecord:
    """Count what is called `other`; `rejects` gives bool [N] from the target classes' logits [N, C]."""
    other, right = rejects(logits), logits.argmax(1) == torch.as_tensor(labels)
    foreign = int(rejects(foreign_logits).sum())
    return RejectedRecord(len(logits), int(other.sum()), int((right & ~other).sum()), len(foreign_logits), foreign)
