"""SIGTERM ends work as Ctrl-C does: what is unfinished stays resumable, temporary files go, one line is said.

systemd, Slurm, containers and `timeout` ask programs to end in this way, some of them twice at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
