"""What `edgevit report --format json` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgevit.errors import RunsError
from edgevit.jobs.fleet.costs import FleetCost
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind
from edgevit.reporting.gather import Skipped

Kind = Literal["full head", "restricted", "fine-tuned", "model", "ready-made", "gone"]


@dataclass(frozen=True, kw_only=True)
class EntryRecord:
    """One model, or one file of it where its files were measured. None: not measured, or not known."""

    kind: Kind
    title: str
    model: str | None  # name of the model folder; None: it was not found
    method: str | None = None  # name of the method; several in their order, "corp, then forge"; or "ready-made"
    rate: float | None = None  # share of the base's MACs that is removed
    seed: int | None = None
    steps: int | None = None
    top1: float | None = None
    images: int | None = None
    cosine: float | None = None  # cosine of its features to the base's, the mean over test images
    # Share of an image's ten nearest test images, by its features, that are also the base's nearest.
    neighbours: float | None = None
    agreement: float | None = None  # agreement of its maps with the base's, the mean over test images
    # Score of its maps against the masks of a sweep's test images: IoU of foreground, share of right pixels, overlap of
    # values, or what the module's own function says.
    score: float | None = None
    error: float | None = None  # mean absolute error of its maps on the same images
    precision_of_boxes: float | None = None  # average precision of the boxes that a detector finds in test images
    knn: float | None = None  # top-1 of a nearest-neighbour classifier of its features, on the images of a sweep
    linear: float | None = None  # top-1 of a linear classifier of its features, on the images of a sweep
    judged: str | None = None  # what top1 is of: "torch", or the name of the file
    # Number of right images of the validation part, and number of all its images.
    validation: tuple[int, int] | None = None
    macs: int | None = None
    params: int | None = None
    embed: int | None = None  # width of the embedding
    file_bytes: int | None = None
    file: str | None = None  # name of the file that was measured
    precision: str | None = None
    repeats: int = 0  # number of runs; the figures below are their medians
    p50_ms: float | None = None
    p50_least_ms: float | None = None  # lowest p50 of the runs
    p50_most_ms: float | None = None  # highest p50 of the runs
    p99_ms: float | None = None
    images_per_s: float | None = None
    power_w: float | None = None
    energy_mj: float | None = None  # energy of one image
    memory_mib: float | None = None  # memory that its process took; on a GPU, how much the machine's free memory fell
    ratio: float | None = None  # latency over that of the restricted base
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_of: str | None = None  # the figure whose ratio it is: p50, mean or processor
    gates_passed: int = 0
    gates_failed: int = 0
    busy: bool = False  # whether other programs slowed a run
    void: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PanelRecord:
    """Models that may be compared: those of one task at one place. None: not known, or nothing was measured."""

    classes: tuple[str, ...] | None
    images: str | None  # the task's images in words
    base: str | None = None  # the base in words where models of several bases were judged on these images
    place: str | None  # where and how latencies were measured, in words
    environment: dict[str, str] | None
    batch: int | None
    streams: int | None
    use: str | None
    take: str | None  # title of the model to take; None: none is recommended
    answer: str
    notes: tuple[str, ...]
    models: tuple[EntryRecord, ...]  # rows of the table, baselines first


@dataclass(frozen=True, kw_only=True)
class ReportRecord:
    """All tables of a report."""

    report: Literal["edgevit"] = "edgevit"  # what the file is, for a person or program that finds it
    edgevit: str
    panels: tuple[PanelRecord, ...]
    split_reasons: tuple[str, ...]  # why there is more than one panel; empty: there is one
    skipped: tuple[Skipped, ...]
    costs: tuple[FleetCost, ...] = ()  # costs of the fleets whose plans were given


# No seal: edgevit does not read it.
REPORT_KIND = RecordKind("report", ReportRecord, Reader(RunsError, hint="make the report again"), sealed=False)
