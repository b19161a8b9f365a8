"""derivation.json: how a model came to be, and how good it was found to be.

Schema history: 1  first version
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from edgevit.folder.model import READER, ClassLabel, Index, ModelSpec, Sha256, Size

SCHEMA = 1
DERIVATION = "derivation.json"

Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True)
class ImageCounts:
    """How many images are in which part."""

    train: Index
    validation: Index
    test: Index


@dataclass(frozen=True)
class DataRecord:
    """Which images a model was derived from: all that it takes to find them again, in the same parts."""

    data: str
    base_outputs: Size
    base_names: tuple[str, ...] | None
    validation_fraction: Fraction
    seed: Seed
    skip_bad_images: bool
    classes: tuple[ClassLabel, ...]
    images: ImageCounts
    fingerprint: Sha256
    skipped_images: int = 0
    unlabelled: dict[str, Any] | None = None


@dataclass(frozen=True)
class TrainingRecord:
    """What is shown of a training."""

    seed: Seed


@dataclass(frozen=True)
class BudgetRecord:
    """What was asked for, in which quantity, and what the model has of it."""

    quantity: Literal["macs", "params", "ms"]
    limit: float
    base: float
    asked: str
    reached: float | None = None  # None: a slice, which is as large as asked
    table: dict[str, Any] | None = None


@dataclass(frozen=True)
class ShapeRecord:
    """The shape policy."""

    name: str


@dataclass(frozen=True)
class RejectedRecord:
    """How many images of one part are called `other`."""

    images: Index
    other: Index
    right: Index
    foreign_images: Index
    foreign_other: Index


@dataclass(frozen=True)
class AccuracyRecord:
    """Top-1 on the test part."""

    top1: Share
    images: Index
    per_class: dict[str, Share | None] | None = None
    rejection: dict[str, RejectedRecord] | None = None  # by part


@dataclass(frozen=True)
class Accuracies:
    """Of the base and of what was made of it; None: not asked for, or a slice that was not measured."""

    base_full_head: AccuracyRecord | None
    base_restricted: AccuracyRecord | None
    base_finetuned: AccuracyRecord | None
    derived: AccuracyRecord | None


@dataclass(frozen=True)
class Versions:
    """Only that of edgevit is relied on; the file has others, too."""

    edgevit: str


@dataclass(frozen=True)
class Facts:
    """What every method tells in the same words; the file has each method's own, too."""

    steps: Index = 0
    kept_blocks: tuple[Index, ...] | None = None  # which of the base's blocks the model has; None: all
    reused: tuple[str, ...] = ()  # what was found in the cache
    kept_step: Index | None = None  # whose weights the model has; 0: those before training; None: the last
    accuracy_validation_before: Share | None = None  # top-1 of the weights before training, where the best are kept
    accuracy_validation_trained: Share | None = None  # of the best that training made of them

    def training_told(self) -> str:
        """How long the model was trained, and which of its states it is."""
        before, trained = self.accuracy_validation_before, self.accuracy_validation_trained
        if not self.steps or self.kept_step is None or before is None or trained is None:
            return f"{self.steps} steps"
        if self.kept_step:
            return f"{self.steps} steps, best after {self.kept_step}"
        return (
            f"closed-form weights, as {self.steps} steps of training did not help "
            f"({100 * trained:.1f} % of the validation images at best, {100 * before:.1f} % before)"
        )


@dataclass(frozen=True)
class FittedHead:
    """How the classifier of a base that had none came to be: see edgevit/derive/head.py."""

    ridge: float
    temperature: float  # what the outputs of the regression were multiplied by
    validation_accuracy: Share  # the mean over the classes
    validation_images: Index
    images_per_class: dict[str, Index]  # that it was fitted to

    def told(self) -> str:
        images, classes = sum(self.images_per_class.values()), len(self.images_per_class)
        return (
            f"a linear head fitted to {images} training images of {classes} classes, right on "
            f"{self.validation_accuracy:.1%} of {self.validation_images} validation images (mean over classes; "
            f"ridge {self.ridge:.2g}, temperature {self.temperature:.3g})"
        )


@dataclass(frozen=True)
class DerivationRecord:
    """What derivation.json says. Keys that are not here are in `as_read` alone, which is the whole file."""

    created: str  # UTC, ISO 8601
    base: str
    method: str
    config: dict[str, Any]  # the method's own
    training: TrainingRecord | None  # None: a slice that was not trained
    budget: BudgetRecord
    shape: ShapeRecord
    data: DataRecord | None  # None: a slice that needed no images
    accuracy: Accuracies
    versions: Versions
    seconds: dict[str, float]
    facts: Facts
    fitted_head: FittedHead | None = None  # None: the base had a classifier of its own
    job: Sha256 | None = None  # of the plan's job that this was; None: of no plan, or one of an older edgevit
    as_read: dict[str, Any] = field(default_factory=dict, repr=False)

    def fault(self, spec: ModelSpec) -> str | None:
        """What contradicts the model it lies beside, as the end of a sentence; None: nothing."""
        kept, base, derived = self.facts.kept_blocks, self.accuracy.base_restricted, self.accuracy.derived
        if kept is not None and (len(kept) != len(spec.blocks) or max(kept) >= len(spec.base.blocks)):
            return f"has {list(kept)} as facts.kept_blocks, which are not the model's"
        if derived is not None and (base is None or _classes(base) != _classes(derived)):
            return "has accuracies of the base and of the model on other classes"
        if derived is not None and spec.rejection is not None and derived.rejection is None:
            return "does not say how many images are called `other`, and the model calls some so"
        return None


def _classes(accuracy: AccuracyRecord) -> list[str]:
    """The classes that there were images of."""
    return sorted(name for name, top1 in (accuracy.per_class or {}).items() if top1 is not None)


def parse_data(content: Mapping[str, Any], where: str) -> DataRecord:
    """Check what a record says of the data, as `Task.record` gives it; `where` names it in messages.

    Raises:
        CheckpointError: a value is missing, or of another type.
    """
    return READER.checked(content, DataRecord, where)


def parse_derivation(content: dict[str, Any], where: str) -> DerivationRecord:
    """Check what derivation.json says, or what is about to be written there; `where` names it in messages.

    Raises:
        CheckpointError: a value is missing, or of another type.
    """
    return replace(READER.checked(content, DerivationRecord, where, schemas=(SCHEMA,)), as_read=content)


def read_derivation(folder: Path) -> DerivationRecord | None:
    """Read how a model came to be; None where the folder does not say, as that of a base or of a super-network.

    Raises:
        CheckpointError: the file is there and damaged, or of another schema.
    """
    file = folder / DERIVATION
    if not file.is_file():
        return None
    return parse_derivation(READER.json(file, dict[str, Any], schemas=(SCHEMA,)), str(file))
