"""Decisions and measurements of an unfinished derivation in `OUT.partial`, without its tensors and request.json.

baselines.json    accuracies that the derived model will be compared with
plan.json         the decision of a method that trains
"""

from __future__ import annotations

from dataclasses import dataclass

from edgevit.records.answers import PartAnswers
from edgevit.records.derivation import AccuracyRecord, JudgedPart
from edgevit.records.kinds import RecordKind
from edgevit.records.model import Index
from edgevit.records.plan import StepRecord
from edgevit.records.unfinished import STATE


@dataclass(frozen=True)
class Baselines:
    """baselines.json of an unfinished derivation: accuracies on the test part to compare the derived model with."""

    base_full_head: AccuracyRecord
    base_restricted: AccuracyRecord
    right_on_validation: Index  # validation images that the restricted base classifies correctly
    base_finetuned: AccuracyRecord | None = None
    finetuned_right_on_validation: Index | None = None
    edgevit: str | None = None
    # Which images are classified correctly, by part; None: not recorded.
    answers: dict[JudgedPart, PartAnswers] | None = None


@dataclass(frozen=True)
class DecidedStep(StepRecord):
    """plan.json of an unfinished derivation: the decision of a method that trains."""

    edgevit: str | None = None


BASELINES_KIND = RecordKind("baselines", Baselines, STATE)
DECIDED_KIND = RecordKind("decided", DecidedStep, STATE)
