from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, VerboseFlag

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.board.comparison import Comparison
    from edgevit.reporting.request import CompareRequest

# The figures that replace the p50 where other programs were busy.
NOTES = {
    "mean": "mean ms: the mean, as other programs were busy and interrupt long inferences more often than short ones; "
    "elsewhere it is the p50, the median",
    "processor": "processor ms: processor time of an inference, on average, without the time that it waits for other "
    "programs; p50 and mean are by the clock",
}


@asks(request="edgevit.reporting.request:CompareRequest")
def main(request: CompareRequest, *, json: JsonFlag = False, verbose: VerboseFlag = False) -> int:
    """Compare the runs of two files, and say which differences are statistically significant.

    The models of one file are compared with its first model. Runs on a busy machine are judged only if they were
    measured in turns, by `edgevit bench A B`.

    Exit code 4: a run is void, because the clocks changed or the board throttled. It is shown and not judged.
    """
    from dataclasses import asdict

    from edgevit.board.gates import VOID
    from edgevit.reporting.compare import compare

    console = Console(json=json, verbose=verbose)
    comparisons = compare(request)
    show_comparisons(console, comparisons)
    console.result({"comparisons": [asdict(c) for c in comparisons]})
    return VOID if any(c.void for c in comparisons) and not request.force else 0


def show_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    from edgevit.agent.records import CLOSED_LOOP
    from edgevit.board.comparison import BUSY

    if not comparisons:
        return
    uses = [f"; {c.use}" for c in comparisons if c.use != CLOSED_LOOP]
    console.show(
        "after over before, with 95 % intervals; of times and energies, below 1 is better"
        + "".join(dict.fromkeys(uses))
    )
    pairs: dict[tuple[object, ...], list[Comparison]] = defaultdict(list)
    for c in comparisons:
        pairs[c.before, c.after, c.batch, c.streams, c.use].append(c)
    for pair in pairs.values():
        console.show(_table(pair))
    if any(c.figure == "processor" for c in comparisons):
        console.show(NOTES["processor"])
    if blocks := [length for c in comparisons for length in c.blocks or ()]:
        console.show(
            f"Intervals of one run each, resampled in blocks of {min(blocks)} to {max(blocks)} inferences: that "
            "leaves out how one process differs from the next; try --repeat 5."
        )
    if widened := max((c.widened for c in comparisons if c.widened > 1), default=None):
        console.show(f"Intervals are up to {widened:.2f} times wider on each side, as the speed moved within a run.")
    busy = [c for c in comparisons if c.outcome == BUSY]
    if busy and all(c.rounds for c in busy):
        console.show(
            "Not judged: other programs were busy, and interrupt a long inference more often than a short one. These "
            "models took turns, so that the ratios of means, of throughput and of processor time hold."
        )
    elif busy:
        console.show(
            "Not judged: other work slows one run and not the next. `edgevit bench A B` measures two models in turns, "
            "whose ratios hold on a busy machine, too."
        )
    for text in dict.fromkeys(text for c in comparisons for text in c.warnings):
        console.warn(text)
    for text in sorted({f"environments differ in {', '.join(c.differing)}" for c in comparisons if c.differing}):
        console.warn(f"{text}: the ratios say little about the models")
    for text in dict.fromkeys(f"batch {c.batch}: void: {reason}" for c in comparisons for reason in c.void):
        console.warn(text)


def _table(comparisons: Sequence[Comparison]) -> Table:
    """One pair of models, within 80 columns."""
    from rich.table import Table

    from edgevit.board.comparison import BUSY, three_digits

    first = comparisons[0]
    streams = f", {first.streams} streams" if first.streams > 1 else ""
    title = f"{first.after} over {first.before}, batch {first.batch}{streams}"
    table = Table("", title=title, title_justify="left")
    for heading in ("before", "after", "ratio", "interval"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for c in comparisons:
        interval = "-" if c.low is None or c.high is None else f"{_ratio(c.low)} to {_ratio(c.high)}"
        table.add_row(
            c.unit if c.figure in ("throughput", "energy") else f"{c.figure} {c.unit}",
            three_digits(c.before_value),
            three_digits(c.after_value),
            _ratio(c.ratio),
            interval,
            "not judged" if c.outcome == BUSY else c.outcome,
        )
    return table


def _ratio(value: float) -> str:
    return f"{value:#.4g}"  # the difference from 1 is what counts
