"""The peak of a training is of its steps: not of what was before them, nor of the evaluations between them."""

from __future__ import annotations

import pytest

from benchmarks import training_memory
from benchmarks.training_memory import Watched


def hold(mib: int) -> None:
    assert len(bytearray(b"1") * (mib * 2**20)) == mib * 2**20  # written to, so that it is resident


@pytest.mark.skipif(not training_memory.reset_peak("cpu"), reason="this system does not reset a process's peak")
def test_the_peak_is_of_the_steps_alone() -> None:
    hold(300)
    watched = Watched("cpu")
    with watched.stage("statistics") as other, watched.stage("train") as stage:
        other.update(1)
        hold(300)  # judged before the first step, which is therefore left out
        stage.update(1)
        assert watched.peak_mib is None
        stage.update(2)
        small = watched.peak_mib
        hold(64)
        stage.update(3, loss_target=0.1)
        large = watched.peak_mib
        hold(300)
        stage.update(4, accuracy_trained=0.9)
        stage.update(5)
    assert small is not None and large is not None
    assert 60 < large - small < 150 and watched.peak_mib == pytest.approx(large, abs=20)


def test_where_no_peak_is_told_none_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(training_memory, "PROCESS", training_memory.Path(str(tmp_path)) / "none")
    watched = Watched("cpu")
    with watched.stage("train") as stage:
        for step in range(3):
            stage.update(step)
    assert watched.peak_mib is None
