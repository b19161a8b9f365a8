"""Files and folders that are there whole or not at all, whatever happens meanwhile; and their hashes."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

from safetensors import SafetensorError

from edgevit.agent.files import open_regular
from edgevit.errors import OutputError
from edgevit.records.leftovers import is_leftover, refuse_in_use, remove_leftovers
from edgevit.records.lock import alone_in
from edgevit.records.names import EXPORT, MODEL_FOLDER, SPEC

NAME_BYTES = 255  # of one file name, on every file system that counts
SPARE_BYTES = 24  # that names beside an output are longer than its own: a dot, a process number, ".partial", ".tmp"


def file_sha256(path: Path) -> str:
    with open_regular(str(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256(file)


def _sha256(file: Any) -> str:  # Python 3.10 has no file_digest
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def refuse_nameless(folder: Path) -> None:
    """Raise OutputError where a path does not end in the name of what is to be made, as `.` and `..` do not."""
    if folder.name in ("", ".."):
        raise OutputError(
            f"--out {folder} does not end in the name of a folder; give one, such as --out {folder / 'm'}"
        )


def refuse_existing(folder: Path, *, overwrite: bool | None = None) -> None:
    """Refuse an output that is in the way or cannot be made; called before hours of work and again at the end.

    Args:
        overwrite: whether it is to be replaced; None: what asks has no option for that.

    Raises:
        OutputError: the folder is there, a link to nowhere is, its name is too long or missing, or what holds it is no
            folder, or one that cannot be written in. To be overwritten it must be a model folder, and hold nothing that
            edgevit does not write.
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
    if length > NAME_BYTES - SPARE_BYTES:
        raise OutputError(
            f"--out has a name of {length} bytes, and {NAME_BYTES - SPARE_BYTES} is the most; choose a shorter one"
        )
    for parent in folder.absolute().parents:
        if os.path.isdir(parent):  # Path.is_dir raises on names that are too long
            with writing(folder), TemporaryFile(dir=parent):
                return
        if os.path.lexists(parent):
            raise OutputError(f"{parent} is not a folder, so {folder} cannot be made; choose another --out")


def refuse_unwritable(file: Path) -> None:
    """Refuse a file as an output that cannot be written; called before minutes of work.

    Raises:
        OutputError: it is a folder, lies in none, or nothing can be written there.
    """
    if file.is_dir() or not file.parent.is_dir():
        raise OutputError(f"cannot write {file}: it is a folder, or lies in none; choose another --output")
    with writing(file), NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}."):
        pass


def _refuse_foreign(folder: Path) -> None:
    """Raise OutputError unless this is a model folder that holds nothing else, which may be replaced."""
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
def writing(what: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into one line.

    Raises:
        OutputError: it could not be written.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or (str(error).splitlines() or ["?"])[0][:120]
        raise OutputError(f"cannot write {what}: {reason}; free some space or choose another place") from error
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ("PytorchStreamWriter", "iostream", "unexpected pos")):
            raise  # not torch.save, which says no more than this of a full disk
        raise OutputError(f"cannot write {what}: is the disk full? Free some space or choose another place") from error


def write_whole(file: Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all, after a power cut, too; no link is followed.

    What is there and no file, such as a pipe or /dev/full, is not replaced, but written to.
    """
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    temporary = file.with_name(file.name + ".tmp")
    temporary.unlink(missing_ok=True)  # of a process that was killed, or a link that somebody else put there
    try:
        with temporary.open("x", encoding="utf-8") as opened:
            opened.write(text)
        sync(temporary)
        temporary.replace(file)
    except OSError:
        with suppress(OSError):  # it may never have come to be
            temporary.unlink()
        raise


def copy_whole(source: Path, file: Path) -> None:
    """Copy a file so that the copy is there whole or not at all, after a power cut, too."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    remove_leftovers(file)
    try:
        shutil.copyfile(source, temporary)
        sync(temporary)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """See that a file, or every file in a folder, is on the disk, so that a rename cannot overtake its content."""
    for file in (path.rglob("*"), (path,))[path.is_file()]:
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            try:
                with suppress(OSError):  # a file system that cannot
                    os.fsync(handle)
            finally:
                os.close(handle)


@contextmanager
def new_folder(folder: Path, *, overwrite: bool | None = None) -> Iterator[Path]:
    """Give a temporary folder that becomes `folder` when the block ends well, and vanishes when it does not.

    A model folder that is to be overwritten stays until then.

    Raises:
        OutputError: the folder exists and is not to be overwritten, or cannot be written.
    """
    with replaced_folder(folder, lambda: refuse_existing(folder, overwrite=overwrite)) as temporary:
        yield temporary


@contextmanager
def replaced_folder(folder: Path, refuse: Callable[[], None], *, keep: str | None = None) -> Iterator[Path]:
    """Give a temporary folder that takes the place of `folder` when the block ends well, and vanishes when it does not.

    Args:
        refuse: raises OutputError where what is there may not be replaced; asked before and after the block.
        keep: what is called so in the folder that is replaced stays.

    Raises:
        OutputError: as `refuse` says, or it cannot be written.
    """
    remove_leftovers(folder, keep=keep)
    refuse()
    temporary, earlier = (folder.with_name(f".{folder.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    with writing(folder), ExitStack() as lock:
        temporary.mkdir(parents=True)
        # Held until the end, so that no other edgevit takes it for one that a dead process left.
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
            if keep is not None and (earlier / keep).exists():  # here, so that Ctrl-C does not come between
                (earlier / keep).rename(folder / keep)
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(earlier, ignore_errors=True)
