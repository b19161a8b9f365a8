"""sweep.json: what was asked for, and what each rate came to.

Schema history: 1  first version; later files of schema 1 have threads, and later ones finetuned: where they lack it
                   the base was cut as it is
                2  record and content_sha256, of all the rest of the file
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from edgevit.errors import SweepError
from edgevit.folder.derivation import StartRecord
from edgevit.folder.documents import Reader
from edgevit.folder.model import Count, Index
from edgevit.folder.names import SWEEP
from edgevit.folder.records import RecordKind, Seal, Versions
from edgevit.folder.writing import write_whole, writing

RECORD = SWEEP
BASE = "base"  # the unpruned base's folder, and its name in tables
PARTS = ("validation", "test")
RATES = (0.5, 0.7, 0.8, 0.9, 0.95)
READER = Reader(SweepError, mend="remove it to sweep again: models that are there stay")


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one image on this machine, measured in turns with the base."""

    figure: str  # "p50"; or "mean", which alone can be judged where other programs were busy
    ms: Annotated[float, Field(gt=0)]
    ratio: float  # to the base's
    low: float | None  # of its 95 % interval; None: it has none
    high: float | None


class RightAnswers:
    """A share of images, as two counts."""

    right: int  # of `images`, how many are classified rightly among the target classes
    images: int

    def __post_init__(self) -> None:
        if self.right > self.images:
            raise ValueError(f"{self.right} of {self.images} images are no share")

    @property
    def top1(self) -> float:
        return self.right / max(self.images, 1)


@dataclass(frozen=True)
class SweepPoint(RightAnswers):
    """One model: a folder beside sweep.json."""

    folder: str
    rate: float | None  # None: the base
    right: Index  # of `images`, how many it classifies rightly among the target classes
    images: Index
    macs: Count
    params: Count
    latency: Latency | None = None  # None: not measured yet

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `top1`."""
        from edgevit.data.shares import wilson

        return wilson(self.right, self.images)


@dataclass(frozen=True)
class FinetunedBase(RightAnswers):
    """The base after training on the classes; `start` says whether models are cut from it. No folder holds it."""

    right: Index  # of `images`, as of a point
    images: Index
    start: StartRecord


@dataclass(frozen=True)
class Sweep:
    """What sweep.json says."""

    asked: dict[str, Any]  # what must be the same for a sweep to be gone on with
    part: str  # of the data, that the models were judged on
    created: str
    versions: Versions
    points: tuple[SweepPoint, ...] = ()  # the base first, then by rate
    left_out: tuple[str, ...] = ()  # rates that no model could be derived at, and why
    threads: int | None = None  # that latency was measured with; None: all cores
    finetuned: FinetunedBase | None = None  # None: the base was cut as it is, and nothing else was asked for

    @property
    def base(self) -> SweepPoint | None:
        return next((point for point in self.points if point.rate is None), None)

    @property
    def derived(self) -> list[SweepPoint]:
        return [point for point in self.points if point.rate is not None]

    @property
    def reference(self) -> SweepPoint | FinetunedBase | None:
        """What models are to be as good as: the base, or that after training where it was cut and is the better one."""
        base, finetuned = self.base, self.finetuned
        if base and finetuned and finetuned.start.network == "finetuned" and finetuned.top1 > base.top1:
            return finetuned
        return base

    def chosen(self) -> SweepPoint | None:
        """The smallest model that loses no more than chance: whose interval reaches the top-1 of `reference`.

        A model of a trained base that only reaches the base as it is would have lost what the training gave.
        """
        reference = self.reference
        if reference is None:
            return None
        as_good = [point for point in self.derived if point.interval()[1] >= reference.top1]
        return min(as_good, key=lambda point: point.macs, default=None)


SWEEP_KIND = RecordKind("sweep", Sweep, READER, schemas=(1, 2), seal=Seal(since=2))


def read_sweep(folder: Path) -> Sweep:
    """Read the record of a sweep.

    Raises:
        SweepError: it is missing, damaged, or of another schema.
    """
    return SWEEP_KIND.read(folder / RECORD)


def write_sweep(folder: Path, sweep: Sweep) -> None:
    with writing(folder):
        write_whole(folder / RECORD, SWEEP_KIND.text(sweep))
