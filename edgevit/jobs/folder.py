"""The folder of a command that runs jobs: one command works in it at a time, and continues what an earlier one left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgevit.errors import Interrupted, OutputError
from edgevit.records.lock import alone_in
from edgevit.records.writing import writing


@contextmanager
def working_in(folder: Path, remaining: str) -> Iterator[None]:
    """Make a folder, and hold it for this process.

    Args:
        remaining: what the same command continues with when it is stopped, such as "the rates that are not done".

    Raises:
        OutputError: the folder cannot be made, or another process works in it.
        Interrupted: Ctrl-C or SIGTERM.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    busy = OutputError(f"another edgevit is working in {folder.absolute()}; wait until it has ended")
    with alone_in(folder, busy):
        try:
            yield
        except (KeyboardInterrupt, Interrupted) as stop:
            raise Interrupted(f"stopped; the same command continues with {remaining}") from stop
