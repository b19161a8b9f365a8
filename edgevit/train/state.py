"""Tensors that must outlive an interruption, written whole, and read so that damage is one line."""

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
    """Write tensors so that the file is there whole or not at all."""
    temporary = file.with_suffix(".tmp")
    with writing(file):
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, temporary)
        sync(temporary)
        temporary.replace(file)


def load_tensors(file: Path) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote.

    Raises:
        UnfinishedError: it is damaged.
    """
    with reading_state(file):
        tensors: dict[str, Tensor] = load_file(file)
        return tensors


@contextmanager
def reading_state(what: Path) -> Iterator[None]:
    """Turn what a damaged state makes torch, accelerate and safetensors raise into one line.

    Raises:
        UnfinishedError: it cannot be read, or does not fit.
    """
    try:
        yield
    except EdgeVitError:
        raise
    except (*FOREIGN, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        told = " ".join(str(error).split())[:120] or type(error).__name__
        raise UnfinishedError(
            f"the unfinished state in {what} is damaged, or of another edgevit ({told}); {HINT}"
        ) from error
