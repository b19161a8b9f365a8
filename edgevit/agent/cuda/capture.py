"""The reasons for which work cannot be captured into a graph."""

from __future__ import annotations

from ..runners import RunnerError


class CaptureError(RunnerError):
    """The work cannot be captured into a graph; it can still be enqueued."""
