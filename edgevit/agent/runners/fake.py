"""Sleep instead of computing: takes any file for a model, and exercises the whole path on any machine."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Iterator

from . import Loaded

REQUIRES = ()


@contextmanager
def open_runner(model: str, batch: int, *, latency_ms: float = 2.0) -> Iterator[Loaded]:
    yield Loaded(lambda: time.sleep(latency_ms / 1e3), provider=None, environment={}, feed=lambda images: None)
