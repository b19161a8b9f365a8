"""Options of forge that cannot be, or that need others."""

from __future__ import annotations

from typing import Any

import pytest

from edgevit.derivation.methods import load_method
from edgevit.derivation.methods.forge.config import Config
from edgevit.errors import OptionError


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("calibration_images", 0, r"forge\.calibration_images=0 is less than 1"),
        ("sequential_ridge", -1, r"forge\.sequential_ridge=-1 is not a number of at least 0"),
        ("temperature", 0, r"forge\.temperature=0"),
    ],
)
def test_values_that_cannot_be_are_refused(option: str, value: float, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_method("forge").Config(**{option: value})


@pytest.mark.parametrize("beside", [{"cut_embedding": False}, {"allocation": "uniform"}, {"sensitivity": "none"}])
def test_tokens_are_tried_where_they_can_be_and_asked_for_only_there(beside: dict[str, Any]) -> None:
    Config(**beside)
    with pytest.raises(OptionError, match=r"forge.cut_tokens=predicted needs cut_embedding=true, allocation=joint"):
        Config(cut_tokens="predicted", **beside)
