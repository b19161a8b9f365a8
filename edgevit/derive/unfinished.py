"""`OUT.partial`, the folder in which an unfinished derivation keeps what must outlive an interruption.

request.json says what it is a derivation of. One process works in it at a time. What lies in it was written by another
run, perhaps just before a power cut: whatever cannot be read ends in one line, and the folder can be removed.
"""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from edgevit.errors import EdgeVitError, OptionError, OutputError, UnfinishedError
from edgevit.folder.documents import Reader
from edgevit.folder.lock import alone_in
from edgevit.folder.writing import sync, write_whole, writing
from edgevit.models.checkpoint import FOREIGN

REQUEST = "request.json"
CHEAP = {REQUEST, "baselines.json", "history.jsonl"}  # soon made again: a folder that holds no more is no obstacle

MEND = "remove that folder, and give the command without --resume"
STATE = Reader(UnfinishedError, mend=MEND)


def partial_folder(out: Path) -> Path:
    """Where an unfinished derivation of `out` keeps its state."""
    return out.with_name(out.name + ".partial")


@contextmanager
def open_partial(folder: Path, request: dict[str, Any], resume: bool) -> Iterator[None]:
    """Hold the folder for one run of this request; make it, or see that the one there is of the same request.

    Raises:
        OutputError: another process works in it; or it holds a state, and --resume was not given.
        OptionError: it is of another request.
        UnfinishedError: what it holds is damaged, or does not say what it is of.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    busy = OutputError(f"another edgevit is working in {folder}; wait until it has ended, or choose another --out")
    with alone_in(folder, busy):
        held = {file.name for file in folder.iterdir()}
        if not resume and held - CHEAP:
            raise OutputError(f"{folder} holds an unfinished derivation; add --resume to go on with it, or remove it")
        if not resume:
            _empty(folder)
        elif REQUEST in held:
            _check_same(folder, STATE.json(folder / REQUEST, dict[str, Any]), request)
        elif held:
            raise UnfinishedError(f"{folder} has no {REQUEST}, so nobody knows what it is a derivation of; {MEND}")
        with writing(folder):
            write_whole(folder / REQUEST, json.dumps(request))
        yield


def _empty(folder: Path) -> None:
    with writing(folder):
        for name in CHEAP:
            (folder / name).unlink(missing_ok=True)


def _check_same(folder: Path, before: dict[str, Any], request: dict[str, Any]) -> None:
    changed = sorted(k for k in before.keys() | request.keys() if before.get(k) != request.get(k))
    if changed:
        told = ", ".join(f"{k} was {before.get(k)!r} and is {request.get(k)!r}" for k in changed[:3])
        raise OptionError(f"cannot resume {folder} with other options: {told}; give the same ones, or remove it")


def remove_cheap(folder: Path) -> None:
    """Remove the folder if what it holds is soon made again, so that the command can be mended and given again."""
    if {file.name for file in folder.iterdir()} <= CHEAP:
        shutil.rmtree(folder)


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
        raise UnfinishedError(f"the unfinished state in {what} is damaged ({told}); {MEND}") from error
