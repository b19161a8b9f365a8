"""PIAD against its rivals: slices of super-networks whose training drops different things.

    python -m benchmarks.papers.dropout                     # every case that records/dropout.json does not have
    python -m benchmarks.papers.dropout --only strategies --seeds 1
    python -m benchmarks.papers.dropout --base fashion      # on photographs, in records/dropout_fashion.json
    python -m benchmarks.papers.dropout --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --classes dogs

The form of Table 7 of the SKD paper: a network is trained with no dropout, channel dropout, weighted channel dropout,
LayerDrop or PIAD; slices of 4, 6, 8 and 10 twelfths of its MACs are judged without training. `methods/skd/dropout.py`
says what each drops. The paper gives no rates; the part `rates` has each rival at a second one. `WPAC only` is the base
in WPAC's order, untrained. All slices are cut by the importance that PIAD's measure gives while the network trains, so
that only the training differs. Accuracy is on `val/`, which no derivation sees.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from benchmarks.derivations import SEEDS, SIZES, STEPS, Case, complete, shortened
from benchmarks.markdown import Row, derived, of_newest_base, percent, picked, points, seeds_text, table
from benchmarks.sources import OURS, add_source, record_file, refusals, select

SHARES = {"4:12": 2 / 3, "6:12": 1 / 2, "8:12": 1 / 3, "10:12": 1 / 6}  # the rate of each: the share that is gone
UNTRAINED, PIAD = "WPAC only", "PIAD"
PARTS: dict[str, tuple[str, ...]] = {
    "strategies": (
        UNTRAINED, "no dropout", "channel dropout 0.5", "weighted channel dropout 0.2", "LayerDrop 0.2", PIAD,
    ),
    "rates": ("channel dropout 0.2", "weighted channel dropout 0.5", "LayerDrop 0.5"),
}  # fmt: skip
TITLES = {
    "rendered": "24 rendered classes",
    "fine": "48 finer classes",
    "fashion": "photographs of clothes",
    "demo": "the demo's base",
}
TEXT = """## PIAD against its rivals, on {title}

Super-networks trained for {steps} steps of {batch} images (`dropout.py`, the form of Table 7 of the SKD paper), which
differ in what a step drops. Slices of a share of the MACs, shape `fused`, not trained: top-1 on `val/`, mean and range
over sub-tasks and seeds, {seeds}. The number after a rival is its rate; the paper gives none. The last column is the
network itself, uncut; for `{untrained}`, which is not trained, it is the base restricted to the classes.
"""
WHOLE = "12:12, whole"


def cases(sizes: Sequence[int] = SIZES["rendered"]) -> Iterator[tuple[str, Case]]:
    """Every slice with its part, the most telling first; the largest cut of each network first.

    Networks alternate, so that derivations side by side train one each. `sizes`: of the sub-tasks.
    """
    for part, names in PARTS.items():
        for seed in SEEDS:
            for task in sizes:
                for rate in SHARES.values():
                    for name in names:
                        case = Case("dropout", task, rate, seed, name, "skd", steps=0)
                        yield part, replace(case, supernet_steps=0 if name == UNTRAINED else STEPS)


def _apart(rows: list[Row], piad_rows: list[Row]) -> list[float]:
    """Subtract the rows of the same sub-task and seed."""
    by_place = {(row["task"], row["seed"]): row["accuracy"]["derived"] for row in piad_rows}
    return [row["accuracy"]["derived"] - by_place[at] for row in rows if (at := (row["task"], row["seed"])) in by_place]


def section(data: dict[str, Any] | None) -> str:
    """Format the section of README.md."""
    if data is None or not data["rows"]:
        return ""
    rows = of_newest_base(data["rows"].values())
    lines, apart = [], []
    for name in (name for names in PARTS.values() for name in names):
        of = {size: picked(rows, rate=rate, variant=name) for size, rate in SHARES.items()}
        if not any(of.values()):
            continue
        whole = {(row["task"], row["seed"]): row["accuracy"]["base_restricted"] for mine in of.values() for row in mine}
        lines.append([name, *(percent(derived(mine)) for mine in of.values()), percent(list(whole.values()))])
        if name != PIAD:
            piad = {size: picked(rows, rate=rate, variant=PIAD) for size, rate in SHARES.items()}
            apart.append([name, *(points(_apart(of[size], piad[size])) for size in SHARES)])
    steps, batch = max(row["supernet_steps"] for row in rows), rows[0]["batch_size"]
    name, seeds = rows[0]["data"], seeds_text(rows)
    text = TEXT.format(title=TITLES.get(name, f"`{name}`"), steps=steps, batch=batch, seeds=seeds, untrained=UNTRAINED)
    parts = [text, table(["top-1, %, by share of the MACs", *SHARES, WHOLE], lines)]
    if any(any(cells[1:]) for cells in apart):
        parts.append(table(["points, less those of PIAD", *SHARES], apart))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser)
    parser.add_argument("--only", choices=tuple(PARTS))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--steps", type=int, help="of every network that is trained: for a trial")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, results = Console().progress, record_file(options, "dropout", OURS[:1])  # the rendered base came first
    with refusals():
        selection = select(options, progress)
    due = [
        shortened(case, options.steps) if options.steps else case
        for part, case in cases(selection.sizes)
        if options.only in (None, part) and case.seed in SEEDS[: options.seeds]
    ]
    complete(
        islice(selection.of(due), options.rows), {selection.name: selection.place}, results, options.jobs, progress
    )
    if options.data is not None:
        print(section({"rows": selection.rows(results)}))


if __name__ == "__main__":
    main()
