"""Pieces of work in processes of their own, which end when their parent does, however it ends.

The parent is one thread: it waits for what the processes send. A process that is asked to end (SIGTERM) keeps what its
piece of work can keep, such as the state of a training; so does one whose parent is gone, which it sees by a pipe that
the system closes then, also after kill -9.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from edgevit.imports import importing
from edgevit.signals import sigterm_as_ctrl_c

P = TypeVar("P")
R = TypeVar("R")

GRACE_S = 60.0  # for a step of training to end and its state to be written
STOPS = {signal.SIGINT, signal.SIGTERM}
_SPAWN = get_context("spawn")
_READY = "ready"  # what a process sends first: from here on it ends in good order


@dataclass(frozen=True)
class Died:
    """The end of a process in the middle of a piece of work."""

    code: int  # as subprocess has it: below zero it is a signal


def work_off(
    do: Callable[[P], R], pieces: Sequence[P], processes: int, threads: int
) -> Generator[tuple[P, R | Died | None], None, None]:
    """Do every piece; yield it with None when it begins, and with its result, or `Died`, when it ends.

    Closing the iterator ends the processes; KeyboardInterrupt while they are waited for kills them.

    Args:
        do: a function of a module. It and what it takes and returns go from process to process.
        threads: that each process computes with.
    """
    waiting = deque(pieces)
    workers: dict[Connection, _Worker[P]] = {}
    try:
        while waiting or workers:
            while waiting and len(workers) < processes:
                with _stops_blocked():
                    worker = _Worker(do, threads)
                    workers[worker.link] = worker
                yield worker.begin(waiting.popleft()), None
            for link in wait(list(workers)):
                assert isinstance(link, Connection)
                worker = workers[link]
                try:
                    told = link.recv()
                except (EOFError, ConnectionResetError):
                    worker.process.join()
                    del workers[link]
                    yield worker.piece, Died(worker.process.exitcode or 0)
                    continue
                if told == _READY:
                    worker.ready = True
                    continue
                done = worker.piece
                if waiting:
                    begun = worker.begin(waiting.popleft())
                    yield done, told
                    yield begun, None
                else:
                    link.close()
                    worker.process.join()
                    del workers[link]
                    yield done, told
    finally:
        _end(list(workers.values()))


class _Worker(Generic[P]):
    """One process, and the piece of work it has."""

    piece: P

    def __init__(self, do: Callable[[P], Any], threads: int) -> None:
        self.ready = False
        self.link, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(theirs, threads))
        with _environment(OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="PASSIVE"):
            self.process.start()
        theirs.close()
        self._send(do)

    def begin(self, piece: P) -> P:
        self.piece = piece
        self._send(piece)
        return piece

    def _send(self, what: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died, as will be seen
            self.link.send(what)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Give processes that start here variables which are read when torch is imported; what the user has set stays.

    Threads that spin while they wait take the cores that the other processes compute on.
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
    """Start processes that Ctrl-C, which a terminal sends to all, does not reach: their parent asks them to end.

    Else one that is still importing would end with a traceback, and so would one whose parent is stopped meanwhile.
    """
    resource_tracker.ensure_running()  # which unblocks signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(workers: Sequence[_Worker[Any]]) -> None:
    """Ask the processes to end, and kill those that do not in time, or when asked again."""
    for worker in workers:
        worker.link.close()
        if worker.ready:
            worker.process.terminate()
        else:
            worker.process.kill()  # it imports, and has nothing to keep
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
        told: Any = _READY
        while True:
            try:
                link.send(told)
                piece = link.recv()
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return  # nothing is left to do, or nobody to tell
            told = do(piece)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
