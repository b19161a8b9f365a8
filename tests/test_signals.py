"""SIGTERM and Ctrl-C: the first asks, and what is torn by the second is not torn by the first."""

from __future__ import annotations

import os
import signal

import pytest

from edgevit import signals
from edgevit.signals import sigterm_as_ctrl_c, stop_when_asked


def test_the_first_sigterm_interrupts_and_the_next_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    ended = False
    with pytest.raises(KeyboardInterrupt), sigterm_as_ctrl_c():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # while it ends in good order
            ended = True
    assert ended and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("press", [signal.SIGINT, signal.SIGTERM])
def test_a_press_is_seen_and_stops_nothing_by_itself(press: int) -> None:
    before = signal.getsignal(press)
    with stop_when_asked() as stop:
        assert not stop.pressed
        os.kill(os.getpid(), press)
        os.kill(os.getpid(), press)  # at once: the same press, told twice
        assert stop.pressed
    assert signal.getsignal(press) is before


def test_a_second_press_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "ONE_PRESS_S", 0.0)
    with pytest.raises(KeyboardInterrupt), stop_when_asked():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
