"""Markdown tables and sentences from the rows of records/*.json."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"

Row = dict[str, Any]

BASELINES = {
    "base_full_head": "base, full head",
    "base_restricted": "base, restricted",
    "base_finetuned": "base, fine-tuned",
}


def load(name: str) -> dict[str, Any] | None:
    """Read a record; None if there is none."""
    file = RECORDS / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def rows_of(name: str) -> list[Row]:
    """Read the rows of a record of derivations, of the newest base of each data set."""
    record = load(name)
    return of_newest_base(record["rows"].values()) if record else []


# -- text --------------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def wrapped(text: str) -> str:
    """Wrap a paragraph at 118 characters."""
    return textwrap.fill(text, 118) + "\n"


def screen(question: str, answer: str, tables: Sequence[str], command: str, missing: str) -> str:
    """Format one question of RESULTS.md: what was measured, tables, the command, and what is not shown."""
    parts = [f"## {question}\n", wrapped(answer), *tables, f"Command: `{command}`\n", wrapped(f"Not shown: {missing}")]
    return "\n".join(parts)


def percent(values: Sequence[float]) -> str:
    """Format the mean of shares in percent, with the range where there are several; empty for no values."""
    return _spread(values, lambda value: f"{100 * value:.1f}")


def points(values: Sequence[float]) -> str:
    """Format differences of shares in points, likewise."""
    return _spread(values, lambda value: f"{100 * value:+.1f}")


def plain(values: Sequence[float]) -> str:
    """Format numbers without decimals, likewise."""
    return _spread(values, lambda value: f"{value:.0f}")


def _spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    if not values:
        return ""
    mean = text(statistics.mean(values))
    return mean if len(values) == 1 else f"{mean} ({text(min(values))} to {text(max(values))})"


def seeds_text(rows: Iterable[Row]) -> str:
    """Count and list the seeds of the rows: `n = 2 (seeds 42, 43)`."""
    seeds = sorted({row["seed"] for row in rows})
    return f"n = {len(seeds)} (seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))})"


def commits_text(rows: Iterable[Row]) -> str:
    """List the commits that the rows were made at, with their counts; + marks uncommitted changes."""
    versions = [row.get("versions", row).get("edgevit") for row in rows]
    commits = Counter((version or "").partition("(")[2].rstrip(")") or "not recorded" for version in versions)
    return "Commits (rows): " + ", ".join(f"{commit} ({count})" for commit, count in commits.most_common()) + "."


# -- rows --------------------------------------------------------------------------------------------------------------


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[k] for k in keys)].append(row)
    return groups


def picked(rows: Iterable[Row], **values: Any) -> list[Row]:
    """Select the rows that have these values."""
    return [row for row in rows if all(row[k] == v for k, v in values.items())]


def derived(rows: Iterable[Row]) -> list[float]:
    """Top-1 of the derived models."""
    return [row["accuracy"]["derived"] for row in rows]


def of_newest_base(rows: Iterable[Row]) -> list[Row]:
    """Select the rows of the base that the last row of each data set has; other bases are not comparable."""
    selected = []
    for group in grouped(rows, "data").values():
        selected += picked(group, base_sha256=group[-1]["base_sha256"])
    return selected


def baselines_table(rows: Sequence[Row]) -> str:
    """Top-1 of the base in its three forms, by sub-task."""
    lines = []
    for (task,), group in sorted(grouped(rows, "task").items()):
        cells = [f"{task} classes, {group[0]['test_images']} test images"]
        for name in BASELINES:
            # The base is fine-tuned for as many steps as the model; the other two depend on no seed.
            trained = [row for row in group if name != "base_finetuned" or row["steps"]]
            by_seed = {row["seed"]: top1 for row in trained if (top1 := row["accuracy"][name]) is not None}
            values = list(by_seed.values())
            cells.append(percent(values[:1] if len(set(values)) == 1 else values))
        lines.append(cells)
    return table(["sub-task", *BASELINES.values()], lines)


def leads(rows: Iterable[Row], ours: str = "forge") -> dict[str, list[float]]:
    """Top-1 of `ours` minus that of each other variant, on the sub-tasks and seeds that both have."""
    by_variant: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for row in rows:
        by_variant[row["variant"]][row["task"], row["seed"]] = row["accuracy"]["derived"]
    by_pair = by_variant.pop(ours, {})
    differences = {
        name: [by_pair[key] - top1 for key, top1 in variant.items() if key in by_pair]
        for name, variant in by_variant.items()
    }
    return {name: values for name, values in differences.items() if values}


def lead_text(values: Sequence[float]) -> str:
    """Format `leads` of one rival: mean, range and the number of pairs."""
    return f"{points(values)}; n = {len(values)}" if values else ""


def nearest(differences: Mapping[str, Sequence[float]]) -> str:
    """Name the rival with the smallest mean difference, of how many."""
    if not differences:
        return ""
    name = min(differences, key=lambda rival: statistics.mean(differences[rival]))
    return f"{points(differences[name])}, {name}; n = {len(differences[name])}; of {len(differences)}"
