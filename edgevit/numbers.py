"""Read and check the numbers of options: counts such as 6.8G, and finite numbers in an interval.

check_number("--crop-pct", crop_pct, "(0, 1]", "0.9 keeps the central 90 %")
check_number("--seed", seed, SEED)
"""

from __future__ import annotations

import math
import re

from edgevit.errors import OptionError

SEED = "[0, 2**32)"  # what every generator that draws from it takes
COUNT = "[1, 2**31)"  # images, steps, processes ...
FINITE, WORD = "(-inf, inf)", "[-2**63, 2**63)"

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_INTERVAL = re.compile(r"([\[(])\s*([^,]+),\s*([^,]+?)\s*([\])])")


def _bound(text: str) -> float:
    base, power, exponent = text.partition("**")
    return float(base) ** int(exponent) if power else float(text)


def is_within(value: float, interval: str) -> bool:
    """Whether a number is finite and in an interval such as "(0, 1]", "[0, inf)" or "[1, 2**31)"."""
    match = _INTERVAL.fullmatch(interval)
    assert match is not None, interval
    low, high = _bound(match[2]), _bound(match[3])
    if isinstance(value, float) and not math.isfinite(value):
        return False
    above = value >= low if match[1] == "[" else value > low
    below = value <= high if match[4] == "]" else value < high
    return above and below


def check_number(name: str, value: float, interval: str, hint: str = "") -> None:
    """Refuse a number outside an interval, NaN and infinity included.

    Args:
        name: as the user knows it, such as "--rate" or "forge.calibration_images".
        hint: what to give instead, such as "try 0.1".

    Raises:
        OptionError: it is outside.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"{name} {value!r} is not a number{f'; {hint}' if hint else ''}")
    if not is_within(value, interval):
        raise OptionError(f"{name} {_shown(value)} is {_outside(interval)}{f'; {hint}' if hint else ''}")


def _outside(interval: str) -> str:
    match = _INTERVAL.fullmatch(interval)
    assert match is not None
    if match[2] == "-inf" and match[3] == "inf":
        return "not a finite number"
    if match[3] == "inf":
        return f"not a finite number {'of at least' if match[1] == '[' else 'above'} {match[2]}"
    return f"not in {interval}"


def _shown(value: float) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else f"of {int(math.log10(abs(value))) + 1} digits"
    return f"{value:g}"


def parse_count(text: str | float, name: str) -> int:
    """Read 6.8G, 34M, 3.4e7.

    Raises:
        OptionError: it is not a positive number.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([kmgt]?)\s*", str(text).lower())
    try:
        value = float(match[1]) * _SUFFIXES[match[2]] if match else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise OptionError(f"--{name} {text} is not a positive count; try 6.8G or 34M")
    return round(value)
