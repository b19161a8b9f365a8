"""Tensors of an interruptible process: written as a whole, and read with a one-line error for damage."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from edgevit.errors import EdgeVitError, UnfinishedError
from edgevit.network.weights import FOREIGN
from edgevit.records.unfinished import HINT
from edgevit.records.writing import sync, writing


def save_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors as a whole or not at all."""
    temporary = file.with_suffix(".tmp")
    with writing(file):
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, temporary)
        sync(temporary)
        temporary.replace(file)


def load_tensors(file: Path) -> dict[str, Tensor]:
    """Read a file of `save_tensors`.

    Raises:
        UnfinishedError: the file is damaged.
    """
    with reading_state(file):
        tensors: dict[str, Tensor] = load_file(file)
        return tensors


@contextmanager
def reading_state(path: Path) -> Iterator[None]:
    """Convert errors that torch, accelerate and safetensors raise for a damaged state into one line.

    Raises:
        UnfinishedError: the state cannot be read, or does not fit.
    """
    try:
        yield
    except EdgeVitError:
        raise
    except (*FOREIGN, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UnfinishedError(
            f"the unfinished state in {path} is damaged, or of another edgevit ({reason}); {HINT}"
        ) from error
