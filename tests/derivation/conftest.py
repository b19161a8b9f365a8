from __future__ import annotations

from collections.abc import Iterator

import pytest
from small_base import fewer_digits


@pytest.fixture(scope="module")
def few_digits() -> Iterator[None]:
    with fewer_digits():
        yield
