"""The record of a training: the lines of history.jsonl, and its outcome."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgevit.records.history import HISTORY_KIND, HistoryLine
from edgevit.records.unfinished import STATE
from edgevit.records.writing import write_whole, writing
from edgevit.version import written_by

_UNFINISHED = replace(HISTORY_KIND, reader=STATE)


@dataclass(frozen=True)
class Outcome:
    """The effect of a training on the validation part; its fields are in derivation.json."""

    kept_step: int  # step whose weights are kept; 0: no later state was better
    accuracy_validation_before: float | None  # top-1 before training; None: the images have no classes
    accuracy_validation_trained: float | None  # top-1 of the best later state; None: the images have no classes
    loss_validation_before: float | None  # loss against the teacher before training; None: there is no teacher
    loss_validation_trained: float | None  # loss against the teacher of the best later state; None: there is no teacher

    def text(self, stage: str) -> str:
        """Describe the outcome of a stage in one line."""
        if not self.kept_step:
            figures = "; ".join([*self._accuracies("at best"), *self._losses()])
            return (
                f"{stage} did not help ({figures}): the closed-form weights are kept; try a lower --lr, more --steps, "
                "or more images, without labels as --unlabelled"
            )
        (figures, *_) = [*self._accuracies("on the validation part"), *self._losses()]
        return f"{stage}: kept the weights of step {self.kept_step}, {figures}"

    def _accuracies(self, of_trained: str) -> list[str]:
        before, trained = self.accuracy_validation_before, self.accuracy_validation_trained
        if before is None or trained is None:
            return []
        return [f"{100 * trained:.1f} % {of_trained}, {100 * before:.1f} % before"]

    def _losses(self) -> list[str]:
        if self.loss_validation_trained is None:
            return []
        return [
            f"loss against the teacher {self.loss_validation_trained:.2g}, {self.loss_validation_before:.2g} before"
        ]


@dataclass
class History:
    """Lines of history.jsonl, which are written to a file at once; includes those of an interrupted run.

    With `path` None they are only in memory.
    """

    path: Path | None
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_file():
            # A full disk or a power cut may have truncated the last line.
            whole = [(place, line) for place, line in STATE.lines(self.path) if line.rstrip().endswith(b"}")]
            self.lines = [STATE.parse(line, dict[str, Any], place) for place, line in whole]
            for line in self.lines:
                _UNFINISHED.checked(line, str(self.path))

    def add(self, *, stage: str, step: int, **figures: Any) -> None:
        line = HISTORY_KIND.content(HistoryLine(stage, step, written_by(), figures))
        self.lines.append(line)
        if self.path is not None:
            with writing(self.path), self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def rewind(self, stage: str, step: int) -> None:
        """Remove the lines that an interrupted run logged after its last saved state."""
        self.lines = [line for line in self.lines if line["stage"] != stage or line["step"] <= step]
        if self.path is None or not self.path.is_file():
            return
        with writing(self.path):
            write_whole(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def outcome(self, stage: str) -> Outcome | None:
        """Summarise a stage that kept its best state; None if it did not train."""
        evaluated = [line for line in self.lines if line["stage"] == stage and "kept_step" in line]
        if len(evaluated) < 2:
            return None
        before, *trained = evaluated
        kept = evaluated[-1]["kept_step"]
        best = next((line for line in trained if line["step"] == kept), None) or max(trained, key=score)
        accuracies = (line.get("accuracy_pruned", line.get("accuracy_trained")) for line in (before, best))
        losses = (line.get("loss_validation") for line in (before, best))
        return Outcome(kept, *accuracies, *losses)


def score(figures: dict[str, float]) -> float:
    """Score a state of a training; higher is better.

    A loss over a few hundred images distinguishes states of equal accuracy, which is counted in whole images.
    """
    loss = figures.get("loss_validation")
    return figures.get("accuracy_pruned", figures.get("accuracy_trained", 0.0)) if loss is None else -loss
