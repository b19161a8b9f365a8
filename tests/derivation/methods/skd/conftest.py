from __future__ import annotations

from typing import Any

import pytest

from edgevit.data.task import open_task
from edgevit.network.model import describe
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


@pytest.fixture(scope="module")
def passes() -> Any:
    return open_passes(Training(device="cpu", batch_size=32))


@pytest.fixture(scope="module")
def images(small_vit: Any) -> Any:
    """Some of all the digits."""
    task = open_task("digits", None, preprocessing=describe(small_vit(), "x", {}).preprocessing, base_outputs=10)
    return task.train.subset(32)
