"""The schedule of a camera: absolute, with what is missed counted."""

from __future__ import annotations

from time import perf_counter_ns

import pytest

from edgevit.agent import pace
from edgevit.agent.measure import repeat
from edgevit.agent.pace import Pace

MS = 1_000_000


class Clock:
    """A clock that only sleeping and working move: no test waits, and no busy machine changes what it sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = 1000 * MS
        monkeypatch.setattr(pace, "perf_counter_ns", lambda: self.ns)
        monkeypatch.setattr(pace.time, "sleep", lambda seconds: self.work(seconds * 1e3 + 0.125))  # wakes late

    def work(self, ms: float) -> None:
        self.ns += round(ms * MS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def begun(clock: Clock, paced: Pace, *lasting_ms: float) -> list[float]:
    """When inferences of these lengths began, in ms after the first."""
    began = []
    for ms in lasting_ms:
        paced.wait()
        began.append(clock.ns / MS - 1000)
        clock.work(ms)
        paced.done()
    return began


def test_late_waking_does_not_add_up(clock: Clock) -> None:
    paced = Pace(10 * MS)
    assert begun(clock, paced, 3, 3, 9, 3) == [0, 10.125, 20.125, 30.125]
    assert paced.missed == 0


def test_an_inference_that_is_too_long_misses_the_next_pictures_and_keeps_to_the_schedule(clock: Clock) -> None:
    paced = Pace(10 * MS)
    assert begun(clock, paced, 12, 35, 1) == [0, 20.125, 60.125]
    assert paced.missed == 1 + 3


def test_meters_that_take_longer_than_the_pause_move_the_schedule_and_miss_nothing(clock: Clock) -> None:
    paced = Pace(10 * MS)
    begun(clock, paced, 3)
    clock.work(20)
    assert begun(clock, paced, 1, 1) == [23, 33.125]
    assert paced.missed == 0


def test_in_real_time_inferences_keep_to_the_schedule_and_the_pauses_are_in_the_window() -> None:
    began: list[int] = []
    latencies, wall_ns = repeat(lambda: began.append(perf_counter_ns()), 10, 0, pace=Pace(10 * MS))
    assert wall_ns >= 10 * 10 * MS > sum(latencies)
    assert began[-1] - began[0] >= 9 * 10 * MS - 1 * MS
