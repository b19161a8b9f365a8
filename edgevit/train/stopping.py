"""Early stopping, and the best state of a training."""

from __future__ import annotations

from dataclasses import dataclass

MET = 0.002  # trained and pruned accuracy count as met within this
LATER = 0.05  # share of the least loss by which that of a later state may be higher
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
    """Tracks the best score of a model, and the state to keep; of equal states that is the earlier one."""

    score: float | None = None  # best score so far, the higher the better; None: no evaluation yet
    step: int = 0  # of the state to keep
    since: int = 0  # number of evaluations since the best one
    first: float | None = None  # score of the first evaluation

    def add(self, score: float, step: int, tolerance: float = 0.0) -> bool:
        """Add an evaluation; return whether it is the state to keep.

        Args:
            tolerance: a later state that is better than the first is kept if it misses the best score by less than this
                share of it. A loss of few images is least by chance at some step, and rates fall to the end.
        """
        is_best = self.score is None or score > self.score
        if self.first is None:
            self.first = score if self.score is None else self.score
        if is_best:
            self.score = score
        self.since = 0 if is_best else self.since + 1
        assert self.score is not None
        is_kept = is_best or (score > self.first and self.score - score < tolerance * abs(self.score))
        if is_kept:
            self.step = step
        return is_kept
