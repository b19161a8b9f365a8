"""Find and remove the temporary files and folders of killed processes.

Their names are `.NAME.PID.tmp`, a new content, `.NAME.PID.old`, the content that it replaces, and `.NAME.PID`, a copied
file. A folder is locked while its process writes in it, so that a process on another machine does not look ended, nor a
new process with the same number like the writer.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from edgevit.errors import OutputError
from edgevit.records.lock import is_held

_LEFTOVER = re.compile(r"\.+(?P<name>.+?)\.(?P<pid>\d+)(?:\.\d+)?(?:\.(?P<end>tmp|old|part))?")
_UNLOCKED_S = 60.0  # an unlocked folder that changed within this time may be in creation


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
