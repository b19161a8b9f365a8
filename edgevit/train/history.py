"""What a training looked like on its way: the lines of history.jsonl, and what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgevit.records.history import HISTORY_KIND, HistoryLine
from edgevit.records.unfinished import STATE
from edgevit.records.writing import write_whole, writing
from edgevit.version import written_by

UNFINISHED = replace(HISTORY_KIND, reader=STATE)


@dataclass(frozen=True)
class Outcome:
    """What training made of the weights it began with, on the validation part; its fields are in derivation.json."""

    kept_step: int  # whose weights are kept; 0: no later state that was looked at was better
    accuracy_validation_before: float
    accuracy_validation_trained: float  # of the best state but the first
    loss_validation_before: float | None  # against the teacher, where there is one
    loss_validation_trained: float | None

    def told(self, what: str) -> str:
        """One line for whoever waited for it."""
        accuracy, trained = (
            f"{100 * a:.1f} %" for a in (self.accuracy_validation_before, self.accuracy_validation_trained)
        )
        if not self.kept_step:
            return (
                f"{what} did not help ({trained} at best, {accuracy} before{self._losses()}): the closed-form weights "
                "are kept; try a lower --lr, more --steps, or more images, without labels as --unlabelled"
            )
        return f"{what}: kept the weights of step {self.kept_step}, {trained} on the validation part, {accuracy} before"

    def _losses(self) -> str:
        if self.loss_validation_trained is None:
            return ""
        return (
            f"; loss against the teacher {self.loss_validation_trained:.2g}, {self.loss_validation_before:.2g} before"
        )


@dataclass
class History:
    """Lines of history.jsonl, kept in a file as they come; those of an interrupted run are among them.

    `path` None keeps them in memory only.
    """

    path: Path | None
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_file():
            # A last line that a full disk or a power cut cut off is no line.
            whole = [(where, line) for where, line in STATE.lines(self.path) if line.rstrip().endswith(b"}")]
            self.lines = [STATE.parse(line, dict[str, Any], where) for where, line in whole]
            for line in self.lines:
                UNFINISHED.checked(line, str(self.path))

    def add(self, *, stage: str, step: int, **figures: Any) -> None:
        line = HISTORY_KIND.content(HistoryLine(stage, step, written_by(), figures))
        self.lines.append(line)
        if self.path is not None:
            with writing(self.path), self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def rewind(self, stage: str, step: int) -> None:
        """Forget what an interrupted run logged after its last saved state."""
        self.lines = [line for line in self.lines if line["stage"] != stage or line["step"] <= step]
        if self.path is None or not self.path.is_file():
            return
        with writing(self.path):
            write_whole(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def outcome(self, stage: str) -> Outcome | None:
        """What a stage that kept its best state made of the weights it began with; None if it did not train."""
        looked = [line for line in self.lines if line["stage"] == stage and "kept_step" in line]
        if len(looked) < 2:
            return None
        before, *trained = looked
        best = max(trained, key=score)
        accuracies = (line.get("accuracy_pruned", line["accuracy_trained"]) for line in (before, best))
        return Outcome(looked[-1]["kept_step"], *accuracies, *(line.get("loss_validation") for line in (before, best)))


def score(looked: dict[str, float]) -> float:
    """What the states of one training are judged by; the higher, the better.

    A loss over a few hundred images tells states apart between which accuracy, in steps of one image, cannot choose.
    """
    loss = looked.get("loss_validation")
    return looked.get("accuracy_pruned", looked["accuracy_trained"]) if loss is None else -loss
