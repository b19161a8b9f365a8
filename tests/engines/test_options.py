"""What an engine may be asked to be."""

from __future__ import annotations

from typing import Any

import pytest

from edgevit.engines.options import EngineOptions
from edgevit.errors import OptionError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batches": (2, 1, 8)}, "--batches 2,1,8 does not ascend from 1"),
        ({"batches": (0, 1, 1)}, "--batches 0,1,1 does not ascend from 1"),
        ({"optimization_level": 6}, "--optimization-level 6 is not one of 0 to 5"),
        ({"workspace_bytes": 0}, "--workspace is 0: it must be at least 1"),
    ],
)
def test_what_no_engine_can_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        EngineOptions(**given)
