"""Progress that keeps what a person would read."""

from __future__ import annotations

from typing import Any

from edgevit.progress import Silent


class RecordedProgress(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.stages: list[str] = []  # their names

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def stage(self, name: str, total: int | None = None, unit: str = "") -> Any:
        self.stages.append(name)
        return super().stage(name, total, unit)
