"""Whether a file is the one that a record states, and whether a record is of the weights that its folder has now.

Every comparison of this kind is made here. The caller adds what to try, and raises its own error.
"""

from __future__ import annotations

from pathlib import Path

from edgevit.records.writing import file_sha256

DIGITS = 12  # of a hash in messages


def file_fault(file: Path, sha256: str, record: Path) -> str | None:
    """How a file differs from the one that the record states, as the beginning of a sentence; None: it is that file.

    Raises:
        OSError: the file cannot be read.
    """
    actual = file_sha256(file)
    if actual == sha256:
        return None
    return f"{file} was altered: its hash is {actual[:DIGITS]}, {record.name} says {sha256[:DIGITS]}"


def weights_fault(record: Path, sha256: str, folder: Path, folder_sha256: str) -> str | None:
    """How the weights that a record names differ from those of the model folder; None: they are the same."""
    if sha256 == folder_sha256:
        return None
    return (
        f"{record} is of other weights ({sha256[:DIGITS]}) than {folder} has ({folder_sha256[:DIGITS]}): "
        "it belongs to another model"
    )
