"""Text of the command line as values."""

from __future__ import annotations

import pytest

from edgevit.cli.arguments import assignments, kind_name, preprocessing
from edgevit.errors import OptionError


def test_an_assignment_is_a_literal_of_python_or_text() -> None:
    assert assignments(["img_size=32", "act_layer=relu", "pool=", "flags=(1, None)", "path=a=b"]) == {
        "img_size": 32, "act_layer": "relu", "pool": "", "flags": (1, None), "path": "a=b",
    }  # fmt: skip
    assert assignments(None) == {}


@pytest.mark.parametrize("text", ["img_size", "=32", "img size=32", "3=4"])
def test_what_is_no_assignment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionError, match=r"--model-arg .* is not of the form name=value; try --model-arg img_size=32"):
        assignments([text])


def test_one_number_stands_for_the_three_channels() -> None:
    given = preprocessing("0.5", "0.1,0.2,0.3", None, "bilinear")
    assert given == {"mean": [0.5] * 3, "std": [0.1, 0.2, 0.3], "interpolation": "bilinear"}
    for text in ("0.1,0.2", "half", ""):
        with pytest.raises(OptionError, match="is not one number or three"):
            preprocessing(text, None, None, None)


def test_an_option_says_in_words_what_it_takes() -> None:
    assert [kind_name(kind) for kind in (bool, int, ("a", "b"))] == ["true or false", "a whole number", "a, b"]
