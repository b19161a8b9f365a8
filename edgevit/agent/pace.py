"""One inference per period, as a camera asks for them: between two of them nothing runs, and clocks fall.

The schedule is absolute: an inference that begins late, as every sleeper wakes late, does not make the next one late.
One that lasts beyond its period makes the next ones wait for the picture after: those periods are missed, and counted.
"""

from __future__ import annotations

import time
from time import perf_counter_ns


class Pace:
    """The schedule of a stretch of inferences; it begins with the first `wait`."""

    def __init__(self, period_ns: int) -> None:
        self.period_ns = period_ns
        self.missed = 0
        self._next: int | None = None  # when the next inference begins

    def wait(self) -> None:
        """Sleep until the next inference is due."""
        now = perf_counter_ns()
        if self._next is None or self._next < now:  # the first; or meters took longer than the pause
            self._next = now
        while now < self._next:
            time.sleep((self._next - now) / 1e9)
            now = perf_counter_ns()
        self._next += self.period_ns

    def done(self) -> None:
        """Note that the inference is over: what should have begun meanwhile is missed."""
        assert self._next is not None, "an inference waits before it begins"
        late = perf_counter_ns() - self._next
        if late > 0:
            missed = -(-late // self.period_ns)
            self.missed += missed
            self._next += missed * self.period_ns
