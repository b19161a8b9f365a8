from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def reversed_names(tmp_path: Path) -> Path:
    """Names of the digits' classes in a wrong order."""
    file = tmp_path / "names.txt"
    file.write_text("\n".join(str(i) for i in reversed(range(10))))
    return file
