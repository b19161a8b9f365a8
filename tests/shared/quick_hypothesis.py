"""What hypothesis makes once per process, or keeps in .hypothesis, which a fresh clone lacks: 8 s for each test worker.

All of this is private to hypothesis: where it has another form, the first of its tests only take longer.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def make_tables_quickly(*, constants: bool) -> None:
    """Give hypothesis the characters of UTF-8; without `constants` it reads none from the project's files."""
    with suppress(ImportError, AttributeError):
        from hypothesis.internal import charmap
        from hypothesis.internal.conjecture import providers
        from hypothesis.internal.intervalsets import IntervalSet

        of_codec = charmap.intervals_from_codec
        utf_8 = IntervalSet([(0, 0xD7FF), (0xE000, sys.maxunicode)]), IntervalSet([])  # all but surrogates

        def intervals_from_codec(name: str) -> Any:
            return utf_8 if name == "utf-8" else of_codec(name)

        charmap.intervals_from_codec = intervals_from_codec  # type: ignore[assignment]
        if not constants and hasattr(providers, "_get_local_constants"):
            read = providers._local_constants
            providers._get_local_constants = lambda: read
