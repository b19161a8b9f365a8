from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_base import PLAN


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    """Write the small plan with some keys changed."""

    def write(**changed: Any) -> Path:
        held = {**PLAN, "out": str(tmp_path / "out"), **changed}
        file = tmp_path / "jobs.yaml"
        file.write_text(yaml.safe_dump({k: v for k, v in held.items() if v is not None}))
        return file

    return write
