"""Plots of characters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 60, 9
_LEVEL = 3  # rows of a plot whose dots are all as accurate: a row for them, and one above and below for labels
MODEL, BASE, READY_MADE = "●", "○", "◆"
_ASCII = str.maketrans({MODEL: "*", BASE: "o", READY_MADE: "x", "┤": "|", "└": "+", "─": "-"})


@dataclass(frozen=True)
class Dot:
    """One model: `x` is its cost, `y` its accuracy."""

    x: float
    y: float
    label: str = ""
    mark: str = MODEL


def scatter(dots: Sequence[Dot], ends: tuple[str, str]) -> str:
    """Draw accuracy against cost; in ASCII if stdout cannot encode more.

    Args:
        ends: the smallest and the largest x as text, the latter with its unit.
    """
    low, high = min(d.y for d in dots), max(d.y for d in dots)
    least, most = min(d.x for d in dots), max(d.x for d in dots)
    height = _HEIGHT if high > low else _LEVEL
    rows = [[" "] * _WIDTH for _ in range(height)]
    places = []
    for dot in dots:
        across = round((_WIDTH - 1) * (dot.x - least) / ((most - least) or 1))
        down = height - 1 - round((height - 1) * (dot.y - low) / (high - low)) if high > low else height // 2
        rows[down][across] = dot.mark
        places.append((down, across))
    for dot, (down, across) in zip(dots, places, strict=True):
        _write_near(rows, down, across, dot.label)
    top, bottom, none = f"{high:7.1%}", f"{low:7.1%}", " " * 7
    labels = [top if top != bottom else none, *[none] * (height - 2), bottom]
    if high == low:
        labels = [top if row == height // 2 else none for row in range(height)]
    drawn = [f"{label} ┤{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)]
    first, last = ends
    axis = [" " * 8 + "└" + "─" * _WIDTH, " " * 9 + f"{first}{last:>{max(_WIDTH - len(first), len(last) + 2)}}"]
    return _readable("\n".join([*drawn, *axis]))


def _write_near(rows: Sequence[list[str]], down: int, across: int, label: str) -> None:
    """Write a label right, left, above or below its dot, wherever there is room; leave it out otherwise."""
    over = max(0, min(across, _WIDTH - len(label)))
    for row, start in ((down, across + 2), (down, across - 1 - len(label)), (down - 1, over), (down + 1, over)):
        span = slice(start, start + len(label))
        if start < 0 or span.stop > _WIDTH or not 0 <= row < len(rows):
            continue
        if not "".join(rows[row][max(start - 1, 0) : span.stop + 1]).strip():
            rows[row][span] = label
            return


def _readable(text: str) -> str:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    return text
