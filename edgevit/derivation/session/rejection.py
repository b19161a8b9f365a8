"""Calibrate when a derived model rejects an image as `other`, and count how often it does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgevit.data.rejection import count_rejected, foreign_images
from edgevit.data.task import Split, Task
from edgevit.errors import DataError
from edgevit.network.network import Network
from edgevit.network.prediction import OTHER, calibrate_rule, check_share
from edgevit.progress import Progress
from edgevit.records.derivation import RejectedRecord
from edgevit.records.model import Rejection
from edgevit.train.passes import Passes


@dataclass(frozen=True)
class RejectionImages:
    """Images to calibrate with, and to evaluate on."""

    share: float
    validation: Split
    test: Split
    foreign_validation: Split
    foreign_test: Split


def find_rejection_images(share: float, task: Task, progress: Progress) -> RejectionImages:
    """Find the images before the work starts, and refuse a share that cannot be calibrated with them.

    Raises:
        OptionError: the share is out of range.
        DataError: too few validation images, an unreadable image of another class, or a class named `other`.
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
    network: Network, images: RejectionImages, passes: Passes
) -> tuple[Rejection, dict[str, RejectedRecord]]:
    """Calibrate on the target classes' validation images alone; count on both held-out parts.

    Works in fp32, as the model is exported, and in every process.
    """
    alone = replace(passes, shared=False)

    def logits(split: Split) -> Tensor:
        batches = [torch.empty(0, len(network.columns))]
        alone.run(network, split, lambda outputs, _: batches.append(network.output.of(outputs).float().cpu()))
        return torch.cat(batches)

    validation = logits(images.validation)
    rule = calibrate_rule(validation, images.share)
    counted = {
        "validation": count_rejected(
            rule.rejects, validation, images.validation.labels, logits(images.foreign_validation)
        ),
        "test": count_rejected(rule.rejects, logits(images.test), images.test.labels, logits(images.foreign_test)),
    }
    return rule, counted
