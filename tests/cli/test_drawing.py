"""Plots of characters: every dot at its place, in whatever stdout can show."""

from __future__ import annotations

import io
import sys

import pytest

from edgevit.cli.drawing import BASE, Dot, scatter

DOTS = [Dot(1.0, 0.90, "base", BASE), Dot(0.5, 0.90, "0.5"), Dot(0.1, 0.60, "0.9")]


def test_dots_lie_where_their_numbers_are() -> None:
    top, *middle, bottom, axis, ends = scatter(DOTS, ("0.1", "1 ms")).splitlines()
    assert top.startswith("  90.0% ┤") and bottom.startswith("  60.0% ┤● 0.9")
    assert top[9 + 59] == "○" and top[9 + 26] == "●" and "● 0.5" in top and "base ○" in top
    assert not any(mark in line for line in middle for mark in "●○")
    assert axis.strip() == "└" + "─" * 60 and ends.split() == ["0.1", "1", "ms"]


def test_one_dot_and_equal_dots_are_drawn() -> None:
    assert scatter([Dot(5.0, 0.5)], ("5", "5 ms")).count("●") == 1
    equal = scatter([Dot(5.0, 0.5), Dot(5.0, 0.5, "x")], ("5", "5 ms"))
    assert (equal.count("●"), equal.count("50.0%")) == (1, 1)


def test_a_terminal_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = scatter(DOTS, ("0.1", "1 ms"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    plain = scatter(DOTS, ("0.1", "1 ms"))
    assert plain.isascii() and len(plain) == len(drawn)
    assert plain.count("*") == 2 and plain.count("o") == 1


def test_labels_keep_apart_from_other_dots() -> None:
    dots = [Dot(x, 0.5, f"{x:g}") for x in (10.0, 14.0, 30.0, 69.0)]
    line = scatter([*dots, Dot(69.0, 0.1)], ("10", "69 ms")).splitlines()[0]
    assert line.endswith("69 ●") and "● 30 " in line
    assert [word for word in line.split() if word not in "●┤"] == ["50.0%", "┤●", "14", "30", "69"], "no room for 10"
    assert scatter([*dots, Dot(69.0, 0.1)], ("10", "69 ms")).splitlines()[1].strip() == "┤10", "but below"


def test_dots_that_are_all_as_accurate_are_one_row() -> None:
    dots = [Dot(x, 0.5, f"{x:g}") for x in (10.0, 11.0, 12.0, 30.0)]
    above, line, below, axis, _ = scatter(dots, ("10", "30 ms")).splitlines()
    assert line.startswith("  50.0% ┤●") and line.count("●") == 4 and "└" in axis
    assert all(any(f"{dot.x:g}" in row for row in (above, line, below)) for dot in dots)
