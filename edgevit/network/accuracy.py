"""Top-1 accuracy on target classes, of anything that computes logits from images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgevit.network.output import Logits
from edgevit.records.answers import RightImages
from edgevit.records.derivation import AccuracyRecord


@dataclass(frozen=True)
class Accuracy:
    """Counts per target class. `restricted` takes the argmax over the target classes only, `full` over every output."""

    class_names: tuple[str, ...]
    total: tuple[int, ...]
    restricted: tuple[int, ...]
    full: tuple[int, ...]
    # Confusion matrix: a row per true class, a column per answer; None: not counted.
    answers: tuple[tuple[int, ...], ...] | None = None
    # Which images, in order, are classified correctly among the target classes; None: not recorded.
    which: RightImages | None = None

    @property
    def images(self) -> int:
        return sum(self.total)

    @property
    def top1(self) -> float:
        """Share of images that are classified correctly among the target classes."""
        return sum(self.restricted) / max(self.images, 1)

    @property
    def top1_full(self) -> float:
        """Share of images that are classified correctly among all outputs of the classifier."""
        return sum(self.full) / max(self.images, 1)

    def per_class(self) -> dict[str, float | None]:
        """Compute top-1 per target class; None for a class without images."""
        pairs = zip(self.class_names, self.restricted, self.total, strict=True)
        return {name: right / n if n else None for name, right, n in pairs}

    def worst(self) -> tuple[str, float]:
        """Find the class of the lowest accuracy, and that accuracy."""
        return min(((n, a) for n, a in self.per_class().items() if a is not None), key=lambda pair: pair[1])

    def confused(self) -> dict[str, dict[str, int]] | None:
        """Count the wrong answers per class by the class that is answered; pairs that never occur are omitted."""
        if self.answers is None:
            return None
        names = self.class_names
        wrong = {
            name: {names[j]: n for j, n in enumerate(row) if n and j != i}
            for i, (name, row) in enumerate(zip(names, self.answers, strict=True))
        }
        return {name: others for name, others in wrong.items() if others}

    def record(self) -> AccuracyRecord:
        images = dict(zip(self.class_names, self.total, strict=True))
        return AccuracyRecord(
            self.top1, self.images, self.per_class(), images_per_class=images, confused=self.confused()
        )


def count_correct(output: Logits, logits: Tensor, labels: Tensor) -> Tensor:
    """Count per class the images, those right among the targets, and those right among all outputs: [3, C].

    Shapes: logits [B, outputs]; labels [B] in 0..C-1.
    """
    columns, among_all = torch.as_tensor(output.columns, device=labels.device), Logits(tuple(range(logits.shape[1])))
    counts = torch.zeros(3, len(columns), dtype=torch.int64, device=labels.device)
    right, right_full = output.score(logits, labels), among_all.score(logits, columns[labels])
    for row, chosen in zip(counts, (torch.ones_like(right), right, right_full), strict=True):
        row.index_add_(0, labels, chosen.to(torch.int64))
    return counts


def count_answers(output: Logits, logits: Tensor, labels: Tensor) -> Tensor:
    """Count the confusion matrix among the targets: [C, C], a row for each true class.

    Shapes: as for `count_correct`.
    """
    classes = len(output.columns)
    pairs = labels * classes + output.answers(logits)
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def from_counts(
    class_names: Sequence[str], counts: Tensor, answers: Tensor | None = None, which: Tensor | None = None
) -> Accuracy:
    """Make an Accuracy of the results of `count_correct` and, if they are recorded, `count_answers` and `which`."""
    total, restricted, full = (tuple(int(n) for n in row) for row in counts.tolist())
    rows = None if answers is None else tuple(map(tuple, answers.tolist()))
    packed = (
        None if which is None else RightImages.of(map(bool, which.tolist()), dict(zip(class_names, total, strict=True)))
    )
    return Accuracy(tuple(class_names), total, restricted, full, rows, packed)


def measure_accuracy(
    predict: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    output: Logits,
    class_names: Sequence[str],
) -> Accuracy:
    """Classify every image once. `predict` turns images [B, C, H, W] into logits [B, outputs], on any device."""
    counts = torch.zeros(3, len(class_names), dtype=torch.int64)
    with torch.inference_mode():
        for images, labels in batches:
            counts += count_correct(output, predict(images).cpu().float(), labels.cpu())
    return from_counts(class_names, counts)
