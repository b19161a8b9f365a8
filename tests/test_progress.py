"""Progress where nobody watches."""

from __future__ import annotations

import pytest

from edgevit.progress import Progress, Silent


def test_a_silent_progress_takes_everything_and_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    progress: Progress = Silent()
    with progress.stage("train", total=2, unit="step") as stage:
        stage.update(1, loss=0.5, accuracy=None)
    progress.note("a decision")
    progress.warn("a doubt")
    assert tuple(capfd.readouterr()) == ("", "")
