"""Other Pythons of this machine, as boards have them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def interpreter(version: str) -> str:
    name = f"python{version}"
    candidates = [shutil.which(name), *map(str, sorted(Path.home().glob(f".pyenv/versions/*/bin/{name}")))]
    for path in filter(None, candidates):
        # A pyenv shim exists for versions that are not selected, and fails.
        if subprocess.run([path, "-c", "import json"], capture_output=True).returncode == 0:
            return path
    pytest.skip(f"no {name} on this machine")
