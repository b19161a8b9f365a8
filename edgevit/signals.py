"""SIGTERM ends work as Ctrl-C does: what is unfinished stays resumable, temporary files go, one line is said.

systemd, Slurm, containers and `timeout` ask programs to end in this way, some of them twice at once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

ONE_PRESS_S = 1.0


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """While the block runs, the first SIGTERM raises KeyboardInterrupt in the main thread; others change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that what ends in good order is not torn
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StopAsked:
    """Whether Ctrl-C was pressed; a second press stops at once.

    Signals in quick succession are one press: `timeout` and service managers ask each process, and so does its parent.
    """

    def __init__(self) -> None:
        self.pressed_s: float | None = None

    @property
    def pressed(self) -> bool:
        return self.pressed_s is not None

    def __call__(self, signum: int, frame: object) -> None:
        now = time.monotonic()
        if self.pressed_s is None:
            self.pressed_s = now
        elif now - self.pressed_s > ONE_PRESS_S:
            raise KeyboardInterrupt


@contextmanager
def stop_when_asked() -> Iterator[StopAsked]:
    """While the block runs, note Ctrl-C in `StopAsked` in place of interrupting: work that looks there ends early."""
    stop = StopAsked()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
