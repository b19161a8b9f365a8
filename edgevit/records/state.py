"""What an unfinished derivation has decided and measured so far, beside tensors and request.json in `OUT.partial`.

    baselines.json    what the derived model will be judged against
    plan.json         what a method that trains has decided

Schema history, of each: 0  files that say no schema, and not which edgevit wrote them
                         1  edgevit. Later files of schema 1 may have finetuned_right_on_validation
                         2  record and content_sha256, of all the rest of the file. Later baselines of schema 2 have
                            answers
"""

from __future__ import annotations

from dataclasses import dataclass

from edgevit.records.answers import PartAnswers
from edgevit.records.derivation import AccuracyRecord, JudgedPart
from edgevit.records.kinds import UNMARKED, RecordKind, Seal
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


BASELINES_KIND = RecordKind("baselines", Baselines, STATE, schemas=(UNMARKED, 1, 2), seal=Seal(since=2))
DECIDED_KIND = RecordKind("decided", DecidedStep, STATE, schemas=(UNMARKED, 1, 2), seal=Seal(since=2))
