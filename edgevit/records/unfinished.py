"""`OUT.partial`, the folder that keeps the state of an unfinished derivation.

request.json has `request`, all options, `edgevit`, the version that began the derivation, and its identity: the values
that must be equal for it to be resumed. One process works in the folder at a time. Its files may have been written just
before a power cut: a file that cannot be read is an error of one line, and the folder can be removed.
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
_CHEAP = {REQUEST, BASELINES, HISTORY}  # cheap to compute again: a folder with no other files may be replaced

# Options without effect on the model, which are no part of its identity.
_NO_EFFECT = {
    "out", "resume", "overwrite", "cache", "job", "training.device", "training.workers", "place.ssh_config",
}  # fmt: skip
_FEW = 4  # differences in a message

HINT = "remove that folder, and give the command without --resume"
STATE = Reader(UnfinishedError, hint=HINT)


@dataclass(frozen=True)
class RequestRecord:
    """request.json of an unfinished derivation; beside its fields it contains the identity of the derivation."""

    edgevit: str  # version of edgevit that began or resumed the derivation
    request: dict[str, object]  # all options, for a person who reads the file
    more: More = field(default_factory=dict)  # the identity of the derivation


REQUEST_KIND = RecordKind("request", RequestRecord, STATE)


def partial_folder(out: Path) -> Path:
    """The folder of the state of an unfinished derivation of `out`.

    Raises:
        OutputError: `out` has no name, as `.` has none.
    """
    refuse_nameless(out)
    return out.with_name(out.name + ".partial")


@contextmanager
def open_partial(
    out: Path,
    identity: dict[str, object],
    resume: bool,
    *,
    request: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[None]:
    """Lock the folder for one run; create it, or verify that the existing one has the same identity.

    Args:
        identity: values that must be equal for a run to be resumed.
        request: all options as they were given, for a person who reads the file.

    Raises:
        OutputError: another process works in it, or has written `out` meanwhile; or it contains a state, and --resume
            was not given.
        OptionError: it has another identity.
        UnfinishedError: a file in it is damaged, or request.json is missing.
    """
    folder = partial_folder(out)
    with _alone(folder):
        try:
            refuse_existing(out, overwrite=overwrite)
        except OutputError:
            remove_cheap(folder)
            raise
        if not resume and has_state(folder):
            raise _unfinished(folder)
        files, record = _files(folder), RequestRecord(written_by(), dict(request or {}), identity)
        if not resume:
            with writing(folder):
                for name in _CHEAP:
                    (folder / name).unlink(missing_ok=True)
        elif REQUEST in files:
            _check_identity(folder, REQUEST_KIND.read(folder / REQUEST), record)
        elif files:
            raise UnfinishedError(f"{folder} has no {REQUEST}, so its options are unknown; {HINT}")
        with writing(folder):
            write_whole(folder / REQUEST, REQUEST_KIND.text(record))
        yield


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Create and lock the folder; its last holder may remove it between the two steps."""
    with ExitStack() as stack:
        while True:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                stack.enter_context(alone_in(folder, _busy(folder)))
                break
        yield


def refuse_unfinished(folder: Path, resume: bool) -> None:
    """Raise OutputError if the folder contains the state of an earlier run that is not to be resumed."""
    if not resume and has_state(folder):
        with writing(folder), alone_in(folder, _busy(folder)):
            raise _unfinished(folder)


def _busy(folder: Path) -> OutputError:
    return OutputError(f"another edgevit is working in {folder}; wait until it has ended, or choose another --out")


def _unfinished(folder: Path) -> OutputError:
    return OutputError(
        f"{folder} holds an unfinished derivation; add --resume and the same options to continue it, choose another "
        "--out, or remove it"
    )


def has_state(folder: Path) -> bool:
    """Whether the folder exists and contains files that are expensive to compute."""
    return folder.is_dir() and bool(_files(folder) - _CHEAP)


def _files(folder: Path) -> set[str]:
    """Names of the files in the folder, except temporary files that a killed process left."""
    return {file.name for file in folder.iterdir() if file.suffix != ".tmp"}


def _check_identity(folder: Path, before: RequestRecord, now: RequestRecord) -> None:
    if changed := differences(before.more, now.more):
        # Options as typed are clearer than the identity, unless only files changed.
        recorded = before.request and now.request
        options = differences(_effective(before.request), _effective(now.request)) if recorded else []
        raise OptionError(
            f"cannot resume {folder} with other options: {first_few(options or changed)}; give the same ones, choose "
            f"another --out, or remove {folder}"
        )


def _effective(request: Mapping[str, Any]) -> dict[str, object]:
    """The options that have an effect on the model."""
    return {name: value for name, value in _leaves(request) if name not in _NO_EFFECT}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the differences of two records of options: `training.steps was 200 and is 100`."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [_difference(name, old.get(name), new.get(name)) for name in changed]


def first_few(texts: Sequence[str]) -> str:
    """List the first few of these, with the number of the others."""
    return ", ".join(texts[:_FEW]) + (f", and {len(texts) - _FEW} more" if len(texts) > _FEW else "")


def _leaves(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The plain values of nested mappings and lists, by dotted names."""
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        value = {str(number): item for number, item in enumerate(value, 1)}
    if not isinstance(value, Mapping):
        yield ".".join(above), None if value == [] else value
        return
    for name, item in value.items():
        yield from _leaves(item, (*above, str(name)))


def _difference(name: str, before: Any, now: Any) -> str:
    if all(re.fullmatch("[0-9a-f]{64}", str(value)) for value in (before, now)):
        return f"the content of {name} differs"
    return f"{name} was {_value(before)} and is {_value(now)}"


def _value(value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return "not given"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def remove_cheap(folder: Path) -> None:
    """Remove the folder unless it contains a state, so that the command can be corrected and given again."""
    if not has_state(folder):
        shutil.rmtree(folder)
