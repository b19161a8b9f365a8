"""Read what the kernel tells in /proc and /sys, and what the board's own programs print. `root` is where they are: "/",
or a captured tree.

What is not there or cannot be read is None: containers and other systems hide much.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO

# Where a board keeps its programs; a shell that SSH starts has no sbin in its PATH, and no shell has trtexec's folder.
_PROGRAMS = ("usr/sbin", "usr/bin", "sbin", "bin")
_TRTEXEC = "usr/src/tensorrt/bin"


def read_text(root: str, path: str) -> str | None:
    # Unbuffered: a sensor that is powered off answers EAGAIN, and a text file makes a TypeError of that.
    try:
        with open(Path(root, path), "rb", buffering=0, opener=_open_without_waiting) as file:
            content = file.read()
    except OSError:
        return None
    return None if content is None else content.decode("utf-8", errors="replace").strip("\0\n ")


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_integer(root: str, path: str) -> int | None:
    return integer(read_text(root, path) or "")


def integer(text: str) -> int | None:
    try:
        return int(text) if len(text) <= 20 else None  # the kernel's have 64 bits
    except ValueError:
        return None


def read_keys(root: str, path: str) -> dict[str, str]:
    """Read lines of `key: value`; of a key that repeats, the first."""
    keys: dict[str, str] = {}
    for line in (read_text(root, path) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            keys.setdefault(key.strip(), value.strip())
    return keys


def read_bytes(root: str, path: str, key: str) -> int | None:
    """Read one `key: N kB`, in bytes."""
    amount, _, unit = read_keys(root, path).get(key, "").partition(" ")
    kilobytes = integer(amount) if unit == "kB" else None
    return None if kilobytes is None else kilobytes * 1024


def find_program(root: str, name: str) -> str | None:
    """Return the path of a program of the board, such as nvpmodel or trtexec."""
    folders = (*_PROGRAMS, _TRTEXEC) if name == "trtexec" else _PROGRAMS
    for folder in folders:
        path = os.path.join(root, folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return shutil.which(name) if root == "/" else None


def run_program(root: str, name: str, *arguments: str, timeout_s: float = 10) -> str | None:
    """Return what the program prints on stdout; None where it is absent, fails or takes too long."""
    path = find_program(root, name)
    if path is None:
        return None
    # A file, because a pipe is read to its end, and a child that the program leaves behind would keep that open.
    with open_scratch() as output:
        try:
            subprocess.run(
                [path, *arguments],
                stdin=subprocess.DEVNULL,  # some ask whether to reboot
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
                timeout=timeout_s,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        output.seek(0)
        return output.read().decode("utf-8", errors="replace")


def open_scratch() -> IO[bytes]:
    """Open a file without a name for what a program prints: in memory, as a board whose disk is full can say so."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("edgevit"), "w+b")
    return tempfile.TemporaryFile()
