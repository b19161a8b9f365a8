"""Check that a file is the one stated by a record, and that a record is of the weights of its folder.

The caller adds a hint and raises its own error.
"""

from __future__ import annotations

from pathlib import Path

from edgevit.records.writing import file_sha256

_DIGITS = 12  # digits of a hash in messages


def file_fault(file: Path, sha256: str, record: Path) -> str | None:
    """Describe how a file differs from the hash in its record, as the beginning of a sentence; None: it is equal.

    Raises:
        OSError: the file cannot be read.
    """
    actual = file_sha256(file)
    if actual == sha256:
        return None
    return f"{file} was altered: its hash is {actual[:_DIGITS]}, {record.name} states {sha256[:_DIGITS]}"


def weights_fault(record: Path, sha256: str, folder: Path, folder_sha256: str) -> str | None:
    """Describe that a record is of other weights than its model folder has; None: they are equal."""
    if sha256 == folder_sha256:
        return None
    return (
        f"{record} is of other weights ({sha256[:_DIGITS]}) than {folder} has ({folder_sha256[:_DIGITS]}): "
        "it belongs to another model"
    )
