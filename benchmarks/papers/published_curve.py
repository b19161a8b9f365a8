"""The picture of accuracy against images seen, at published length: published_curve.svg.

    python -m benchmarks.papers.published_curve        # from records/published_fashion.json

One line for each method, five classes of photographs, 0.9 of the MACs gone, seed 42; the base asked for these classes
across. The papers' methods have colours that the colour-blind tell apart, rivals are grey; all are named beside their
ends.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.derivations import SEEDS
from benchmarks.line_plot import COLOURS, Line, Point, labelled_plot
from benchmarks.markdown import Row, load, of_newest_base, picked

BASE, TASK = "fashion", 5
PUBLISHED_RATE = 0.9  # the rate with all seeds and lengths
FILE = Path(__file__).parent / "published_curve.svg"
BLUE, VERMILION, GREEN = COLOURS[:3]
# Colour, width and dashes; a method that has none here is a rival.
LOOKS: Mapping[str, tuple[str, float, str]] = {
    "forge": (BLUE, 2.8, ""),
    "nuwa, fine-tuned": (GREEN, 2.0, ""),
    "vulcan, as published": (VERMILION, 2.0, ""),
    "vulcan + teacher": (VERMILION, 2.0, "7 3"),
    "vulcan": (VERMILION, 2.0, "2 3"),
}
CAPTION = (
    "The same as a picture: {where}, {rate:g} of the MACs gone, seed {seed}, each at its own learning rate; a point is "
    "a run of that length, with its own schedule.{blind} Made by `python -m benchmarks.papers.published_curve`."
)


def rows_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Select the runs of each method that trains, the shortest first."""
    place = {"task": TASK, "rate": PUBLISHED_RATE, "seed": SEEDS[0], "data": BASE}
    runs = [row for row in picked(rows, **place) if row["table"] in ("published", "published curve") and row["steps"]]
    names = dict.fromkeys((*LOOKS, *(row["variant"] for row in runs)))
    by_name = {name: sorted(picked(runs, variant=name), key=_image_count) for name in names}
    return {name: of for name, of in by_name.items() if len(of) > 1}


def _image_count(row: Row) -> int:
    return int(row["images_seen"])


def is_blind(rows: Sequence[Row]) -> bool:
    """Return whether no model has any attention, so that all images get one answer."""
    return not any(block["heads"] for row in rows for block in row["blocks"])


def drawing(data: dict[str, Any] | None) -> str:
    """Draw the picture; empty without rows."""
    rows = of_newest_base(data["rows"].values()) if data else []
    lines = [_line(name, of) for name, of in rows_of(rows).items() if not is_blind(of)]
    if not lines:
        return ""
    restricted = next(iter(picked(rows, data=BASE, task=TASK)))["accuracy"]["base_restricted"]
    level = ("base, restricted to the classes", 100 * restricted)
    return labelled_plot(lines, "training images seen (logarithmic)", "top-1, %", level)


def _line(name: str, rows: Sequence[Row]) -> Line:
    points: list[Point] = [(_image_count(row), 100 * row["accuracy"]["derived"]) for row in rows]
    return Line(name, points, *LOOKS[name]) if name in LOOKS else Line(name, points)


def text(rows: Sequence[Row]) -> str:
    """The text and the picture in README.md; empty without rows of the base."""
    curves = rows_of(rows)
    if not curves:
        return ""
    blind = [name for name, of in curves.items() if is_blind(of)]
    blind_text = f" Not drawn, as no model of it sees a patch: {', '.join(blind)}." if blind else ""
    caption = CAPTION.format(where=f"{TASK} classes of clothes", rate=PUBLISHED_RATE, seed=SEEDS[0], blind=blind_text)
    picture = f"![Accuracy against images seen, at published length]({FILE.name})"
    return "\n".join(textwrap.wrap(caption, 118)) + f"\n\n{picture}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    options.out.write_text(drawing(load(f"published_{BASE}")))


if __name__ == "__main__":
    main()
