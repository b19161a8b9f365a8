"""Run pieces of work in processes that end when their parent ends, however it ends.

The parent is one thread that waits for messages of the processes. A process that gets SIGTERM saves what its piece of
work can save, such as the state of a training. So does a process whose parent is gone: the system closes a pipe then,
even after kill -9.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from edgevit.imports import importing
from edgevit.signals import sigterm_as_ctrl_c

P = TypeVar("P")
R = TypeVar("R")

GRACE_S = 60.0  # time for a step of training to end and its state to be written
STOPS = {signal.SIGINT, signal.SIGTERM}
_SPAWN = get_context("spawn")
_READY = "ready"  # the first message of a process: from then on SIGTERM ends it properly


@dataclass(frozen=True)
class Died:
    """The end of a process during a piece of work."""

    code: int  # exit status as in subprocess: a negative number is a signal


class Pool(Generic[P, R]):
    """Processes that each do one piece of work at a time.

    Leaving the block ends the processes; a KeyboardInterrupt during that kills them.

    Args:
        do: a function of a module. It, its argument and its result are sent between processes.
        threads: the number of threads in each process.
    """

    def __init__(self, do: Callable[[P], R], threads: int) -> None:
        self._do, self._threads = do, threads
        self._workers: dict[Connection, _Worker[P]] = {}

    def __enter__(self) -> Pool[P, R]:
        return self

    def __exit__(self, *_: object) -> None:
        _end(list(self._workers.values()))

    def begin(self, piece: P) -> None:
        """Give a piece to an idle process, or to a new one."""
        worker = next((worker for worker in self._workers.values() if worker.idle), None)
        if worker is None:
            with _stops_blocked():
                worker = _Worker(self._do, self._threads)
                self._workers[worker.link] = worker
        worker.begin(piece)

    def ended(self, timeout_s: float | None) -> list[tuple[P, R | Died]]:
        """Wait for a message of the processes; return the pieces that have ended, with their results."""
        ends: list[tuple[P, R | Died]] = []
        for link in wait(list(self._workers), timeout_s):
            assert isinstance(link, Connection)
            worker = self._workers[link]
            try:
                message = link.recv()
            except (EOFError, ConnectionResetError):
                worker.process.join()
                del self._workers[link]
                ends += [] if worker.idle else [(worker.piece, Died(worker.process.exitcode or 0))]
                continue
            if message == _READY:
                worker.ready = True
            else:
                worker.idle = True
                ends.append((worker.piece, message))
        return ends


class _Worker(Generic[P]):
    """A process and its piece of work."""

    piece: P

    def __init__(self, do: Callable[[P], Any], threads: int) -> None:
        self.ready, self.idle = False, True
        self.link, child_end = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(child_end, threads))
        with _environment(OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="PASSIVE"):
            self.process.start()
        child_end.close()
        self._send(do)

    def begin(self, piece: P) -> None:
        self.piece, self.idle = piece, False
        self._send(piece)

    def _send(self, message: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it died, which `Pool.ended` notices
            self.link.send(message)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables that torch reads on import, for the processes that start here; the user's own values win.

    Threads that spin while they wait would take cores from the other processes.
    """
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _stops_blocked() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all of them; their parent ends them.

    Otherwise a process that is still importing would end with a traceback.
    """
    resource_tracker.ensure_running()  # which unblocks signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(workers: Sequence[_Worker[Any]]) -> None:
    """Ask the processes to end; kill them if they do not end in time, or on a second Ctrl-C."""
    for worker in workers:
        worker.link.close()
        if worker.ready:
            worker.process.terminate()
        else:
            worker.process.kill()  # it is still importing, and has nothing to save
    until = time.monotonic() + GRACE_S
    try:
        for worker in workers:
            worker.process.join(max(until - time.monotonic(), 0))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


# -- in the process ----------------------------------------------------------------------------------------------------


def _work(link: Connection, threads: int) -> None:
    with importing():
        do: Callable[[Any], Any] = link.recv()  # which imports the module that it is a function of
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(KeyboardInterrupt), sigterm_as_ctrl_c():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        message: Any = _READY
        while True:
            try:
                link.send(message)
                piece = link.recv()
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return  # no work left, or no parent
            message = do(piece)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
