"""What an unfinished derivation has decided and measured so far, beside tensors and request.json in `OUT.partial`.

baselines.json    what the derived model will be judged against
plan.json         what a method that trains has decided
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
    """baselines.json of an unfinished derivation: what a derived model is judged against, on the test part."""

    base_full_head: AccuracyRecord
    base_restricted: AccuracyRecord
    right_on_validation: Index  # images of the validation part, by the restricted base
    base_finetuned: AccuracyRecord | None = None
    finetuned_right_on_validation: Index | None = None
    edgevit: str | None = None
    answers: dict[JudgedPart, PartAnswers] | None = None  # by part; None: of an older edgevit


@dataclass(frozen=True)
class DecidedStep(StepRecord):
    """plan.json of an unfinished derivation: what a method that trains has decided."""

    edgevit: str | None = None


BASELINES_KIND = RecordKind("baselines", Baselines, STATE)
DECIDED_KIND = RecordKind("decided", DecidedStep, STATE)
