"""When training may stop before its last step, and which of its states was the best."""

from __future__ import annotations

from dataclasses import dataclass

MET = 0.002  # trained and pruned accuracy count as met within this
PATIENCE = 3  # evaluations in which they must have met, and the best not improved, before training stops


@dataclass
class Meeting:
    """Watches trained and pruned accuracy until they have met and the pruned one no longer improves."""

    best: float = -1.0
    since_best: int = 0
    met: int = 0

    def add(self, trained: float, pruned: float) -> bool:
        """Take one evaluation; return whether training may stop."""
        self.since_best = 0 if pruned > self.best else self.since_best + 1
        self.best = max(self.best, pruned)
        self.met = self.met + 1 if abs(trained - pruned) <= MET else 0
        return self.met >= PATIENCE and self.since_best >= PATIENCE


@dataclass
class Best:
    """Watches one figure of a model; of equal states the earlier, which has trained less, is the best."""

    score: float | None = None  # the higher the better
    step: int = 0
    since: int = 0  # evaluations since then

    def add(self, score: float, step: int) -> bool:
        """Take one evaluation; return whether it is the best so far."""
        is_best = self.score is None or score > self.score
        if is_best:
            self.score, self.step = score, step
        self.since = 0 if is_best else self.since + 1
        return is_best
