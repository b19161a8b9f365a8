"""Calibrate when a derived model calls an image `other`, and count how often it then does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from edgevit.data.rejection import count_rejected, foreign_images
from edgevit.data.task import Split, Task
from edgevit.errors import DataError
from edgevit.network.rejection import OTHER, calibrate_rule, check_share
from edgevit.progress import Progress
from edgevit.records.derivation import RejectedRecord
from edgevit.records.model import Rejection
from edgevit.train.passes import Passes


@dataclass(frozen=True)
class RejectionImages:
    """What to calibrate on, and to judge with, found before the work starts."""

    share: float
    validation: Split
    test: Split
    foreign_validation: Split
    foreign_test: Split


def find_rejection_images(share: float, task: Task, progress: Progress) -> RejectionImages:
    """Find the images, and refuse before hours of work what could not be held after them.

    Raises:
        OptionError: it is no share.
        DataError: too few validation images, one of the other classes' cannot be read, or a class is called `other`.
    """
    if OTHER in task.class_names:
        raise DataError(
            f"--reject calls images of no class {OTHER!r}, and a class has that name, so that nobody could tell which "
            "is meant; rename the class, or leave --reject out"
        )
    check_share(share, len(task.validation))
    validation, test = (foreign_images(task, part, task.class_names, progress) for part in ("validation", "test"))
    return RejectionImages(share, task.validation, task.test, validation, test)


def calibrate_rejection(
    network: nn.Module, columns: Sequence[int], found: RejectionImages, passes: Passes
) -> tuple[Rejection, dict[str, RejectedRecord]]:
    """Calibrate on the target classes' validation images, and on nothing else; count on both held-out parts.

    In fp32, as the model is exported. Every process does all of it.
    """
    alone = replace(passes, shared=False)

    def logits(split: Split) -> Tensor:
        found = [torch.empty(0, len(columns))]
        alone.run(network, split, lambda seen, _: found.append(seen[:, list(columns)].float().cpu()))
        return torch.cat(found)

    validation = logits(found.validation)
    rule = calibrate_rule(validation, found.share)
    counted = {
        "validation": count_rejected(
            rule.rejects, validation, found.validation.labels, logits(found.foreign_validation)
        ),
        "test": count_rejected(rule.rejects, logits(found.test), found.test.labels, logits(found.foreign_test)),
    }
    return rule, counted
