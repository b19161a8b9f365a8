"""history.jsonl: what a training looked like on its way, one step that was logged or looked at on each line."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgevit.errors import CheckpointError
from edgevit.records.documents import Reader
from edgevit.records.kinds import More, RecordKind
from edgevit.records.model import MEND, Index


@dataclass(frozen=True)
class HistoryLine:
    """A line of history.jsonl: a step, with its figures beside these fields.

    They have names of their own: `lr`, losses as `loss_...`, accuracies as `accuracy_...`, and what a method adds.
    """

    stage: str  # which of the trainings of a derivation
    step: Index
    edgevit: str  # version that wrote the line
    more: More = field(default_factory=dict)  # the figures


# No seal: no figure of a model rests on it, and a line that a power cut cut off is left out.
HISTORY_KIND = RecordKind("history", HistoryLine, Reader(CheckpointError, MEND), sealed=False)
