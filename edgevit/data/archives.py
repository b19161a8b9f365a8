"""The files in an archive: a zip, or a tar as it is or compressed by gzip, bzip2 or xz.

tarfile takes a damaged header as the end of the archive, and zipfile renames what is unsafe; here each of these is a
one-line error.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from edgevit.errors import DataError
from edgevit.records.writing import NAME_BYTES
from edgevit.text import shortened

SUFFIXES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
# By the first bytes of the file.
_OPENERS: Mapping[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_PATH_BYTES = 1024  # longest path of a member, which is joined to the path of the cache
_CHUNK_BYTES = 1 << 20
# What the readers raise for a cut, damaged, encrypted or unknown file.
_UNREADABLE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError,
    LookupError, OverflowError, RuntimeError,
)  # fmt: skip


class Member(NamedTuple):
    """A file in an archive; the next one is read after its chunks."""

    path: PurePosixPath
    size: int
    chunks: Iterator[bytes]


@contextmanager
def reading_packed(file: Path) -> Iterator[None]:
    """Convert errors of reading a packed file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        yield
    except _UNREADABLE as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or (str(error).splitlines() or ["?"])[0]
        raise DataError(
            f"cannot read {file}: {shortened(reason or type(error).__name__, 120)}; if it is cut off or "
            "damaged, copy or pack it again"
        ) from error


def members(file: Path) -> Iterator[Member]:
    """Read the files in an archive, from its beginning to its end.

    Raises:
        DataError: it cannot be read, or holds what is no plain file, or a name that is unsafe, too long or no UTF-8.
    """
    with reading_packed(file):
        yield from (_of_zip if file.suffix.lower() == ".zip" else _of_tar)(file)


def _of_zip(file: Path) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if stat.S_ISLNK(info.external_attr >> 16):
                raise _refusal(file, info.filename, "a link; pack the file that it leads to")
            if info.flag_bits & 0x1:
                raise _refusal(file, info.filename, "encrypted; unpack it yourself and give the folder")
            # Without the flag zipfile decodes as cp437, but macOS and others write UTF-8 even so.
            name = info.filename if info.flag_bits & 0x800 else _decoded(file, info.filename.encode("cp437"))
            with archive.open(info) as content:
                yield Member(_safe(file, name.replace("\\", "/")), info.file_size, _chunks(file, content))


class _Header(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Header:
        """Read a header; one that is damaged or cut off is an error, which tarfile takes as the end of the archive."""
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise EOFError(f"{error}, expected another file or the end of the archive") from error


def _of_tar(file: Path) -> Iterator[Member]:
    with file.open("rb") as opened:
        begin = opened.read(8)
    opener: Callable[..., Any] = next((opener for magic, opener in _OPENERS.items() if begin.startswith(magic)), open)
    with (
        opener(file, "rb") as stream,
        tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header, encoding="utf-8", errors="surrogateescape") as archive,
    ):
        while (info := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # else a million of them take a gigabyte
            if info.isdir():
                continue
            if not info.isreg():
                kind = "a link; pack the file that it leads to (`tar -h --hard-dereference`)"
                raise _refusal(file, info.name, kind if info.issym() or info.islnk() else "a device or a pipe")
            content = archive.extractfile(info)
            assert content is not None, "it is a regular file"
            name = _decoded(file, info.name.encode("utf-8", "surrogateescape"))
            yield Member(_safe(file, name), info.size, _chunks(file, content))
        while stream.read(_CHUNK_BYTES):  # to the checksum at the end
            pass


def _chunks(file: Path, content: IO[bytes]) -> Iterator[bytes]:
    with reading_packed(file):
        while chunk := content.read(_CHUNK_BYTES):
            yield chunk


def _refusal(file: Path, name: str, kind: str) -> DataError:
    return DataError(f"{file} holds {shortened(name)!a}, which is {kind}")


def _decoded(file: Path, name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise DataError(f"{file} holds the name {name[:80]!r}, which is no UTF-8; rename and pack it again") from None


def _safe(file: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise _refusal(file, name, "no path below the folder that it is unpacked to")
    if len(os.fsencode(name)) > _PATH_BYTES or any(len(os.fsencode(part)) > NAME_BYTES for part in path.parts):
        raise _refusal(file, name, f"longer than {_PATH_BYTES} bytes, or {NAME_BYTES} for a file or folder")
    return path
