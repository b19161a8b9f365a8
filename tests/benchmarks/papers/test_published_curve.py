"""The picture of accuracy against images seen, and that the one that is kept is of the record."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any
from xml.etree import ElementTree

from benchmarks import derivations, markdown
from benchmarks.papers import published_curve

CASE = derivations.Case("published", 5, 0.9, 42, "forge", "forge", data="fashion")


def row(variant: str, steps: int, derived: float, heads: int = 2, **changed: Any) -> markdown.Row:
    table = "published" if steps == 400 else "published curve"
    case = replace(CASE, variant=variant, steps=steps, table=table)
    return {
        **asdict(case), "images_seen": 48 * steps, "blocks": [{"heads": heads}], "base_sha256": "b",
        "accuracy": {"base_restricted": 0.95, "derived": derived}, **changed,
    }  # fmt: skip


ROWS = [
    *(row("corp", steps, 0.9 + steps / 10_000) for steps in (400, 25)),
    *(row("forge", steps, 0.91 + steps / 10_000) for steps in (400, 25)),
    row("forge", 400, 0.1, seed=43), row("forge", 400, 0.1, task=3), row("nvit", 400, 0.1),
    row("dcvit", 25, 0.2, heads=0), row("dcvit", 400, 0.2, heads=0), row("forge", 25, 0.1, rate=0.2),
]  # fmt: skip


def test_a_line_is_of_one_method_in_one_place_and_one_point_is_none() -> None:
    found = published_curve.rows_of(ROWS)
    assert {name: [of["steps"] for of in rows] for name, rows in found.items()} == {
        "forge": [25, 400], "corp": [25, 400], "dcvit": [25, 400],
    }  # fmt: skip


def test_the_picture_names_every_line_at_both_ends_and_what_is_blind_is_told_and_not_drawn() -> None:
    root = ElementTree.fromstring(published_curve.drawing({"rows": dict(enumerate(ROWS))}))
    names = [text.text for text in root.findall("{*}text")]
    assert {"forge", "forge  95.0", "corp", "corp  94.0", "base, restricted to the classes: 95.0"} <= set(names)
    assert "1,200" in names and "19,200" in names and not any("dcvit" in (name or "") for name in names)
    colours = [line.attrib["stroke"] for line in root.findall("{*}polyline")]
    assert len(colours) == 2 and published_curve.BLUE in colours
    told = " ".join(published_curve.text(ROWS).split())
    assert "no model of it sees a patch: dcvit." in told and f"]({published_curve.FILE.name})" in told
    assert published_curve.text([]) == published_curve.drawing(None) == ""


def test_the_kept_picture_is_of_the_kept_record() -> None:
    assert published_curve.FILE.read_text() == published_curve.drawing(markdown.load("published_fashion"))
