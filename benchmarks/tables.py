"""Markdown tables from the rows of results/*.json."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


def load(name: str) -> dict[str, Any] | None:
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def percent(values: Sequence[float]) -> str:
    """Mean, and the spread between smallest and largest where there are several; nothing of nothing."""
    return _spread(values, lambda value: f"{100 * value:.1f}")


def points(values: Sequence[float]) -> str:
    """The same of differences."""
    return _spread(values, lambda value: f"{100 * value:+.1f}")


def plain(values: Sequence[float]) -> str:
    """The same of figures that are no shares, without decimals."""
    return _spread(values, lambda value: f"{value:.0f}")


def _spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    if not values:
        return ""
    mean = show(statistics.mean(values))
    return mean if len(values) == 1 else f"{mean} ({show(min(values))} to {show(max(values))})"


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[k] for k in keys)].append(row)
    return groups


def picked(rows: Iterable[Row], **values: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[k] == v for k, v in values.items())]


def seeds_told(rows: Iterable[Row]) -> str:
    """How many seeds there are rows of, and which: `n = 2 (seeds 42, 43)`."""
    seeds = sorted({row["seed"] for row in rows})
    return f"n = {len(seeds)} (seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))})"


def derived(rows: Iterable[Row]) -> list[float]:
    return [row["accuracy"]["derived"] for row in rows]
