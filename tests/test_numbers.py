from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgevit.errors import OptionError
from edgevit.numbers import COUNT, FINITE, SEED, WORD, check_number, is_within


@pytest.mark.parametrize(
    ("value", "interval", "told"),
    [
        (math.nan, "(0, 1]", "--x nan is not in (0, 1]; try 0.5"),
        (0.0, "(0, 1]", "--x 0 is not in (0, 1]; try 0.5"),
        (math.inf, "[0, inf)", "--x inf is not a finite number of at least 0; try 0.5"),
        (-1, "(0, inf)", "--x -1 is not a finite number above 0; try 0.5"),
        (math.nan, FINITE, "--x nan is not a finite number; try 0.5"),
        (2**70, WORD, "--x of 22 digits is not in [-2**63, 2**63); try 0.5"),
        (2**32, SEED, "--x 4294967296 is not in [0, 2**32); try 0.5"),
        (0, COUNT, "--x 0 is not in [1, 2**31); try 0.5"),
        (True, COUNT, "--x True is not a number; try 0.5"),
    ],
)
def test_a_number_outside_its_interval_is_one_line(value: float, interval: str, told: str) -> None:
    with pytest.raises(OptionError) as refusal:
        check_number("--x", value, interval, "try 0.5")
    assert str(refusal.value) == told


@pytest.mark.parametrize(("value", "interval"), [(1.0, "(0, 1]"), (0, "[0, inf)"), (2**32 - 1, SEED), (-(2**63), WORD)])
def test_a_number_inside_passes(value: float, interval: str) -> None:
    check_number("--x", value, interval)


@given(st.floats(), st.floats(-10, 10, allow_subnormal=False), st.floats(-10, 10, allow_subnormal=False))
def test_an_interval_is_what_it_is_in_mathematics(value: float, low: float, high: float) -> None:
    assert is_within(value, f"[{low!r}, {high!r})") == (low <= value < high)
