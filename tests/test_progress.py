"""Progress where nobody watches."""

from __future__ import annotations

import pytest

from edgevit.progress import Progress, Silent, WithoutRepeats, rounded_duration


def test_a_silent_progress_takes_everything_and_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    progress: Progress = Silent()
    with progress.stage("train", total=2, unit="step") as stage:
        stage.update(1, loss=0.5, accuracy=None)
    progress.note("a decision")
    progress.warn("a doubt")
    assert tuple(capfd.readouterr()) == ("", "")


class Told(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)

    warn = note


def test_what_was_said_is_not_said_again() -> None:
    told = Told()
    once = WithoutRepeats(told)
    for text in ("base: 3 classes", "round 1", "base: 3 classes"):
        once.note(text)
    once.warn("round 1")
    once.warn("few images")
    assert told.told == ["base: 3 classes", "round 1", "few images"]


def test_a_wait_that_grew_older_is_not_said_again() -> None:
    told = Told()
    shared = set[str]()
    WithoutRepeats(told, shared).note("waiting for orin: bench by jo@lab since 50 s")
    again = WithoutRepeats(told, shared)
    again.note("waiting for orin: bench by jo@lab since 5 min")
    again.note("waiting for orin: build by jo@lab since 1 s")
    assert [text.partition(" by ")[0] for text in told.told] == ["waiting for orin: bench", "waiting for orin: build"]


def test_a_duration_is_rounded_as_an_estimate_is() -> None:
    assert [rounded_duration(s) for s in (0.2, 80, 300, 9000)] == ["1 s", "80 s", "5 min", "2.5 h"]
