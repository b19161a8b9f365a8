"""Slices of one super-network, with and without training of their own: the SKD paper's claim that they need none.

    python -m benchmarks.papers.slices                   # every case that records/slices.json does not have
    python -m benchmarks.papers.slices --tasks 12 --base fashion

One super-network per sub-task is trained and cut to each size; `WPAC only` is the base in WPAC's order, untrained.
Vulcan trains anew for each size. Accuracy is on `val/`, which no derivation sees.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from benchmarks.derivations import SEEDS, SIZES, STEPS, Case, complete
from benchmarks.markdown import Row, commits_text, derived, grouped, of_newest_base, percent, picked, table, wrapped
from benchmarks.sources import OURS, add_source, record_file, refusals, select

RATES, SLICE_STEPS = (0.25, 0.5, 0.75), 50  # steps of a slice, where it is trained
NETWORKS = {"super-network": STEPS, "super-network + teacher": STEPS, "WPAC only": 0}  # steps of each network
TEXT = """## Slices of one network (SKD)

One super-network per sub-task, trained for {steps} steps of {batch} images and cut to each size at once; the same of a
base in WPAC's order that was not trained; both directly and after {slice_steps} steps of the slice. Vulcan trains anew
for each size. Top-1 in %, seed {seed}.

{commits}
"""


def cases(tasks: Sequence[int] = SIZES["rendered"]) -> Iterator[Case]:
    """Yield every slice, and Vulcan at the rates of the slices."""
    for task in tasks:
        for rate in RATES:
            for name, network_steps in NETWORKS.items():
                for steps, suffix in ((0, ""), (SLICE_STEPS, f", {SLICE_STEPS} steps")):
                    case = Case("skd", task, rate, SEEDS[0], name + suffix, "skd", steps=steps)
                    yield replace(case, supernet_steps=network_steps)
            yield Case("skd", task, rate, SEEDS[0], "vulcan", "vulcan")


def section(record: dict[str, Any] | None) -> str:
    """Format the part of README.md: one line for each size and network."""
    if record is None or not record["rows"]:
        return ""
    rows: list[Row] = of_newest_base(record["rows"].values())
    tasks = sorted({row["task"] for row in rows})
    lines = []
    for (rate, variant), group in sorted(grouped(rows, "rate", "variant").items()):
        cells = [percent(derived(picked(group, task=task))) for task in tasks]
        mean = statistics.mean(derived(group)) if len(group) == len(tasks) else None
        lines.append([f"{1 - rate:g}", variant, *cells, "" if mean is None else f"{100 * mean:.1f}"])
    text = TEXT.format(
        steps=STEPS, batch=rows[0]["batch_size"], slice_steps=SLICE_STEPS, seed=rows[0]["seed"],
        commits=wrapped(commits_text(rows)).rstrip(),
    )  # fmt: skip
    return "\n".join([text, table(["share of the MACs", "", *(f"{task} classes" for task in tasks), "mean"], lines)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser)
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, results = Console().progress, record_file(options, "slices", OURS[:1])
    with refusals():
        selection = select(options, progress)
    due = islice(selection.of(cases(selection.sizes)), options.rows)
    complete(due, {selection.name: selection.place}, results, options.jobs, progress)
    if options.data is not None:
        print(section({"rows": selection.rows(results)}))


if __name__ == "__main__":
    main()
