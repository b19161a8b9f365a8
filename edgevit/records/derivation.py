"""derivation.json: how a model was derived, and its accuracy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from edgevit.records.answers import PartAnswers
from edgevit.records.class_names import ClassName
from edgevit.records.kinds import MORE, More, RecordKind, Versions
from edgevit.records.model import (
    READER,
    BlockDims,
    Head,
    Index,
    ModelSpec,
    Sha256,
    Size,
    TargetClass,
    TokenOutput,
)

Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
_Part = Literal["train", "validation", "test"]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
_Number = int | float
JudgedPart = Literal["validation", "test"]  # parts on which models are evaluated
# How a model compares with a measured budget: at most 3 % under it, further under it, or over it.
Outcome = Literal["met", "under", "over"]


@dataclass(frozen=True)
class ImageCounts:
    """The number of images in each part."""

    train: Index
    validation: Index
    test: Index


@dataclass(frozen=True)
class UnlabelledRecord:
    """Further images, of any class, that the teacher labelled."""

    data: str
    images: Index
    fingerprint: Sha256


@dataclass(frozen=True)
class DataRecord:
    """The images that a model was derived from: enough to open them again, in the same parts."""

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
    group_by: str | None = None  # the rule by which images were grouped before the split; None: not grouped
    contents: dict[_Part, Sha256] = field(default_factory=dict)  # hash of the images of each part that was read
    # Number of images of a part that the training part contains, too, by part.
    copies: dict[_Part, Index] = field(default_factory=dict)
    unlabelled: UnlabelledRecord | None = None
    showing: tuple[ClassName, ...] | None = None  # classes of objects that a detector is to find; None: all
    by_class: bool = False  # whether images of no `classes` were split class by class, for probes of their features

    @property
    def images_sha256(self) -> str:
        """A hash of the test part: of names and sizes and, where its images were read, of their contents."""
        test = self.contents.get("test")
        return self.fingerprint if test is None else hashlib.sha256(f"{self.fingerprint} {test}".encode()).hexdigest()


@dataclass(frozen=True)
class TrainingRecord:
    """How a model was trained; `more` contains the settings that only training reads."""

    seed: Seed
    steps: Index | None = None
    more: More = field(default_factory=dict)


@dataclass(frozen=True)
class StartRecord:
    """Whether the base or its fine-tuned copy was pruned.

    Losses are cross-entropies in nats, each at its optimal softmax temperature; of a detector they are 1 minus the
    average precision of boxes.
    """

    network: Literal["base", "finetuned"]
    steps: Index  # number of steps of the fine-tuning
    loss_validation_base: _Number
    loss_validation_finetuned: _Number

    def format(self) -> str:
        """Describe it as the end of a sentence."""
        state = "after training" if self.network == "finetuned" else "as it is"
        return f"pruned from the base {state}: {self._losses()}"

    def format_base(self) -> str:
        """Describe how the base itself was made, as a sentence."""
        state = "It was trained" if self.network == "finetuned" else "It is as it was before training"
        return f"{state}: {self._losses()}"

    def _losses(self) -> str:
        return (
            f"{self.steps} steps on the classes changed its validation loss "
            f"from {self.loss_validation_base:.4g} to {self.loss_validation_finetuned:.4g}"
        )


@dataclass(frozen=True)
class TableRecord:
    """The table by which milliseconds or millijoules were computed."""

    measured_on: str
    sha256: Sha256


@dataclass(frozen=True)
class BudgetRecord:
    """The requested budget, and the cost of the model in its quantity."""

    quantity: Literal["macs", "params", "ms", "mj"]
    limit: _Number
    base: _Number
    option: str  # the budget as the user gave it, such as "rate 0.5"
    reached: _Number | None = None  # cost of the derived model; None: of a slice, whose cost is the limit
    table: TableRecord | None = None
    # Smallest sizes by the number of the block in the base; blocks not listed were removed. None: no minimum.
    at_least: dict[str, BlockDims] | None = None
    at_least_embed: Size | None = None  # minimum width of the embedding; None: no minimum


@dataclass(frozen=True)
class FigureRecord:
    """A measurement of one model, with its 95 % interval: ms of one inference, or mJ of one image."""

    value: _Number
    low: _Number | None  # lower end of the 95 % interval; None: too few repeats for an interval
    high: _Number | None
    repeats: Size  # number of measurements of the model, each in turn with the base


@dataclass(frozen=True)
class RoundRecord:
    """One plan of the search for a measured budget."""

    limit: _Number  # limit of the allocation, by the corrected table
    predicted: _Number  # cost of the plan by the corrected table
    measured: FigureRecord


@dataclass(frozen=True)
class MetRecord:
    """The search for a measured budget: see edgevit/latency. Figures are ratios to the base, times `base`."""

    quantity: Literal["ms", "mj"]
    budget: _Number
    option: str  # the budget as the user gave it, such as "ms 5"
    outcome: Outcome  # how the verified figure compares with the budget
    verified: FigureRecord  # measurement of the final model, after all rounds
    figure: str  # the figure whose ratio is taken: p50 or energy; processor or mean where other programs were busy
    base: _Number  # cost of the base by the table, in ms or mJ
    rounds: tuple[RoundRecord, ...]
    factors: dict[str, _Number]  # factors by which the table's terms were corrected, by term
    table: TableRecord  # the table before any correction
    conditions: dict[str, Any]  # board or processor, power mode, precision and batch of the measurements
    ended: str | None  # why the rounds ended before the budget was met; None: it was met
    seconds: dict[str, float]
    # Measured values of model and base at verification, not ratios: both include what slowed the machine.
    clock: _Number | None = None
    base_clock: _Number | None = None
    # Options that determine the result, if this is one of several budgets; None: the only budget.
    request: dict[str, Any] | None = None

    @property
    def keeps(self) -> bool:
        """Whether the model is within its budget."""
        return self.outcome != "over"


@dataclass(frozen=True)
class ShapeRecord:
    """The shape policy; `more` contains its multiples."""

    name: str
    more: More = field(default_factory=dict)


@dataclass(frozen=True)
class RejectedRecord:
    """How many images of one part are classified as `other`."""

    images: Index  # number of images of the target classes
    other: Index  # number of the target classes' images that are classified as `other`
    right: Index  # number of the target classes' images that are classified correctly
    foreign_images: Index  # number of images of other classes; 0: the data contains none
    foreign_other: Index  # number of the other classes' images that are classified as `other`

    @property
    def share(self) -> float:
        """Share of the target classes' images that is classified as `other`."""
        return self.other / max(self.images, 1)

    @property
    def foreign_share(self) -> float | None:
        """Share of the other classes' images that is classified as `other`."""
        return self.foreign_other / self.foreign_images if self.foreign_images else None


@dataclass(frozen=True)
class AccuracyRecord:
    """Top-1 on the test part."""

    top1: Share
    images: Index
    per_class: dict[ClassName, Share | None] | None = None
    # Number of images classified as `other`, by part; None: the model has no such rule.
    rejection: dict[str, RejectedRecord] | None = None
    images_per_class: dict[ClassName, Index] | None = None
    # By class and predicted class, the number of wrong predictions.
    confused: dict[ClassName, dict[ClassName, Index]] | None = None


@dataclass(frozen=True)
class SimilarityRecord:
    """How far the features of a model are those of its base on the test part, without labels."""

    images: Index
    cosine: Share  # mean over the images of the cosine between both features; 0 where the mean is negative
    # Share of each image's ten nearest images by the base that are nearest by the model; None: too few.
    same_neighbours: Share | None

    def format(self) -> str:
        """Describe it as the end of a sentence."""
        text = f"a cosine of {self.cosine:.4f} to the base's on {self.images} test images"
        if self.same_neighbours is None:
            return text
        return f"{text}, and {self.same_neighbours:.1%} of an image's ten nearest images are the base's"


@dataclass(frozen=True)
class Accuracies:
    """Accuracies of the base and of the model; None: not requested, or a slice that was not evaluated."""

    base_full_head: AccuracyRecord | None
    base_restricted: AccuracyRecord | None
    base_finetuned: AccuracyRecord | None
    derived: AccuracyRecord | None


@dataclass(frozen=True)
class ValidationRecord:
    """Correct predictions on the validation part, by which models are selected, so that the test part is not used."""

    images: Size
    base_restricted: Index  # number of images that the base, restricted to the classes, classifies correctly
    derived: Index  # number of images that the derived model classifies correctly
    # Number of images that the fine-tuned base classifies correctly; None: it was not fine-tuned.
    base_finetuned: Index | None = None

    def __post_init__(self) -> None:
        if max(self.base_restricted, self.derived, self.base_finetuned or 0) > self.images:
            raise ValueError(f"more than {self.images} of {self.images} images are classified correctly")


@dataclass(frozen=True)
class NeighbourRecord:
    """Images that the base classifies correctly with another preprocessing only, and with the used one only."""

    option: str
    gained: Index
    lost: Index


@dataclass(frozen=True)
class BaseCheckRecord:
    """Accuracy of the base on images of its classes."""

    images: Index
    right: Index
    neighbours: tuple[NeighbourRecord, ...]
    near_chance: bool


@dataclass(frozen=True)
class AssumptionsRecord:
    """Assumptions about the base that no option confirms."""

    classes_from: str
    output_names: tuple[ClassName, ...] | None
    preprocessing_from: dict[str, str]
    base_check: BaseCheckRecord | None = None
    backbone_alone: bool = False  # whether what follows the base's backbone was not trained before


@dataclass(frozen=True)
class Facts:
    """Facts that every method reports; `more` contains those of one method."""

    steps: Index = 0
    kept_blocks: tuple[Index, ...] | None = None  # numbers of the base's blocks that the model has; None: all
    reused: tuple[str, ...] = ()  # kinds of results that were taken from the cache
    # Training step whose weights the model has; 0: the weights before training; None: the last step.
    kept_step: Index | None = None
    # Top-1 on the validation part before training; None: the best state is not selected.
    accuracy_validation_before: Share | None = None
    # Top-1 on the validation part of the best trained state; None: it is not selected.
    accuracy_validation_trained: Share | None = None
    more: More = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Facts:
        """Separate the common facts of a method from its own."""
        common = {f.name for f in fields(cls)} - {MORE}
        tuples: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()
        }
        return cls(
            **{name: value for name, value in tuples.items() if name in common},
            more={name: value for name, value in facts.items() if name not in common},
        )

    def format_training(self) -> str:
        """Describe the length of the training and the state that was kept."""
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
class MapRecord:
    """How near the maps of a derived model are to those of its base, on held-out images."""

    images: Index
    # Mean over pixels and images of the divergence from the base, as network/output.py defines it.
    divergence: Annotated[float, Field(ge=0)]
    # Score with the base's maps as targets: IoU of foreground, share of right pixels, or overlap of values.
    agreement: Share
    error: Annotated[float, Field(ge=0)]  # mean absolute error of values or of probabilities

    def format(self) -> str:
        """Describe it as a part of a sentence."""
        return (
            f"{self.agreement:.1%} agreement with the base's on {self.images} test images (mean absolute error "
            f"{self.error:.3g})"
        )


@dataclass(frozen=True)
class MapScore:
    """How well maps match their targets; score and error are means over images."""

    # Score of the module's own function; else IoU of foreground, share of right pixels, or overlap of values.
    score: float
    # Mean absolute error of values, or of the probability of foreground; None: maps of another kind.
    error: float | None
    own: bool = False  # whether the score is that of the module's own function
    # Mean IoU of the classes that occur in targets or maps, over the pixels of all images; None: maps of another kind,
    # or judged by their own function.
    mean_iou: float | None = None
    targets_sha256: Sha256 | None = None  # hash of the files of the targets; None: an older edgevit did not record it


@dataclass(frozen=True)
class PrecisionRecord:
    """The average precision of what a detector finds, by COCO's rules: the mean over the classes."""

    ap: Share  # mean over the overlaps 0.5, 0.55, ..., 0.95
    ap50: Share  # average precision at the overlap 0.5
    per_class: dict[str, Share | None]  # `ap` of each class; None: the images have no object of it


@dataclass(frozen=True)
class DetectionRecord:
    """What a detector finds in images with annotations."""

    images: Index
    objects: Index  # number of annotated objects, without regions that stand for many
    boxes: PrecisionRecord
    masks: PrecisionRecord | None = None  # precision of the masks; None: the detector finds no masks

    def format(self) -> str:
        """Describe it as a part of a sentence."""
        named = {"boxes": self.boxes, "masks": self.masks}
        return ", ".join(f"{name} {s.ap:.1%} (at 0.5: {s.ap50:.1%})" for name, s in named.items() if s is not None)


@dataclass(frozen=True)
class BoxesRecord:
    """How near the pyramid of a derived detector is to its base's on held-out images, and what both find."""

    images: Index
    # Squared, in units of each level's variance, the mean over the levels; to the fine-tuned base if that was cut.
    error: Annotated[float, Field(ge=0)]
    base: DetectionRecord | None = None  # what the base finds; None: the images have no annotations
    derived: DetectionRecord | None = None
    base_finetuned: DetectionRecord | None = None  # what the fine-tuned base finds; None: the base was not trained

    def format(self) -> str:
        """Describe it as a part of a sentence."""
        near = f"a squared error of {self.error:.2%} of the pyramid's variance on {self.images} test images"
        if self.base is None or self.derived is None:
            return near
        tuned = "" if self.base_finetuned is None else f", the fine-tuned base's of {self.base_finetuned.format()}"
        return f"{near}; average precision of {self.derived.format()}, the base's of {self.base.format()}{tuned}"


@dataclass(frozen=True)
class LastBlocks:
    """A head of class token and mean of the patches after each of several last blocks, as it was compared."""

    blocks: Size
    accuracy: Share  # in cross-validation, as that of the other heads
    error: Annotated[float, Field(ge=0)]  # standard error of the difference to the better of the other heads
    is_chosen: bool  # whether it is better by more than that


@dataclass(frozen=True)
class HeadInput:
    """What a fitted head reads, and the accuracies in cross-validation by which that was chosen."""

    tokens: TokenOutput | None  # tokens that the head reads; None: those that timm pools
    # Accuracy of a head on timm's pooled tokens: cross-validated on training images.
    pooled: Share
    class_and_mean: Share  # accuracy of a head on the class token and the mean of the patches, measured in the same way
    last: LastBlocks | None = None  # the head of several blocks; None: it was not compared

    def format(self) -> str:
        """Describe it as a part of a sentence."""
        shares = {"what timm pools": self.pooled, "the class token and the mean of the patches": self.class_and_mean}
        (pooled, of_pooled), (both, of_both) = shares.items()
        if self.last is None:
            chosen, other = (pooled, both) if self.tokens is None else (both, pooled)
            return f"of {chosen} ({shares[chosen]:.1%} in cross-validation, {shares[other]:.1%} of {other})"
        last, error = self.last, f"standard error of the difference {self.last.error:.1%}"
        if last.is_chosen:
            return (
                f"of {both} after each of the last {last.blocks} blocks ({last.accuracy:.1%} in cross-validation, "
                f"{of_both:.1%} after the last alone, {of_pooled:.1%} of {pooled}; {error}; for it all blocks and "
                "tokens stay)"
            )
        chosen, other = (pooled, both) if self.tokens is None else (both, pooled)
        return (
            f"of {chosen} ({shares[chosen]:.1%} in cross-validation, {shares[other]:.1%} of {other}, "
            f"{last.accuracy:.1%} of {both} after each of the last {last.blocks} blocks, {error})"
        )


@dataclass(frozen=True)
class FittedHead:
    """The classifier that was fitted to a base without one: see edgevit/derivation/solve/head.py."""

    ridge: float
    temperature: float  # factor by which the outputs of the regression are multiplied
    validation_accuracy: Share  # top-1 on the validation images
    validation_images: Index
    images_per_class: dict[str, Index]  # number of training images of each class
    reads: HeadInput | None = None  # what the head reads; None: timm's pooled tokens, as there was no choice

    def format(self) -> str:
        """Describe it as a part of a sentence."""
        images, classes = sum(self.images_per_class.values()), len(self.images_per_class)
        reads = "" if self.reads is None else f" {self.reads.format()}"
        return (
            f"a linear head{reads} fitted to {images} training images of {classes} classes, correct on "
            f"{self.validation_accuracy:.1%} of {self.validation_images} validation images "
            f"(ridge {self.ridge:.2g}, temperature {self.temperature:.3g})"
        )


@dataclass(frozen=True, kw_only=True)
class DerivationRecord:
    """The content of derivation.json."""

    created: str  # time of the derivation as ISO 8601, UTC
    base: str
    method: str
    config: dict[str, Any]  # all options of the method
    training: TrainingRecord | None  # settings of the training; None: a slice that was not trained
    budget: BudgetRecord
    shape: ShapeRecord
    head: Head
    data: DataRecord | None  # the images; None: a slice that needed no images
    accuracy: Accuracies
    versions: Versions
    seconds: dict[str, float]
    facts: Facts
    processes: Index = 1  # number of processes of a distributed training; 1: it was not distributed
    assumptions: AssumptionsRecord | None = None  # assumptions about the base; None: a slice without images
    # Comparison of the base with its fine-tuned copy; None: the base was pruned as it is, without one.
    start: StartRecord | None = None
    base_training: TrainingRecord | None = None  # settings of the base's fine-tuning; None: the base was not fine-tuned
    fitted_head: FittedHead | None = None  # head that was fitted to the base; None: the base has a classifier
    met: MetRecord | None = None  # the search for a measured budget; None: the budget was not measured
    # Correct predictions on the validation part; None: a slice without images.
    validation: ValidationRecord | None = None
    # Hash of model.safetensors; None: it is not written yet.
    weights_sha256: Sha256 | None = field(default=None, compare=False)
    job: Sha256 | None = None  # hash of the job in a jobs file; None: the derivation is not from a jobs file
    # Which images are classified correctly, by part; None: a slice without images.
    answers: dict[JudgedPart, PartAnswers] | None = None
    # Likeness of the model's features to the base's; None: the model puts out no features.
    similarity: SimilarityRecord | None = None
    map: MapRecord | None = None  # likeness of the model's maps to the base's; None: the model puts out no maps
    boxes: BoxesRecord | None = None  # comparison of a detector with its base; None: the model is no detector

    def format_method(self) -> str:
        """Name the method, after the fine-tuning of the base if it was pruned after it."""
        trained = self.start is not None and self.start.network == "finetuned"
        return ", then ".join([*["base trained"] * trained, self.method])

    def format_training(self) -> str:
        """Describe the training, after that of the base if it was compared."""
        training = self.facts.format_training()
        return training if self.start is None else f"{self.start.format()}; then {training}"

    def fault(self, spec: ModelSpec) -> str | None:
        """Describe a contradiction to the model in the same folder, as the end of a sentence; None: there is none."""
        numbers, base, derived = self.facts.kept_blocks, self.accuracy.base_restricted, self.accuracy.derived
        if numbers is not None and (len(numbers) != len(spec.blocks) or max(numbers) >= len(spec.base.blocks)):
            return f"has {list(numbers)} as facts.kept_blocks, which are not the model's"
        if derived is not None and (base is None or _classes(base) != _classes(derived)):
            return "has accuracies of the base and of the model on different classes"
        if derived is not None and spec.rejection is not None and derived.rejection is None:
            return "does not state how many images are classified as `other`, and the model has such a rule"
        return None


def _classes(accuracy: AccuracyRecord) -> list[str]:
    """The classes that had images."""
    return sorted(name for name, top1 in (accuracy.per_class or {}).items() if top1 is not None)


DERIVATION_KIND = RecordKind("derivation", DerivationRecord, READER)
