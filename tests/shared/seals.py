"""Files as they were before they had seals, and files that are changed by hand and sealed anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgevit.records.kinds import RecordKind


def unsealed(kind: RecordKind[Any], content: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """What a file of a schema before the seal says."""
    assert kind.seal is not None and schema < kind.seal.since
    own = {kind.seal.key, *kind.seal.marks}
    return {**{name: value for name, value in content.items() if name not in own}, "schema": schema}


def reseal(kind: RecordKind[Any], file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a file says, and its seal with it."""
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(kind.sealed(content)))
