"""The time limit of a suite: how long networks have taken so far, and whether there is time for more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_S, WARMUP_S = 0.5, 0.2  # durations of one run's window and warm-up
# Estimates until a run was seen: to start a process that loads an engine, and to finish after the last question.
START_S, END_S = 3.5, 5.0


@dataclass
class TimeLimit:
    """Time so far, and estimates by the slowest build and the last runs."""

    minutes: float
    earlier_s: float  # seconds of work by earlier commands
    began: float  # reading of the clock at the start, in seconds
    clock: Callable[[], float] = time.monotonic
    builds: int = 0
    # Longest build after the first, in which TensorRT times kernels for all others; of the first until then.
    build_s: float = 0.0
    # Duration of a run with its process: an estimate, then the mean over the last question.
    run_s: float = WINDOW_S + WARMUP_S + START_S

    @property
    def elapsed_s(self) -> float:
        return self.earlier_s + self.clock() - self.began

    def allows(self, seconds: float) -> bool:
        return self.elapsed_s + seconds + END_S <= 60 * self.minutes

    def add_build(self, seconds: float) -> None:
        self.builds += 1
        self.build_s = seconds if self.builds <= 2 else max(seconds, self.build_s)

    def add_runs(self, count: int, seconds: float) -> None:
        self.run_s = max(seconds / max(count, 1), WINDOW_S + WARMUP_S)
