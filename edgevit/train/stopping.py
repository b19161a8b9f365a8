"""Early stopping, and the best state of a training."""

from __future__ import annotations

from dataclasses import dataclass

MET = 0.002  # trained and pruned accuracy count as met within this
PATIENCE = 3  # evaluations with both met and the best not improved before training stops


@dataclass
class Meeting:
    """Tracks whether trained and pruned accuracy have met, and the pruned one has stopped improving."""

    best: float = -1.0
    since_best: int = 0
    met: int = 0

    def add(self, trained: float, pruned: float) -> bool:
        """Add an evaluation; return whether training may stop."""
        self.since_best = 0 if pruned > self.best else self.since_best + 1
        self.best = max(self.best, pruned)
        self.met = self.met + 1 if abs(trained - pruned) <= MET else 0
        return self.met >= PATIENCE and self.since_best >= PATIENCE


@dataclass
class Best:
    """Tracks the best score of a model; of equal states, the earlier one is the best."""

    score: float | None = None  # best score so far, the higher the better; None: no evaluation yet
    step: int = 0
    since: int = 0  # number of evaluations since the best one

    def add(self, score: float, step: int) -> bool:
        """Add an evaluation; return whether it is the best so far."""
        is_best = self.score is None or score > self.score
        if is_best:
            self.score, self.step = score, step
        self.since = 0 if is_best else self.since + 1
        return is_best
