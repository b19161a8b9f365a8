"""Options of forge that cannot be, or that need others."""

from __future__ import annotations

import pytest

from edgevit.derivation.methods import load_method
from edgevit.derivation.methods.forge.config import Config
from edgevit.errors import OptionError


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("calibration_images", 0, r"forge\.calibration_images 0 is not in \[1, "),
        ("measured_images", 0, r"forge\.measured_images 0 is not in \[1, "),
    ],
)
def test_values_that_cannot_be_are_refused(option: str, value: float, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_method("forge").Config(**{option: value})


def test_tokens_are_predicted_only_with_a_narrower_embedding() -> None:
    Config(cut_embedding=False)
    with pytest.raises(OptionError, match=r"forge.cut_tokens=predicted needs cut_embedding=true"):
        Config(cut_tokens="predicted", cut_embedding=False)
