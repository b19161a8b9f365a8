"""history.jsonl: the course of a training, with one logged or evaluated step on each line."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgevit.errors import CheckpointError
from edgevit.records.documents import Reader
from edgevit.records.kinds import More, RecordKind
from edgevit.records.model import HINT, Index


@dataclass(frozen=True)
class HistoryLine:
    """A line of history.jsonl: a step and its figures.

    Figures are further keys: `lr`, losses as `loss_...`, accuracies as `accuracy_...`, and those of a method.
    """

    stage: str  # name of the derivation's stage
    step: Index
    edgevit: str  # version of edgevit that wrote the line
    more: More = field(default_factory=dict)  # figures of the step, by name


# Not sealed: no result depends on it, and a line that was cut off by a power cut is ignored.
HISTORY_KIND = RecordKind("history", HistoryLine, Reader(CheckpointError, HINT), sealed=False)
