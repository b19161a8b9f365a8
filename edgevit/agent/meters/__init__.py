"""One file per thing that is read beside the latencies. Each defines one class, `Meter`, as below.

To add a meter, write its file, add its figures to `Run` in `records.py` (a new schema), and open it in `measure.py`
around the part of the work that it is about. A meter of power gives the one figure `power`, as `records.Power` has it,
and is chosen in `power.py`, which says what more it has.
"""

from __future__ import annotations

from types import TracebackType
from typing import Mapping, Protocol


class AnyMeter(Protocol):
    """A context manager around the work; `root` in its constructor is "/" or a captured tree."""

    def __enter__(self) -> AnyMeter: ...

    def read(self) -> None:
        """Take a reading during the work: called between two inferences, several times a second, never within one."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def figures(self) -> Mapping[str, object]:
        """Return fields of `Run`, once the work is done; None for what this machine does not tell."""
