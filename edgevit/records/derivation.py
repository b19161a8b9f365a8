"""derivation.json: how a model came to be, and how good it was found to be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from edgevit.records.answers import PartAnswers
from edgevit.records.class_names import ClassName
from edgevit.records.kinds import MORE, More, RecordKind, Versions
from edgevit.records.model import READER, BlockDims, Head, Index, ModelSpec, Sha256, Size, TargetClass

Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Part = Literal["train", "validation", "test"]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Number = int | float
JudgedPart = Literal["validation", "test"]  # that models are judged on
# Of a model against a budget that was measured: within 3 % under it, further under it, or over it.
Outcome = Literal["met", "under", "over"]


@dataclass(frozen=True)
class ImageCounts:
    """How many images are in which part."""

    train: Index
    validation: Index
    test: Index


@dataclass(frozen=True)
class UnlabelledRecord:
    """Further images, of any class, that a teacher was asked about."""

    data: str
    images: Index
    fingerprint: Sha256


@dataclass(frozen=True)
class DataRecord:
    """Which images a model was derived from: all that it takes to find them again, in the same parts."""

    data: str
    base_outputs: Size
    base_names: tuple[ClassName, ...] | None
    validation_fraction: Fraction
    seed: Seed
    skip_bad_images: bool
    classes: tuple[TargetClass, ...]
    images: ImageCounts
    fingerprint: Sha256
    skipped_images: int = 0
    group_by: str | None = None  # the rule by which images were split in groups; None: one by one
    # Hash of the images of each part whose images were read; empty: of an older edgevit, and so the next.
    contents: dict[Part, Sha256] = field(default_factory=dict)
    copies: dict[Part, Index] = field(default_factory=dict)  # of a part, images that the training part has, too
    unlabelled: UnlabelledRecord | None = None

    @property
    def images_sha256(self) -> str:
        """A hash that models judged on the same images share: of names, sizes and, but for old records, contents."""
        test = self.contents.get("test")
        return self.fingerprint if test is None else hashlib.sha256(f"{self.fingerprint} {test}".encode()).hexdigest()


@dataclass(frozen=True)
class TrainingRecord:
    """How a model was trained; `more` has the settings that only training itself reads."""

    seed: Seed
    steps: Index | None = None
    more: More = field(default_factory=dict)


@dataclass(frozen=True)
class StartRecord:
    """Which network was cut, where the base was trained on the classes first.

    Losses are cross-entropies in nats, each at the temperature of the softmax that is best for it.
    """

    network: Literal["base", "finetuned"]
    steps: Index  # of that training
    loss_validation_base: Number
    loss_validation_finetuned: Number

    def told(self) -> str:
        losses = f"from {self.loss_validation_base:.4g} to {self.loss_validation_finetuned:.4g}"
        taken = "after training" if self.network == "finetuned" else "as it is"
        return (
            f"cut from the base {taken}: {self.steps} steps on the classes took its loss on the validation images "
            f"{losses}"
        )


@dataclass(frozen=True)
class TableRecord:
    """Which table of costs milliseconds or millijoules were counted by."""

    measured_on: str
    sha256: Sha256


@dataclass(frozen=True)
class BudgetRecord:
    """What was asked for, in which quantity, and what the model has of it."""

    quantity: Literal["macs", "params", "ms", "mj"]
    limit: Number
    base: Number
    asked: str
    reached: Number | None = None  # None: a slice, which is as large as asked
    table: TableRecord | None = None
    # By its number in the base, each block that was to stay, and be no smaller; all others went. None: any might go.
    at_least: dict[str, BlockDims] | None = None
    at_least_embed: Size | None = None  # the width below which the embedding was not to fall; None: any


@dataclass(frozen=True)
class FigureRecord:
    """What was measured of one model, with its 95 % interval: ms of one inference, or mJ of one image."""

    value: Number
    low: Number | None  # None: too few repeats for an interval
    high: Number | None
    repeats: Size  # times that the model was measured, each beside the base


@dataclass(frozen=True)
class RoundRecord:
    """One plan on the way to a budget that was measured."""

    limit: Number  # that it was allocated with, by the corrected table
    predicted: Number  # by the corrected table
    measured: FigureRecord


@dataclass(frozen=True)
class MetRecord:
    """How a budget was met by measuring: see edgevit/latency. Figures are ratios to the base, times `base`."""

    quantity: Literal["ms", "mj"]
    budget: Number
    asked: str  # in the user's words
    outcome: Outcome  # of the verified figure
    verified: FigureRecord  # of this very model, after all rounds
    figure: str  # that its ratio to the base is of: p50; where other programs were busy, processor or mean; or energy
    base: Number  # what the base takes by the table
    rounds: tuple[RoundRecord, ...]
    factors: dict[str, Number]  # that correct the terms of the table
    table: TableRecord  # as it was measured
    where: dict[str, Any]  # board or processor, power mode, precision, batch
    ended: str | None  # why the rounds ended before the budget was met; None: it was
    seconds: dict[str, float]
    # What model and base took by the clock when this was verified: no ratio, so what slowed the machine is in both.
    clock: Number | None = None  # None: an older record, which does not say
    base_clock: Number | None = None
    # Of one of several budgets, all that was asked for and decides. None: the only budget, or an older edgevit's.
    request: dict[str, Any] | None = None

    @property
    def keeps(self) -> bool:
        """Whether the model is within its budget."""
        return self.outcome != "over"


@dataclass(frozen=True)
class ShapeRecord:
    """The shape policy; `more` has its multiples."""

    name: str
    more: More = field(default_factory=dict)


@dataclass(frozen=True)
class RejectedRecord:
    """How many images of one part are called `other`."""

    images: Index  # of the target classes
    other: Index  # of these called `other`
    right: Index  # of these called by their own name
    foreign_images: Index  # of classes that are no targets; 0: the data has none, so nothing is known of such images
    foreign_other: Index

    @property
    def share(self) -> float:
        """Of the target classes' images, those called `other`."""
        return self.other / max(self.images, 1)

    @property
    def foreign_share(self) -> float | None:
        """Of the other classes' images, those called `other`."""
        return self.foreign_other / self.foreign_images if self.foreign_images else None


@dataclass(frozen=True)
class AccuracyRecord:
    """Top-1 on the test part."""

    top1: Share
    images: Index
    per_class: dict[ClassName, Share | None] | None = None
    rejection: dict[str, RejectedRecord] | None = None  # by part
    images_per_class: dict[ClassName, Index] | None = None  # None: of an older edgevit, and so the next
    # Of each class, how many images are taken for which other.
    confused: dict[ClassName, dict[ClassName, Index]] | None = None


@dataclass(frozen=True)
class Accuracies:
    """Of the base and of what was made of it; None: not asked for, or a slice that was not measured."""

    base_full_head: AccuracyRecord | None
    base_restricted: AccuracyRecord | None
    base_finetuned: AccuracyRecord | None
    derived: AccuracyRecord | None


@dataclass(frozen=True)
class ValidationRecord:
    """What models are chosen by, so that nothing is chosen on the test part: images of the validation part."""

    images: Size
    base_restricted: Index  # of these, how many the base restricted to the classes classifies rightly
    derived: Index  # the same of the model
    base_finetuned: Index | None = None  # the same of the base after training; None: it was not, or an older edgevit's

    def __post_init__(self) -> None:
        if max(self.base_restricted, self.derived, self.base_finetuned or 0) > self.images:
            raise ValueError(f"more than {self.images} of {self.images} images are no share")


@dataclass(frozen=True)
class NeighbourRecord:
    """What another preprocessing would have given: images that the base would get right, and wrong, with it alone."""

    option: str
    gained: Index
    lost: Index


@dataclass(frozen=True)
class BaseCheckRecord:
    """How the base did on images of its classes."""

    images: Index
    right: Index
    neighbours: tuple[NeighbourRecord, ...]
    near_chance: bool


@dataclass(frozen=True)
class AssumptionsRecord:
    """What was taken for granted of the base, because nobody said it."""

    classes_from: str
    output_names: tuple[ClassName, ...] | None
    preprocessing_from: dict[str, str]
    base_check: BaseCheckRecord | None = None


@dataclass(frozen=True)
class Facts:
    """What every method tells in the same words; `more` has each method's own."""

    steps: Index = 0
    kept_blocks: tuple[Index, ...] | None = None  # which of the base's blocks the model has; None: all
    reused: tuple[str, ...] = ()  # what was found in the cache
    kept_step: Index | None = None  # whose weights the model has; 0: those before training; None: the last
    accuracy_validation_before: Share | None = None  # top-1 of the weights before training, where the best are kept
    accuracy_validation_trained: Share | None = None  # of the best that training made of them
    more: More = field(default_factory=dict)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Facts:
        """Sort what a method tells."""
        common = {f.name for f in fields(cls)} - {MORE}
        own: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
        return cls(
            **{name: value for name, value in own.items() if name in common},
            more={name: value for name, value in told.items() if name not in common},
        )

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
    """How the classifier of a base that had none came to be: see edgevit/derivation/solve/head.py."""

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


@dataclass(frozen=True, kw_only=True)
class DerivationRecord:
    """What derivation.json says."""

    created: str  # UTC, ISO 8601
    base: str
    method: str
    config: dict[str, Any]  # the method's own
    training: TrainingRecord | None  # None: a slice that was not trained
    budget: BudgetRecord
    shape: ShapeRecord
    head: Head
    data: DataRecord | None  # None: a slice that needed no images
    accuracy: Accuracies
    versions: Versions
    seconds: dict[str, float]
    facts: Facts
    processes: Index = 1  # that trained side by side
    assumptions: AssumptionsRecord | None = None  # None: a slice without images, or of an older edgevit
    start: StartRecord | None = None  # None: the base was cut as it is, and nothing else was asked for
    # Of the base, as the third baseline and where it was cut after it; None: neither, or an older edgevit's.
    base_training: TrainingRecord | None = None
    fitted_head: FittedHead | None = None  # None: the base had a classifier of its own
    met: MetRecord | None = None  # None: the budget was not measured
    validation: ValidationRecord | None = None  # None: a slice without images, or of an older edgevit
    # Of model.safetensors, once it is written. None: it is not written yet.
    weights_sha256: Sha256 | None = field(default=None, compare=False)
    job: Sha256 | None = None  # of the job that this was; None: it was in no jobs file, or an older edgevit's
    # By part, which of its images are classified rightly; None: a slice without images, or of an older edgevit.
    answers: dict[JudgedPart, PartAnswers] | None = None

    def way_told(self) -> str:
        """By what the model came of its base, such as `base trained, then forge`."""
        trained = self.start is not None and self.start.network == "finetuned"
        return ", then ".join([*["base trained"] * trained, self.method])

    def training_told(self) -> str:
        """How long the model was trained, and what it was cut from where that is no base as it is."""
        told = self.facts.training_told()
        return told if self.start is None else f"{self.start.told()}; then {told}"

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


DERIVATION_KIND = RecordKind("derivation", DerivationRecord, READER)
