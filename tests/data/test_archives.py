"""Archives are read to their end, or refused in one line."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from edgevit.data.archives import members
from edgevit.errors import DataError

FILES = {"cat/0.png": b"a" * 700, "dog/ö.png": b"b" * 300}


def tar(file: Path, mode: Any = "w", *more: tarfile.TarInfo) -> Path:
    """Write FILES and other members to a tar."""
    with tarfile.open(file, mode) as archive:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in more:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return file


def zipped(file: Path, names: dict[str, bytes] = FILES) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return file


def member(name: str, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def contents(file: Path) -> dict[str, bytes]:
    return {str(path): b"".join(chunks) for path, _, chunks in members(file)}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_every_byte_of_a_tar_is_read(tmp_path: Path, mode: str) -> None:
    assert contents(tar(tmp_path / "a.tar", mode)) == FILES


def test_every_byte_of_a_zip_is_read(tmp_path: Path) -> None:
    assert contents(zipped(tmp_path / "a.zip")) == FILES
    assert contents(zipped(tmp_path / "b.zip", {"cat\\0.png": b"a"})) == {"cat/0.png": b"a"}  # as some Windows tools do


def test_utf_8_without_the_flag_of_a_zip_is_read_as_macos_writes_it(tmp_path: Path) -> None:
    file = zipped(tmp_path / "a.zip")
    for offset in (data := bytearray(file.read_bytes()), -1)[1:]:
        while (offset := data.find(b"PK", offset + 1)) >= 0:
            at = {b"\x03\x04": 6, b"\x01\x02": 8}.get(bytes(data[offset + 2 : offset + 4]))
            if at is not None:
                (flags,) = struct.unpack_from("<H", data, offset + at)
                struct.pack_into("<H", data, offset + at, flags & ~0x800)
    file.write_bytes(data)
    assert contents(file) == FILES
    file.write_bytes(bytes(data).replace("ö".encode(), b"\xff\xfe"))
    with pytest.raises(DataError, match=r"the name b'dog/\\xff\\xfe.png', which is no UTF-8"):
        contents(file)


LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc"}


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (member("../x"), r"holds '../x', which is no path below the folder"),
        (member("/x"), r"holds '/x', which is no path below"),
        (member("cat/../../x"), r"which is no path below"),
        (member("cat/1.png", **LINK), r"holds 'cat/1.png', which is a link; pack the file"),
        (member("cat/1.png", type=tarfile.LNKTYPE, linkname="cat/0.png"), r"which is a link; pack the file"),
        (member("cat/1.png", type=tarfile.FIFOTYPE), r"which is a device or a pipe"),
        (member("cat/1.png", type=tarfile.CHRTYPE), r"which is a device or a pipe"),
        (member("cat/" + "x" * 300), r"longer than 1024 bytes, or 255 for a file or folder"),
        (member("x/" * 600 + "y"), r"longer than 1024 bytes, or 255"),
        (member("\udcff.png"), r"holds the name b'\\xff.png', which is no UTF-8"),
    ],
)  # fmt: skip
def test_members_that_are_unsafe_are_refused(tmp_path: Path, info: tarfile.TarInfo, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        contents(tar(tmp_path / "a.tar", "w", info))
    assert "\n" not in str(raised.value)


def test_links_and_paths_out_of_a_zip_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("cat/1.png")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match=r"holds 'cat/1.png', which is a link"):
        contents(tmp_path / "a.zip")
    for name in ("../x", "..\\x", "/x"):
        with pytest.raises(DataError, match="which is no path below the folder"):
            contents(zipped(tmp_path / "b.zip", {name: b""}))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_that_is_cut_off_anywhere_is_refused(tmp_path: Path, mode: str) -> None:
    whole = tar(tmp_path / "a.tar", mode).read_bytes()
    ends = (0, 100, 512, 900, 1536, 1600, 2560) if mode == "w" else (0, 1, 5, len(whole) // 2, len(whole) - 3)
    for end in ends:  # in and between headers and contents
        (tmp_path / "cut.tar").write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"cannot read .*cut.tar: .*; if it is cut off or damaged, copy or pack it"):
            contents(tmp_path / "cut.tar")


def test_damage_is_found(tmp_path: Path) -> None:
    whole = bytearray(tar(tmp_path / "a.tar").read_bytes())
    whole[1536 + 10] ^= 1  # of the second header
    (tmp_path / "b.tar").write_bytes(whole)
    (tmp_path / "c.tar.gz").write_bytes(gzip.compress(tar(tmp_path / "a.tar").read_bytes())[:-8] + bytes(8))
    data = bytearray(zipped(tmp_path / "a.zip", {"cat/0.png": bytes(range(256))}).read_bytes())
    data[60] ^= 1
    (tmp_path / "d.zip").write_bytes(data)
    (tmp_path / "e.zip").write_bytes(data[:-30])
    (tmp_path / "f.tar").write_bytes(b"no archive" * 100)
    for name in ("b.tar", "c.tar.gz", "d.zip", "e.zip", "f.tar"):
        with pytest.raises(DataError, match=f"cannot read .*{name}: "):
            contents(tmp_path / name)


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped(tmp_path / "a.zip").read_bytes())
    data[6] |= 1
    data[data.find(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"holds 'cat/0.png', which is encrypted; unpack it"):
        contents(tmp_path / "a.zip")
