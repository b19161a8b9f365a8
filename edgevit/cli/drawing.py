"""Plots made of characters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 60, 9
MODEL, BASE = "●", "○"
_ASCII = str.maketrans({MODEL: "*", BASE: "o", "┤": "|", "└": "+", "─": "-"})


@dataclass(frozen=True)
class Dot:
    """One model: `x` what it costs, `y` its accuracy."""

    x: float
    y: float
    label: str = ""
    mark: str = MODEL


def scatter(dots: Sequence[Dot], ends: tuple[str, str]) -> str:
    """Draw accuracy against cost; in ASCII where stdout knows no more.

    Args:
        ends: the least and the greatest x as text, the latter with its unit.
    """
    low, high = min(d.y for d in dots), max(d.y for d in dots)
    least, most = min(d.x for d in dots), max(d.x for d in dots)
    rows = [[" "] * WIDTH for _ in range(HEIGHT)]
    places = []
    for dot in dots:
        across = round((WIDTH - 1) * (dot.x - least) / ((most - least) or 1))
        row = rows[HEIGHT - 1 - round((HEIGHT - 1) * (dot.y - low) / ((high - low) or 1))]
        row[across] = dot.mark
        places.append((row, across))
    for dot, (row, across) in zip(dots, places, strict=True):
        _write_beside(row, across, dot.label)
    top, bottom, none = f"{high:7.1%}", f"{low:7.1%}", " " * 7
    labels = [top if top != bottom else none, *[none] * (HEIGHT - 2), bottom]
    drawn = [f"{label} ┤{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)]
    first, last = ends
    axis = [" " * 8 + "└" + "─" * WIDTH, " " * 9 + f"{first}{last:>{max(WIDTH - len(first), len(last) + 2)}}"]
    return _readable("\n".join([*drawn, *axis]))


def _write_beside(row: list[str], across: int, label: str) -> None:
    """Write a label to the right of its dot, or to the left; not at all where both are taken."""
    for start in (across + 2, across - 1 - len(label)):
        span = slice(start, start + len(label))
        around = row[max(start - 1, 0) : span.stop + 1]
        if start >= 0 and span.stop <= len(row) and not "".join(around).strip():
            row[span] = label
            return


def _readable(text: str) -> str:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    return text
