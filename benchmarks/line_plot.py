"""A plot of lines as SVG, panels side by side: without a plotting package, and the same bytes from the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 400, 280, 48, 34, 44, 20  # of a panel, and around it, in pixels
LEGEND, LETTER = 18, 7  # of a row of names, and of a letter at most, on the average
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by the colour-blind, too


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `lines` by name, each from left to right."""

    title: str  # of the horizontal axis
    lines: Mapping[str, Sequence[Point]]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers that span [low, high]."""
    span = (high - low) or 1.0
    power = 10.0 ** floor(log10(span / most))
    step = next(f * power for f in (1, 2, 5, 10, 20) if span / (f * power) <= most)
    return [k * step for k in range(floor(low / step), ceil(high / step) + 1)]


def _text(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _panel(panel: Panel, left: float, bottom: float, y_ticks: Sequence[float]) -> Iterator[str]:
    x_ticks = ticks(0, max(x for line in panel.lines.values() for x, _ in line))

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
    width = GAP + len(panels) * (LEFT + WIDTH + GAP)
    room = width - GAP - LEFT
    columns = min(len(names), max(1, int(room / (30 + LETTER * max(map(len, names))))))  # of the names, above it all
    bottom = TOP + LEGEND * ((len(names) - 1) // columns) + HEIGHT
    height, middle = bottom + BOTTOM, bottom - HEIGHT / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(14, middle, y_title, extra=f' transform="rotate(-90 14 {middle:.1f})"'),
    ]
    for i, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        x, y = GAP + LEFT + i % columns * room / columns, 14 + LEGEND * (i // columns)
        parts += [
            f'<path d="M{x:.1f} {y}h20" stroke="{colour}" stroke-width="2"/>',
            _text(x + 26, y + 4, name, "start"),
        ]
    for i, panel in enumerate(panels):
        parts += _panel(panel, GAP + LEFT + i * (LEFT + WIDTH + GAP), bottom, y_ticks)
    return "\n".join([*parts, "</svg>"]) + "\n"


# -- many lines, with their names beside them -------------------------------------------------------------------------

TALL, BEFORE, BEHIND, ROW = 480, 170, 200, 14  # height of the axes, room for names on either side, and of one name
MANY = 14  # ticks at most


@dataclass(frozen=True)
class Line:
    """One line of a `labelled_plot`. Several may share a colour, because each is labelled."""

    name: str
    points: Sequence[Point]
    colour: str = "#767676"
    width: float = 1.2
    dash: str = ""


def apart(heights: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Move ascending heights as little as can be, so that neighbours are `least` apart and all are in [low, high].

    The least squares of what they move by: heights less what they need for themselves must ascend, which pooling of
    neighbours that do not gives, and ends are as near as bounds let them.
    """
    pools: list[list[float]] = []
    for i, height in enumerate(heights):
        pools.append([height - i * least])
        while len(pools) > 1 and sum(pools[-2]) / len(pools[-2]) > sum(pools[-1]) / len(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    level = [sum(pool) / len(pool) for pool in pools for _ in pool]
    most = high - least * (len(heights) - 1)
    return [min(max(value, low), most) + i * least for i, value in enumerate(level)]


def labelled_plot(lines: Sequence[Line], x_title: str, y_title: str, level: tuple[str, float]) -> str:
    """Draw lines against a logarithmic axis, each named at both of its ends, and a horizontal line across.

    The horizontal axis has a tick where the first line has a point.
    """
    left, right, bottom = LEFT + BEFORE, LEFT + BEFORE + 1.4 * WIDTH, GAP + TALL
    xs = [x for line in lines for x, _ in line.points]
    ys = [level[1], *(y for line in lines for _, y in line.points)]
    y_ticks = ticks(min(ys), max(ys), MANY)
    first, span = log10(min(xs)), (log10(max(xs)) - log10(min(xs))) or 1.0

    def at(x: float, y: float) -> Point:
        share = (y - y_ticks[0]) / ((y_ticks[-1] - y_ticks[0]) or 1.0)
        return left + (right - left) * (log10(x) - first) / span, bottom - TALL * share

    width, height = right + BEHIND, bottom + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(14, GAP + TALL / 2, y_title, extra=f' transform="rotate(-90 14 {GAP + TALL / 2:.1f})"'),
        _text((left + right) / 2, bottom + 34, x_title),
    ]
    for y in y_ticks:
        parts += [f'<path d="M{left:.1f} {at(max(xs), y)[1]:.1f}H{right:.1f}" stroke="#ddd"/>']
        parts += [_text(LEFT - 6, at(max(xs), y)[1] + 4, f"{y:g}", "end")]
    for x, _ in lines[0].points:
        parts += [f'<path d="M{at(x, 0)[0]:.1f} {bottom}v4" stroke="#767676"/>']
        parts += [_text(at(x, 0)[0], bottom + 18, f"{x:,.0f}")]
    across = at(max(xs), level[1])[1]
    parts += [f'<path d="M{left:.1f} {across:.1f}H{right:.1f}" stroke="#000" stroke-dasharray="6 4"/>']
    parts += [_text(left + 6, across - 6, f"{level[0]}: {level[1]:.1f}", "start")]
    for line in lines[::-1]:  # what is named first is drawn above the others
        places = [at(*point) for point in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        style = f'fill="none" stroke="{line.colour}" stroke-width="{line.width:g}"'
        parts += [f'<polyline points="{path}" {style}{_dashed(line.dash)}/>']
        dot = f'r="{1.2 + line.width:.1f}" fill="{line.colour}"'
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" {dot}/>' for x, y in places]
    return "\n".join([*parts, *_names(lines, at, bottom), "</svg>"]) + "\n"


def _dashed(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _names(lines: Sequence[Line], at: Callable[[float, float], Point], bottom: float) -> Iterator[str]:
    """Each name beside both ends, with the last value, as near to the line as the other names let it be."""
    for end, side in ((0, -1), (-1, 1)):
        ends = sorted(((*at(*line.points[end]), line) for line in lines), key=lambda of: of[1])
        heights = apart([y for _, y, _ in ends], ROW, ROW / 2, bottom - ROW / 2)
        for (x, y, line), height in zip(ends, heights, strict=True):
            edge = x + 24 * side
            yield (
                f'<path d="M{x + 5 * side:.1f} {y:.1f}L{edge - 6 * side:.1f} {height:.1f}H{edge:.1f}" fill="none" '
                f'stroke="{line.colour}"/>'
            )
            name = line.name if side < 0 else f"{line.name}  {line.points[end][1]:.1f}"
            bold = ' font-weight="bold"' if line.width > 2 else ""
            anchor = "end" if side < 0 else "start"
            yield _text(edge + 4 * side, height + 4, name, anchor, f' fill="{line.colour}"{bold}')
