"""Files that are changed by hand and sealed anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgevit.records.kinds import seal


def reseal(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of a file, and its seal with it."""
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(seal(content)))
