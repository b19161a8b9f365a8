from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli.console import Console, JsonFlag, VerboseFlag

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.report.runs import Comparison


def main(
    before: Annotated[Path, typer.Argument(help="JSON-lines file of runs, as `edgevit bench --output` writes it.")],
    after: Annotated[Path, typer.Argument(help="Another, to be set against it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Compare even void runs, and in different environments; says so.")
    ] = False,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> int:
    """Set the runs of two files side by side, and say what of the difference is more than chance.

    Exit code 4: a run is void, because clocks moved or the board throttled; it is shown and not judged.
    """
    from dataclasses import asdict

    from edgevit.report.gates import VOID
    from edgevit.report.runs import compare_runs, load_runs

    console = Console(json=json, verbose=verbose)
    comparisons = compare_runs(load_runs(before), load_runs(after), force=force)
    show_comparisons(console, comparisons)
    console.result({"comparisons": [asdict(c) for c in comparisons]})
    return VOID if any(c.void for c in comparisons) and not force else 0


def show_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    if not comparisons:
        return
    console.show(_table(comparisons))
    if blocks := [length for c in comparisons for length in c.blocks or ()]:
        console.show(
            f"Intervals of one run each, resampled in blocks of {min(blocks)} to {max(blocks)} inferences: that "
            "leaves out how one process differs from the next; try --repeat 5."
        )
    for text in sorted({f"environments differ in {', '.join(c.differing)}" for c in comparisons if c.differing}):
        console.warn(f"{text}: the ratios say little about the models")
    for text in dict.fromkeys(f"batch {c.batch}: void: {reason}" for c in comparisons for reason in c.void):
        console.warn(text)


def _table(comparisons: Sequence[Comparison]) -> Table:
    from rich.table import Table

    from edgevit.report.runs import three_digits

    title = "after over before, with 95 % intervals; of times and energies, below 1 is better"
    table = Table("before", "after", title=title, title_justify="left")
    for heading in ("batch", "streams"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for heading in ("before", "after", "ratio", "interval"):
        table.add_column(heading, justify="right")
    table.add_column("")
    pair = None
    for c in comparisons:
        names = (c.before, c.after, str(c.batch), str(c.streams))
        if names != pair:
            table.add_section()
        interval = "-" if c.low is None or c.high is None else f"{_ratio(c.low)} to {_ratio(c.high)}"
        table.add_row(
            *(names if names != pair else ("", "", "", "")),
            f"{c.figure} {c.unit}",
            three_digits(c.before_value),
            three_digits(c.after_value),
            _ratio(c.ratio),
            interval,
            c.outcome,
        )
        pair = names
    return table


def _ratio(value: float) -> str:
    return f"{value:#.4g}"  # the difference from 1 is what counts
