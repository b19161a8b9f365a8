"""The seam through which long work tells how far it is. The library calls it; only `cli/` draws it.

A stage is a context manager; `update` may be called as often as is convenient:

    with progress.stage("train", total=3000, unit="step") as stage:
        stage.update(120, loss=0.31, accuracy_pruned=0.87)
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

_AGE = re.compile(r" since \d+ (s|min)\b")


class Stage(Protocol):
    """One piece of work under way."""

    def update(self, done: int, **figures: float | None) -> None:
        """Say how many units are done, and the figures to show beside the bar; a figure stays until it is replaced."""


class Progress(Protocol):
    """Where stages and remarks are shown."""

    def stage(self, name: str, total: int | None = None, unit: str = "") -> AbstractContextManager[Stage]:
        """Open a stage of `total` units (None: not known)."""

    def note(self, text: str) -> None:
        """Show one line, such as a decision made."""

    def warn(self, text: str) -> None:
        """Show one line that even somebody who wants to read little has to read."""


class _SilentStage:
    def update(self, done: int, **figures: float | None) -> None:
        pass


class Silent:
    """Show nothing: the default of every library function."""

    def stage(self, name: str, total: int | None = None, unit: str = "") -> AbstractContextManager[Stage]:
        return nullcontext(_SilentStage())

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass


class WithoutRepeats:
    """Say nothing twice: derivations of one task have much to say that is the same.

    Two lines that differ by their age alone ("waiting for orin: bench by jo@lab since 5 min") are the same.
    """

    def __init__(self, progress: Progress, lines: set[str] | None = None) -> None:
        self.progress = progress
        self.lines: set[str] = set() if lines is None else lines  # shown so far; passed in to be shared

    def stage(self, name: str, total: int | None = None, unit: str = "") -> AbstractContextManager[Stage]:
        return self.progress.stage(name, total, unit)

    def note(self, text: str) -> None:
        if self._is_new(text):
            self.progress.note(text)

    def warn(self, text: str) -> None:
        if self._is_new(text):
            self.progress.warn(text)

    def _is_new(self, text: str) -> bool:
        line = _AGE.sub("", text)
        is_new = line not in self.lines
        self.lines.add(line)
        return is_new


def rounded_duration(seconds: float) -> str:
    """Write seconds as an estimate is read: seconds below a minute and a half, then minutes, then hours."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60)):
        if seconds < limit:
            return f"{max(round(seconds / size), 1)} {unit}"
    return f"{seconds / 3600:.1f} h"
