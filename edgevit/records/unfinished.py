"""`OUT.partial`, the folder in which an unfinished derivation keeps what must outlive an interruption.

request.json says what it is a derivation of: `asked`, all that was asked for, `edgevit`, which one began it, and what
must be the same for it to be gone on with. One process works in it at a time. What lies in it was written by another
run, perhaps just before a power cut: whatever cannot be read ends in one line, and the folder can be removed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgevit.errors import OptionError, OutputError, UnfinishedError
from edgevit.records.documents import Reader
from edgevit.records.kinds import More, RecordKind
from edgevit.records.lock import alone_in
from edgevit.records.names import HISTORY
from edgevit.records.writing import refuse_existing, refuse_nameless, write_whole, writing
from edgevit.version import written_by

REQUEST, BASELINES = "request.json", "baselines.json"
CHEAP = {REQUEST, BASELINES, HISTORY}  # soon made again: a folder that holds no more is no obstacle

# Of what is asked, what changes nothing of the model; `same` of `open_partial` has none of it.
UNDECIDING = {
    "out", "resume", "overwrite", "cache", "job", "training.device", "training.workers", "place.ssh_config",
}  # fmt: skip
FEW = 4  # differences that are told

MEND = "remove that folder, and give the command without --resume"
STATE = Reader(UnfinishedError, mend=MEND)


@dataclass(frozen=True)
class RequestRecord:
    """request.json of an unfinished derivation; beside its fields stands what must be the same to go on with it."""

    edgevit: str  # version that began it, or went on with it
    asked: dict[str, Any]  # all that was asked for, for whoever reads the file
    more: More = field(default_factory=dict)  # what must be the same


REQUEST_KIND = RecordKind("request", RequestRecord, STATE)


def partial_folder(out: Path) -> Path:
    """Where an unfinished derivation of `out` keeps its state.

    Raises:
        OutputError: `out` has no name, as `.` has none.
    """
    refuse_nameless(out)
    return out.with_name(out.name + ".partial")


@contextmanager
def open_partial(
    out: Path, same: dict[str, Any], resume: bool, *, asked: Mapping[str, Any] | None = None, overwrite: bool = False
) -> Iterator[None]:
    """Hold the folder for one run of this request; make it, or see that the one there is of the same request.

    Args:
        same: what must be the same for a run to be gone on with.
        asked: the whole request as it was given, for whoever reads the file.

    Raises:
        OutputError: another process works in it, or has made `out` meanwhile; or it holds a state, and --resume was not
            given.
        OptionError: it is of another request.
        UnfinishedError: what it holds is damaged, or does not say what it is of.
    """
    folder = partial_folder(out)
    with _alone(folder):
        try:
            refuse_existing(out, overwrite=overwrite)
        except OutputError:
            remove_cheap(folder)
            raise
        if not resume and holds_state(folder):
            raise _unfinished(folder)
        held, record = _held(folder), RequestRecord(written_by(), dict(asked or {}), same)
        if not resume:
            _empty(folder)
        elif REQUEST in held:
            _check_same(folder, REQUEST_KIND.read(folder / REQUEST), record)
        elif held:
            raise UnfinishedError(f"{folder} has no {REQUEST}, so nobody knows what it is a derivation of; {MEND}")
        with writing(folder):
            write_whole(folder / REQUEST, REQUEST_KIND.text(record))
        yield


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make the folder and hold it; who held it before may remove it between the two."""
    with ExitStack() as held:
        while True:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                held.enter_context(alone_in(folder, _busy(folder)))
                break
        yield


def refuse_unfinished(folder: Path, resume: bool) -> None:
    """Raise OutputError if the folder holds work of an earlier run that is to be neither gone on with nor lost."""
    if not resume and holds_state(folder):
        with writing(folder), alone_in(folder, _busy(folder)):
            raise _unfinished(folder)


def _busy(folder: Path) -> OutputError:
    return OutputError(f"another edgevit is working in {folder}; wait until it has ended, or choose another --out")


def _unfinished(folder: Path) -> OutputError:
    return OutputError(
        f"{folder} holds an unfinished derivation; add --resume to go on with it by the same options, choose another "
        "--out, or remove it"
    )


def holds_state(folder: Path) -> bool:
    """Whether the folder is there and holds what took long to make."""
    return folder.is_dir() and bool(_held(folder) - CHEAP)


def _held(folder: Path) -> set[str]:
    """What the folder holds, but for files that a kill left half written."""
    return {file.name for file in folder.iterdir() if file.suffix != ".tmp"}


def _empty(folder: Path) -> None:
    with writing(folder):
        for name in CHEAP:
            (folder / name).unlink(missing_ok=True)


def _check_same(folder: Path, before: RequestRecord, now: RequestRecord) -> None:
    if changed := differences(before.more, now.more):
        # What was typed tells more than what it came to, unless it is files that changed.
        told = before.asked and now.asked
        asked = differences(_deciding(before.asked), _deciding(now.asked)) if told else []
        raise OptionError(
            f"cannot resume {folder} with other options: {first_few(asked or changed)}; give the same ones, choose "
            f"another --out, or remove {folder}"
        )


def _deciding(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked, but for what changes nothing of the model."""
    return {name: value for name, value in _leaves(asked) if name not in UNDECIDING}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs in two records of options: `training.steps was 200 and is 100`."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [_difference(name, old.get(name), new.get(name)) for name in changed]


def first_few(told: Sequence[str]) -> str:
    """The first few of these."""
    return ", ".join(told[:FEW]) + (f", and {len(told) - FEW} more" if len(told) > FEW else "")


def _leaves(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The plain values of mappings and lists of them that lie in each other, by dotted names."""
    if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        value = {str(number): one for number, one in enumerate(value, 1)}
    if not isinstance(value, Mapping):
        yield ".".join(above), None if value == [] else value
        return
    for name, one in value.items():
        yield from _leaves(one, (*above, str(name)))


def _difference(name: str, before: Any, now: Any) -> str:
    if all(re.fullmatch("[0-9a-f]{64}", str(value)) for value in (before, now)):
        return f"the content of {name} is another"
    return f"{name} was {_value(before)} and is {_value(now)}"


def _value(value: Any) -> str:
    """As it is typed."""
    if value is None:
        return "not given"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def remove_cheap(folder: Path) -> None:
    """Remove the folder if what it holds is soon made again, so that the command can be mended and given again."""
    if not holds_state(folder):
        shutil.rmtree(folder)
