"""The version of edgevit, and the processor: with the same arguments, results may differ by them.

Every record says the first: a version alone does not tell two states of a checkout apart.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from edgevit import __version__

_WAIT_S = 5.0  # time limit for git, which may be on a slow file system


@cache
def written_by() -> str:
    """The version, and in a checkout of edgevit the commit, with + behind it if files differ: "0.1.0 (1301f27+)"."""
    commit = commit_of(Path(__file__).resolve().parents[1])
    return f"{__version__} ({commit})" if commit else __version__


def commit_of(checkout: Path) -> str | None:
    """The commit that is checked out in a folder, with + behind it if files differ; None: no checkout, or no git.

    A folder inside of somebody else's checkout, as an environment with an installed edgevit may be, is none itself.
    """
    if not (checkout / ".git").exists():
        return None
    # A git hook sets variables that name another repository; and asking must not lock the index.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(checkout), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_WAIT_S, env={**clean, "GIT_OPTIONAL_LOCKS": "0"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


@cache
def processor() -> str:
    """The name of this machine's processor."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown processor")
