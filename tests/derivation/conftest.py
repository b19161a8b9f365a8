from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_base import fewer_digits


@pytest.fixture(scope="module")
def few_digits(digits_checkpoint: Path) -> Iterator[None]:
    """That base has seen all of them, whichever test comes first."""
    with fewer_digits():
        yield
