"""Plots as SVG: points lie inside, ticks span the numbers, names do not overlap."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks import line_plot


def test_the_plot_is_xml_with_every_point_inside() -> None:
    lines = {"a < b": [(0.0, 40.0), (9600.0, 91.5)], "c": [(480.0, 17.3), (9600.0, 88.0)]}
    panels = [line_plot.Panel("images", lines), line_plot.Panel("seconds", lines)]
    root = ElementTree.fromstring(line_plot.line_plot(panels, "top-1"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    circles = root.findall("{*}circle")
    assert len(circles) == 8
    assert all(0 < float(c.attrib["cx"]) < width and 0 < float(c.attrib["cy"]) < height for c in circles)


@pytest.mark.parametrize(("low", "high"), [(0.0, 9600.0), (17.3, 91.5), (0.2, 0.7), (80.0, 80.0)])
def test_ticks_span_the_numbers(low: float, high: float) -> None:
    ticks = line_plot.ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 1 <= len(ticks) <= 8


@pytest.mark.parametrize(("name", "rows"), [("a", 1), ("0.8 gone, what is left", 2)])
def test_names_above_a_plot_do_not_run_into_each_other(name: str, rows: int) -> None:
    lines = {f"{name} {i}": [(0.0, 1.0), (1.0, 2.0)] for i in range(4)}
    texts = ElementTree.fromstring(line_plot.line_plot([line_plot.Panel("step", lines)], "top-1")).findall("{*}text")
    positions = {text.text: (float(text.attrib["x"]), float(text.attrib["y"])) for text in texts}
    places = [positions[name] for name in lines]
    assert len({y for _, y in places}) == rows
    for (x, y), (following, below) in pairwise(places):
        assert below > y or following - x > 6 * len(name)


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([50, 51], [45.5, 55.5]),
        ([10, 40, 41], [10, 35.5, 45.5]),
        ([0, 0, 0], [5, 15, 25]),
        ([99, 99], [85, 95]),
        ([], []),
    ],
)
def test_names_are_moved_as_little_as_they_need(heights: list[float], expected: list[float]) -> None:
    assert line_plot.apart(heights, 10, 5, 95) == pytest.approx(expected)
