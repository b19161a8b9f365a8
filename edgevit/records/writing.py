"""Write files and folders atomically, hash them, and remove what killed processes left of them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

from safetensors import SafetensorError

from edgevit.agent.files import open_regular
from edgevit.errors import EdgeVitError, OutputError
from edgevit.records.lock import alone_in, is_held
from edgevit.records.names import EXPORT, MODEL_FOLDER, SPEC

NAME_BYTES = 255  # longest file name on common file systems
_SPARE_BYTES = 24  # longest prefix and suffix of temporary names: a dot, a process number, ".partial", ".tmp"
# Temporary files and folders are `.NAME.PID.tmp`, a new content, `.NAME.PID.old`, the content that it replaces, and
# `.NAME.PID`, a copied file. A folder is locked while its process writes in it, so that a process on another machine
# does not look ended, nor a new process with the same number like the writer.
_LEFTOVER = re.compile(r"\.+(?P<name>.+?)\.(?P<pid>\d+)(?:\.\d+)?(?:\.(?P<end>tmp|old|part))?")
_UNLOCKED_S = 60.0  # an unlocked folder that changed within this time may be in creation


def file_sha256(path: Path) -> str:
    with open_regular(str(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256(file)


def _sha256(file: Any) -> str:  # Python 3.10 has no file_digest
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def refuse_nameless(folder: Path) -> None:
    """Raise OutputError if a path has no last name, like `.` and `..`."""
    if folder.name in ("", ".."):
        raise OutputError(
            f"--out {folder} does not end in the name of a folder; give one, such as --out {folder / 'm'}"
        )


def refuse_existing(folder: Path, *, overwrite: bool | None = None) -> None:
    """Check that an output folder can be created; called before hours of work and again at the end.

    Args:
        overwrite: whether an existing folder may be replaced; None: the caller has no such option.

    Raises:
        OutputError: the folder exists, is a broken link, its name is too long or missing, or its parent is not a
            writable folder. To be overwritten it must be a model folder with no other files.
    """
    refuse_nameless(folder)
    if os.path.lexists(folder):
        if not folder.exists():
            raise OutputError(f"{folder} is a link to nothing; choose another --out, or remove it")
        if not overwrite:
            replaced = "or remove it" if overwrite is None else "remove it, or replace it with --overwrite"
            raise OutputError(f"{folder} exists and is not overwritten; choose another --out, {replaced}")
        _refuse_foreign(folder)
    length = len(os.fsencode(folder.name))
    if length > NAME_BYTES - _SPARE_BYTES:
        raise OutputError(
            f"--out has a name of {length} bytes, expected at most {NAME_BYTES - _SPARE_BYTES}; choose a shorter one"
        )
    for parent in folder.absolute().parents:
        if os.path.isdir(parent):  # Path.is_dir raises on names that are too long
            with writing(folder), TemporaryFile(dir=parent):
                return
        if os.path.lexists(parent):
            raise OutputError(f"{parent} is not a folder, so {folder} cannot be created; choose another --out")


def refuse_unwritable(file: Path) -> None:
    """Check that an output file can be written; called before minutes of work.

    Raises:
        OutputError: it is a folder, or its folder is missing or not writable.
    """
    if file.is_dir() or not file.parent.is_dir():
        raise OutputError(f"cannot write {file}: it is a folder, or its folder is missing; choose another --output")
    with writing(file), NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}."):
        pass


def _refuse_foreign(folder: Path) -> None:
    """Raise OutputError unless this is a model folder without other files, which may be replaced."""
    if folder.is_symlink() or not folder.is_dir() or not (folder / SPEC).is_file():
        raise OutputError(f"{folder} is not a model folder, so it is not overwritten; choose another --out")
    inner = [file for file in folder.iterdir() if not is_leftover(file, EXPORT)]
    for file in inner:
        refuse_in_use(file)
    if foreign := sorted({file.name for file in inner} - MODEL_FOLDER):
        raise OutputError(
            f"{folder} holds {foreign[0]!r}, which edgevit did not write, so it is not overwritten; move that away"
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of writing, such as of a full disk, to OutputError.

    Raises:
        OutputError: the path could not be written.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or (str(error).splitlines() or ["?"])[0][:120]
        raise OutputError(f"cannot write {path}: {reason}; free some space or choose another place") from error
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ("PytorchStreamWriter", "iostream", "unexpected pos")):
            raise  # not the message of torch.save for a full disk
        raise OutputError(f"cannot write {path}: is the disk full? Free some space or choose another place") from error


def is_of_full_disk(error: EdgeVitError | OSError) -> bool:
    """Whether an error of writing says that there is no room, or that torch suspects so."""
    signs = ("No space left on device", "Disk quota exceeded", "is the disk full")
    return any(sign in str(error) for sign in signs)


def write_whole(file: Path, text: str) -> None:
    """Write a small file atomically, also in case of a power cut, without following a link.

    A path that is not a regular file, such as a pipe or /dev/full, is written to and not replaced.
    """
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    temporary = file.with_name(file.name + ".tmp")
    temporary.unlink(missing_ok=True)  # a file of a killed process, or a link by another user
    try:
        with temporary.open("x", encoding="utf-8") as opened:
            opened.write(text)
        sync(temporary)
        temporary.replace(file)
    except OSError:
        with suppress(OSError):  # it may not have been created
            temporary.unlink()
        raise


def write_first(file: Path, text: str) -> str:
    """Write a small file unless it exists, and return what it says: of several processes the first one's text."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        with suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    return file.read_text(encoding="utf-8")


def copy_whole(source: Path, file: Path) -> None:
    """Copy a file atomically, also in case of a power cut."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    remove_leftovers(file)
    try:
        shutil.copyfile(source, temporary)
        sync(temporary)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or all files in a folder, to the disk, so that a rename cannot precede the content."""
    for file in (path.rglob("*"), (path,))[path.is_file()]:
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            try:
                with suppress(OSError):  # not supported by the file system
                    os.fsync(handle)
            finally:
                os.close(handle)


def cache_folder(part: str) -> Path:
    """A folder of the user's cache: $XDG_CACHE_HOME/edgevit/PART, or ~/.cache/edgevit/PART."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "edgevit" / part


@contextmanager
def new_folder(folder: Path, *, overwrite: bool | None = None) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` when the block succeeds, and is removed otherwise.

    A model folder that is to be overwritten stays until then.

    Raises:
        OutputError: the folder exists and may not be overwritten, or cannot be written.
    """
    with replaced_folder(folder, lambda: refuse_existing(folder, overwrite=overwrite)) as temporary:
        yield temporary


@contextmanager
def replaced_folder(folder: Path, refuse: Callable[[], None], *, keep: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` when the block succeeds, and is removed otherwise.

    Args:
        refuse: raises OutputError if the existing folder may not be replaced; called before and after the block.
        keep: name of a part of the replaced folder that is kept.

    Raises:
        OutputError: as by `refuse`, or it cannot be written.
    """
    remove_leftovers(folder, keep=keep)
    refuse()
    temporary, earlier = (folder.with_name(f".{folder.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    with writing(folder), ExitStack() as lock:
        temporary.mkdir(parents=True)
        # Locked until the end, so that no other process takes it for a leftover.
        lock.enter_context(alone_in(temporary, OutputError(f"another edgevit is writing {temporary}")))
        try:
            yield temporary
            sync(temporary)
            refuse()
            if folder.exists():
                folder.rename(earlier)
            temporary.rename(folder)
        finally:
            if earlier.exists() and not folder.exists():
                earlier.rename(folder)
            if keep is not None and (earlier / keep).exists():  # in `finally`, so that Ctrl-C cannot skip it
                (earlier / keep).rename(folder / keep)
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(earlier, ignore_errors=True)


def is_leftover(path: Path, name: str) -> bool:
    """Whether a path is a temporary one for `name` in the same folder, and the process that wrote it has ended."""
    match = _LEFTOVER.fullmatch(path.name)
    return match is not None and match["name"] == name and not _is_in_use(path, int(match["pid"]))


def remove_leftovers(target: Path, *, keep: str | None = None) -> None:
    """Remove temporary files and folders of ended processes for a file or folder that is about to be written.

    Where one of them had moved the earlier content away without a replacement, that content is restored, or only the
    part named `keep` of it. Failures to remove are ignored.
    """
    with suppress(OSError):
        leftovers = [path for path in target.parent.iterdir() if is_leftover(path, target.name)]
        for path in sorted(leftovers, key=lambda path: path.name.endswith(".tmp")):
            if path.name.endswith(".old"):
                _bring_back(path, target, keep)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def refuse_in_use(path: Path) -> None:
    """Raise OutputError if a path is the temporary one of a running process."""
    match = _LEFTOVER.fullmatch(path.name)
    if match is not None and _is_in_use(path, int(match["pid"])):
        raise OutputError(f"another edgevit, process {match['pid']}, is writing {path}; wait until it has ended")


def _bring_back(earlier: Path, target: Path, keep: str | None) -> None:
    if not os.path.lexists(target):
        earlier.rename(target)
    elif keep is not None and (earlier / keep).exists() and not (target / keep).exists():
        (earlier / keep).rename(target / keep)


def _is_in_use(path: Path, pid: int) -> bool:
    held = is_held(path) if path.is_dir() and not path.is_symlink() else None
    if held is None:
        return _is_alive(pid)
    with suppress(OSError):
        return held or (_is_alive(pid) and time.time() - path.stat().st_mtime < _UNLOCKED_S)
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
