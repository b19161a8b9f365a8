from __future__ import annotations

from pathlib import Path

import pytest
from teaching import Bench, open_bench


@pytest.fixture(scope="module")
def bench(digits_checkpoint: Path) -> Bench:
    return open_bench(digits_checkpoint)
