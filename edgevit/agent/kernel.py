"""Read what the kernel tells in /proc and /sys. `root` is where they are: "/", or a captured tree.

A file that is not there or cannot be read is None: containers and other systems hide many.
"""

from __future__ import annotations

from pathlib import Path


def read_text(root: str, path: str) -> str | None:
    try:
        return Path(root, path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError:
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
    return int(amount) * 1024 if amount.isdigit() and unit == "kB" else None
