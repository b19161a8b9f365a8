"""sweep.json: the options of a sweep, and the result at each rate.

Classifiers are judged by their answers, and features by those of the probes fitted to them. Without labels, features
and maps are judged by how like the base's they are, and maps by masks where there are any; detectors by the average
precision of their boxes, or without annotations by how near their pyramid is to the base's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from edgevit.data.pairs import Loss, RightCount, loss_of, recalled_text
from edgevit.errors import SweepError
from edgevit.records.answers import RightImages
from edgevit.records.belonging import weights_fault
from edgevit.records.derivation import (
    BoxesRecord,
    JudgedPart,
    MapRecord,
    MapScore,
    Share,
    SimilarityRecord,
    StartRecord,
)
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind, Versions
from edgevit.records.model import Count, Index, Sha256
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import SWEEP
from edgevit.records.writing import write_whole, writing

RECORD = SWEEP
BASE = "base"  # the unpruned base's folder, and its name in tables
PARTS: tuple[JudgedPart, ...] = ("validation", "test")
RATES = (0.5, 0.7, 0.8, 0.9, 0.95)
# Without labels no test says which model is good enough. These likenesses only decide which one the next command names.
NEAR_FEATURES, NEAR_OTHERS = 0.5, 0.9
_READER = Reader(SweepError, hint="remove it to sweep again: models that are there stay")


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one image on this machine, measured in turns with the base."""

    figure: str  # "p50"; or "mean", the only one that can be judged where other programs were busy
    ms: Annotated[float, Field(gt=0)]
    ratio: float  # latency over the base's
    low: float | None  # lower end of the ratio's 95 % interval; None: there is no interval
    high: float | None


class OnImages:
    """Right answers on images of the sweep's part, and which they are on either part."""

    # Number of images that are right among the target classes; None: there are no labels.
    right: int | None
    images: int
    judged: dict[JudgedPart, RightImages] | None  # which images are classified rightly, by part; None: not recorded

    def __post_init__(self) -> None:
        if self.right is not None and self.right > self.images:
            raise ValueError(f"{self.right} of {self.images} images are no share")

    @property
    def top1(self) -> float:
        assert self.right is not None, "else models are judged by their likeness"
        return self.right / max(self.images, 1)

    def on(self, part: JudgedPart) -> RightCount | None:
        """Right answers of the model on this part; None: not recorded."""
        return None if self.judged is None else RightCount.of(self.judged[part])


@dataclass(frozen=True)
class SweepPoint(OnImages):
    """One model: a folder beside sweep.json."""

    folder: str
    rate: float | None  # removed share of the base's MACs; None: the base, or a ready-made model
    right: Index | None
    images: Index
    macs: Count
    params: Count
    latency: Latency | None = None  # latency with its ratio to the base's; None: not measured yet
    judged: dict[JudgedPart, RightImages] | None = None
    weights_sha256: Sha256 | None = None  # hash of the judged model's weights; None: not recorded
    # By part, which images are classified rightly by each probe of the features; the first is in `judged`, too.
    probes: dict[str, dict[JudgedPart, RightImages]] | None = None
    # Likeness of the model's features to the base's; None: it is the base, or has other outputs.
    similarity: SimilarityRecord | None = None
    # Likeness of the model's map to the base's; None: it is the base, or has other outputs.
    map: MapRecord | None = None
    targets: MapScore | None = None  # score of its maps on test images; None: the data has no masks, or others
    # What the detector and its base find, and how near its pyramid is to the base's; None: it has other outputs.
    boxes: BoxesRecord | None = None

    @property
    def likeness(self) -> Share | None:
        """Agreement of its outputs with the base's; None: not measured.

        That of maps, the share of equal neighbours, or the share of the base's average precision of boxes; without
        annotations, the share of the pyramid's variance that is right.
        """
        if self.rate is None:
            return 1.0
        if self.map is not None:
            return self.map.agreement
        if self.boxes is not None:
            base, derived = self.boxes.base, self.boxes.derived
            if base is None or derived is None or not base.boxes.ap:
                return max(1 - self.boxes.error, 0.0)
            return min(derived.boxes.ap / base.boxes.ap, 1.0)
        return None if self.similarity is None else self.similarity.same_neighbours

    def is_of(self, model: ModelFolder) -> bool:
        """Whether the model in its folder, if there is one, is the one that was judged.

        Raises:
            CheckpointError: the folder holds a model that cannot be read.
        """
        if self.weights_sha256 is None or not model.is_model:
            return True
        return weights_fault(Path(RECORD), self.weights_sha256, model.path, model.weights_sha256()) is None


@dataclass(frozen=True)
class FinetunedBase(OnImages):
    """The base after training on the classes; `start` says whether models are cut from it. No folder holds it."""

    right: Index
    images: Index
    start: StartRecord
    judged: dict[JudgedPart, RightImages] | None = None


@dataclass(frozen=True)
class Sweep:
    """What sweep.json says."""

    request: dict[str, Any]  # the options that must be the same to continue the sweep
    part: JudgedPart  # part of the data on which the models are judged
    created: str
    versions: Versions
    points: tuple[SweepPoint, ...] = ()  # the base first, then by rate
    left_out: tuple[str, ...] = ()  # rates that no model could be derived at, and why
    threads: int | None = None  # number of threads when latency is measured; None: all cores
    # The fine-tuned base; None: the base was cut as it is, and no fine-tuned one was requested.
    finetuned: FinetunedBase | None = None
    fingerprint: Sha256 | None = None  # hash of the images; None: nothing is judged yet
    ready_made: tuple[SweepPoint, ...] = ()  # ONNX files of --beside, each in the folder of its name without .onnx

    @property
    def base(self) -> SweepPoint | None:
        return next((point for point in self.points if point.rate is None), None)

    @property
    def derived(self) -> list[SweepPoint]:
        return [point for point in self.points if point.rate is not None]

    @property
    def reference(self) -> SweepPoint | FinetunedBase | None:
        """The network to compare with: the base, or the trained base if models are cut from it and it is better."""
        base, finetuned = self.base, self.finetuned
        if base and finetuned and finetuned.start.network == "finetuned" and finetuned.top1 > base.top1:
            return finetuned
        return base

    def loss(self, point: SweepPoint, other: SweepPoint | None = None) -> Loss:
        """What a model loses against another one or `reference`, on the images of `part`."""
        reference = other or self.reference
        assert reference is not None, "the base is judged before its models"
        model, base = (o.on(self.part) or RightCount(o.right or 0, o.images) for o in (point, reference))
        return loss_of(model, base)

    def outdoes(self, point: SweepPoint, other: SweepPoint) -> bool:
        """Whether a model is not slower than another one, and what it loses against that may be chance."""
        if point.latency is None or other.latency is None or point.latency.ratio > other.latency.ratio:
            return False
        return self.loss(point, other).may_be_chance

    @property
    def output(self) -> str:
        """What the models put out, as the option says it."""
        output: str = self.request.get("output", "classes")
        return output

    @property
    def is_of_features(self) -> bool:
        return self.output.startswith("features")

    @property
    def finds_boxes(self) -> bool:
        """Whether the models are detectors whose base finds annotated objects, by which they are judged."""
        boxes = self.base and self.base.boxes
        return bool(boxes and boxes.derived and boxes.derived.boxes.ap)

    @property
    def has_labels(self) -> bool:
        return all(point.right is not None for point in self.points)

    @property
    def near(self) -> float:
        """The likeness from which on a model without labels may be chosen."""
        return NEAR_FEATURES if self.is_of_features else NEAR_OTHERS

    def chosen(self) -> SweepPoint | None:
        """The smallest model that loses no more than chance; without labels, that is like the base.

        A model of a trained base that only reaches the base as it is would have lost what the training gave.
        """
        if not self.has_labels:
            as_good = [p for p in self.derived if p.likeness is not None and p.likeness >= self.near]
        else:
            as_good = [] if self.reference is None else [p for p in self.derived if self.loss(p).may_be_chance]
        return min(as_good, key=lambda point: point.macs, default=None)

    def worse_in_a_class(self) -> SweepPoint | None:
        """The most accurate model that is smaller than the chosen one, and not chosen for what it loses of a class."""
        chosen = self.chosen()
        if not self.has_labels or self.reference is None:
            return None
        smaller = [p for p in self.derived if (chosen is None or p.macs < chosen.macs) and self.loss(p).worst_alone]
        return max(smaller, key=lambda point: point.top1, default=None)

    def recalled(self) -> str | None:
        """A warning that the base was probably trained on the validation images; None: nothing suggests it."""
        if self.base is None or self.base.probes:  # probes are fitted to training images
            return None
        return recalled_text(self.base.on("validation"), self.base.on("test"))

    def judged_on(self, part: JudgedPart) -> Sweep:
        """The sweep by the answers on this part; unchanged if those of any model are not recorded."""
        finetuned = self.finetuned
        if any(o is not None and o.judged is None for o in (*self.points, *self.ready_made, finetuned)):
            return self

        def counts(judged: OnImages) -> dict[str, int]:
            count = judged.on(part)
            assert count is not None
            return {"right": count.right, "images": count.images}

        points, ready_made = (
            tuple(replace(point, **counts(point)) for point in some)  # type: ignore[arg-type]
            for some in (self.points, self.ready_made)
        )
        if finetuned is not None:
            finetuned = replace(finetuned, **counts(finetuned))  # type: ignore[arg-type]
        return replace(self, part=part, points=points, ready_made=ready_made, finetuned=finetuned)


SWEEP_KIND = RecordKind("sweep", Sweep, _READER)


def read_sweep(folder: Path) -> Sweep:
    """Read the record of a sweep.

    Raises:
        SweepError: it is missing, damaged, or of another schema.
    """
    return SWEEP_KIND.read(folder / RECORD)


def write_sweep(folder: Path, sweep: Sweep) -> None:
    with writing(folder):
        write_whole(folder / RECORD, SWEEP_KIND.text(sweep))
