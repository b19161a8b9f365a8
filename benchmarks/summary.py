"""The first section of RESULTS.md: what forge loses and what it is ahead of, from the records of the other sections."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import published
from accuracy import PUBLISHED_RATE, STEPS
from accuracy_tables import of_newest_base
from dimensions import LONGER
from rivals import part_of
from tables import Row, grouped, load, picked, points, table

RATES = (0.8, 0.9, 0.95, 0.97)
BASES = {"": "24 rendered classes", "_fine": "48 finer rendered classes", "_fashion": "photographs of clothes"}
FORGES = {0: "closed form", STEPS: f"distilled, {STEPS} steps", LONGER: f"distilled, {LONGER} steps"}
OURS = ("forge", f"forge{published.BETTER}")
PARTS = {"cut": "nothing trained", "distilled": f"distilled alike, {STEPS} steps"}
INTRODUCTION = """## In short

Forge, equal MACs, shapes that fuse; small bases trained by the project, and no ImageNet result. Nothing of this ran on
a Jetson. Which code the rows are of, which were trained on a GPU, seeds and ranges are in the sections below.

"""
BELOW = "Points of top-1 below the base restricted to the classes: mean of n derivations, of three sub-tasks.\n"
AHEAD = """Points of top-1 ahead of the rival that comes nearest: mean and range over n pairs of sub-task and seed, and
of how many rivals it is the nearest. Each rate has rivals of its own; one with another option counts as one more.
"""
AT_LENGTH = f"""Points of top-1 ahead of each rival, {PUBLISHED_RATE:g} of the MACs gone: mean and range over n pairs of
sub-task and seed. All have trained as long as Vulcan's rule says, but NuWa as published, which trains only masks.
Better base: what is cut is the base after as much training, where that is better on the validation part.
"""


def section() -> str:
    """The part of RESULTS.md; nothing where no record is there."""
    below, ahead = list(_below()), list(_ahead())
    if not below:
        return ""
    heads = [f"{rate:g}" for rate in RATES]
    parts = [INTRODUCTION + BELOW, table(["MACs gone", *heads], below)]
    if ahead:
        parts += [AHEAD, table(["MACs gone", *heads[:-1]], ahead)]
    if at_length := list(_at_length()):
        parts += [AT_LENGTH, table(["base", "ours", "sub-tasks", "rival", "points ahead"], at_length)]
    return "\n".join(parts)


def _rows(name: str) -> list[Row]:
    data = load(name)
    return of_newest_base(data["rows"].values()) if data else []


def _below() -> Iterator[list[str]]:
    for base, told in BASES.items():
        of_forge = picked(_rows(f"dimensions{base}"), options={})
        for steps, how in FORGES.items():
            cells = []
            for rate in RATES:
                found = [row["accuracy"] for row in picked(of_forge, steps=steps, rate=rate)]
                lost = [100 * (a["base_restricted"] - a["derived"]) for a in found]
                mean = round(statistics.mean(lost), 2) + 0.0 if lost else 0.0  # -0.0 is 0
                cells.append(f"{mean:.2f}; n = {len(lost)}" if lost else "")
            if any(cells):
                yield [f"{told}, {how}", *cells]


def _ahead() -> Iterator[list[str]]:
    for base, told in BASES.items():
        for part, how in PARTS.items():
            rows = [row for row in _rows(f"rivals{base}") if part_of(row) == part]
            cells = [_told(leads(picked(rows, rate=rate))) for rate in RATES[:-1]]
            if any(cells):
                yield [f"{told}, {how}", *cells]


def _at_length() -> Iterator[list[str]]:
    rows = [row for base in ("", "_fine", "_fashion") for row in _rows(f"published{base}")]
    for (base,), of_base in grouped(picked(rows, table=published.FULL, rate=PUBLISHED_RATE), "data").items():
        for ours in OURS:
            for rival, pairs in sorted(leads(of_base, ours).items(), key=lambda item: statistics.mean(item[1])):
                where = published.TITLES.get(base, f"`{base}`")
                of_both = _tasks(of_base, ours) & _tasks(of_base, rival)
                tasks = ", ".join(map(str, sorted(of_both)))
                yield [where, ours, f"{tasks} classes", rival, f"{points(pairs)}; n = {len(pairs)}"]


def _tasks(rows: Sequence[Row], variant: str) -> set[int]:
    return {row["task"] for row in picked(rows, variant=variant)}


def leads(rows: Iterable[Row], ours: str = "forge") -> dict[str, list[float]]:
    """Top-1 of forge less that of each rival, on the sub-tasks and seeds that both were run on."""
    of: dict[str, dict[tuple[Any, ...], float]] = {}
    for row in rows:
        of.setdefault(row["variant"], {})[row["task"], row["seed"]] = row["accuracy"]["derived"]
    forge = {name: of.pop(name, {}) for name in OURS}[ours]
    paired = {name: [forge[key] - value for key, value in found.items() if key in forge] for name, found in of.items()}
    return {name: pairs for name, pairs in paired.items() if pairs}


def _told(pairs: dict[str, Sequence[float]] | dict[str, list[float]]) -> str:
    if not pairs:
        return ""
    name = min(pairs, key=lambda rival: statistics.mean(pairs[rival]))
    return f"{points(pairs[name])}, {name}; n = {len(pairs[name])}; of {len(pairs)}"
