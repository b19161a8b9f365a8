"""A plot of lines as SVG, panels side by side: without a plotting package, and the same bytes from the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 400, 280, 48, 34, 44, 20  # of a panel, and around it, in pixels
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by the colour-blind, too


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `lines` by name, each from left to right."""

    title: str  # of the horizontal axis
    lines: Mapping[str, Sequence[Point]]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers that span [low, high]; the outermost are at or beyond its ends."""
    span = (high - low) or 1.0
    power = 10.0 ** floor(log10(span / most))
    step = next(f * power for f in (1, 2, 5, 10, 20) if span / (f * power) <= most)
    return [k * step for k in range(floor(low / step), ceil(high / step) + 1)]


def _text(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _panel(panel: Panel, left: float, y_ticks: Sequence[float]) -> Iterator[str]:
    x_ticks = ticks(0, max(x for line in panel.lines.values() for x, _ in line))
    bottom = TOP + HEIGHT

    low, height_of_all = y_ticks[0], (y_ticks[-1] - y_ticks[0]) or 1.0  # one tick, where all points are at it

    def at(x: float, y: float) -> Point:
        return left + WIDTH * x / x_ticks[-1], bottom - HEIGHT * (y - low) / height_of_all

    for y in y_ticks:
        height = at(0, y)[1]
        yield f'<path d="M{left:.1f} {height:.1f}h{WIDTH}" stroke="#ddd"/>'
        yield _text(left - 6, height + 4, f"{y:g}", "end")
    for x in x_ticks:
        yield _text(at(x, 0)[0], bottom + 16, f"{x:g}")
    yield _text(left + WIDTH / 2, bottom + 34, panel.title)
    for colour, line in zip(COLOURS, panel.lines.values(), strict=False):
        places = [at(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)


def line_plot(panels: Sequence[Panel], y_title: str) -> str:
    """Draw panels that share their vertical axis and the colours of their lines.

    Raises:
        ValueError: more lines than there are colours.
    """
    names = list(panels[0].lines)
    if len(names) > len(COLOURS):
        raise ValueError(f"{len(names)} lines, but only {len(COLOURS)} colours")
    heights = [y for panel in panels for line in panel.lines.values() for _, y in line]
    y_ticks = ticks(min(heights), max(heights))
    width, height = GAP + len(panels) * (LEFT + WIDTH + GAP), TOP + HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(14, TOP + HEIGHT / 2, y_title, extra=f' transform="rotate(-90 14 {TOP + HEIGHT / 2:.1f})"'),
    ]
    for i, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        x = GAP + LEFT + i * (width - GAP - LEFT) / len(names)
        parts += [f'<path d="M{x:.1f} 14h20" stroke="{colour}" stroke-width="2"/>', _text(x + 26, 18, name, "start")]
    for i, panel in enumerate(panels):
        parts += _panel(panel, GAP + LEFT + i * (LEFT + WIDTH + GAP), y_ticks)
    return "\n".join([*parts, "</svg>"]) + "\n"
