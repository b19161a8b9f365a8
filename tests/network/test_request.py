"""Options of a base, from text."""

from __future__ import annotations

import pytest

from edgevit.errors import OptionError
from edgevit.network.request import three
from edgevit.request import assignments


def test_one_number_stands_for_the_three_channels() -> None:
    read = three("--mean")
    assert read("0.5", {}) == [0.5] * 3 and read("0.1,0.2,0.3", {}) == [0.1, 0.2, 0.3]
    for text in ("0.1,0.2", "half", ""):
        with pytest.raises(OptionError, match=r"--mean .* is not one number or three; try --mean 0.5,0.5,0.5"):
            read(text, {})


def test_an_argument_of_timm_is_a_literal_of_python_or_text() -> None:
    read = assignments("--model-arg", "img_size=32")
    assert read(["img_size=32", "act_layer=relu", "pool=", "flags=(1, None)", "path=a=b"], {}) == {
        "img_size": 32, "act_layer": "relu", "pool": "", "flags": (1, None), "path": "a=b",
    }  # fmt: skip
    for text in ("img_size", "=32", "img size=32", "3=4"):
        with pytest.raises(OptionError, match=r"is not of the form name=value; try --model-arg img_size=32"):
            read([text], {})
