"""Files of runs and of profiled layers: each line is appended as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOSPC
from hashlib import blake2b
from os import SEEK_END, strerror
from pathlib import Path
from typing import Any

from edgevit.board.comparison import READER
from edgevit.errors import OutputError, RunsError

_Write = Callable[[str], None]


@dataclass(frozen=True)
class Lines:
    """How to recognise the lines of a file, whichever edgevit wrote them."""

    plural: str
    key: str  # a key that every line has
    begins: bytes  # what a line begins with, by which a line that was cut off is recognised


RUN_LINES = Lines("runs", "latencies_ns", b'{"batch"')  # keys of runs are sorted
LAYER_LINES = Lines("profiled layers", "profiled", b'{"schema"')


def writers(output: Path | None, *, layers: bool) -> tuple[_Write, _Write]:
    """The functions that append a line of a run, and of profiled layers."""
    if output is None:
        return _forget, _forget
    keep = append_to(output)
    return keep, append_to(layers_file(output), LAYER_LINES) if layers else _forget


def _forget(_: str) -> None:
    """Write nothing."""


def layers_file(output: Path) -> Path:
    """The file for profiled layers, next to the one for runs."""
    return output.with_name(f"{output.stem}.layers{output.suffix or '.jsonl'}")


def append_to(path: Path, lines: Lines = RUN_LINES) -> _Write:
    """Check that the file can be written, and return a function that appends a line to it.

    A line that does not fit on the disk is removed again. A line that the file has is not written twice, because the
    board sends all lines again if the last one could not be written. A line that a killed run left incomplete is ended.

    Raises:
        OutputError: the file cannot be written, or holds text but no such line.
        RunsError: the file cannot be read.
    """

    def write(text: str) -> None:
        try:
            with path.open("ab", buffering=0) as file:
                end = path.stat().st_size
                line = b"\n" * _is_cut_off(path) + text.encode()
                if text and _digest(text.encode()) not in digests and file.write(line) != len(line):
                    file.truncate(end)
                    raise OSError(ENOSPC, strerror(ENOSPC))
        except OSError as error:
            raise OutputError(f"cannot write runs to {path}: {error.strerror}; choose another --output") from error

    digests: set[bytes] = set()  # hashes of lines: the file may be larger than memory
    write("")
    is_own = False
    for _, line in READER.lines(path) if path.is_file() else ():
        digests.add(_digest(line))
        is_own = is_own or _is_of(lines, line)
    if digests and not is_own:
        raise OutputError(f"{path} is no file of {lines.plural}, so nothing is added to it; choose another --output")
    return write


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()


def _is_cut_off(path: Path) -> bool:
    """Whether the last line of a file lacks its line break; False for a pipe and the like."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, SEEK_END)
        return file.read() != b"\n"


def _is_of(lines: Lines, line: bytes) -> bool:
    """Whether a line, possibly incomplete or of another schema, is one of these."""
    try:
        return lines.key in READER.parse(line, dict[str, Any], "a line")
    except RunsError:
        return line.startswith(lines.begins)
