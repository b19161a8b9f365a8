"""Families that are wrong: mypy refuses every one of them, or says that its `type: ignore` is unused.

Read by mypy (`files` in pyproject.toml), and run by nobody.
"""

from __future__ import annotations

import mistyped_family

from edgevit.network.families import Family, vit
from edgevit.network.families.vit import parts

RIGHT: Family = vit
ANOTHER_RESULT: Family = mistyped_family  # type: ignore[assignment]
WITHOUT_MOST: Family = parts  # type: ignore[assignment]
