"""What each dimension is worth to forge: beside forge without the narrower embedding, and without steps of its own.

    python benchmarks/dimensions.py              # everything that is not in results/dimensions.json yet
    python benchmarks/dimensions.py --seeds 1
    python benchmarks/dimensions.py --only trained

The sub-tasks, seeds, steps and images of accuracy.py, on the base that base.py trains on this machine; shape `fused`.
Everything is chosen on the validation part; accuracy is reported on `val/`, which no derivation ever sees.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accuracy import SEEDS, STEPS, TASK_SIZES, Case, Options, complete, open_places
from accuracy_tables import baselines_table, of_newest_base
from older import TITLE
from tables import Row, derived, percent, picked, table

RESULTS = Path(__file__).parent / "results" / "dimensions.json"
RATES = (0.4, 0.6, 0.8, 0.9, 0.95, 0.97)
BEFORE: Options = {"cut_embedding": False, "align": False, "refit_head": False, "drop_sites": False}
# Each takes one away from forge's closed form; the last adds what is no default.
WITHOUT: dict[str, Options] = {f"{name}=false": {name: value} for name, value in BEFORE.items()}
WITHOUT["cut_tokens=true"] = {"cut_tokens": True}
CLOSED = {"forge, closed form": {}, "without all of these": BEFORE}
TRAINED = {"forge": {}, "forge, without all of these": BEFORE}
PARTS = ("closed", "without", "trained")


def cases() -> dict[str, list[Case]]:
    """Every derivation by part, in the order in which a reader would miss it."""

    def made(options: dict[str, Options], steps: int, rates: tuple[float, ...]) -> Iterator[Case]:
        for seed in SEEDS:
            for rate in rates:
                for task in TASK_SIZES:
                    for name, given in options.items():
                        yield Case("dimensions", task, rate, seed, name, "forge", given, steps=steps)

    return {
        "closed": list(made(CLOSED, 0, (0.8, 0.9, 0.95, 0.97, 0.6, 0.4))),
        "without": list(made(WITHOUT, 0, (0.9, 0.95, 0.8))),
        "trained": list(made(TRAINED, STEPS, (0.95, 0.9))) + list(made({"forge": {}}, STEPS, (0.8, 0.97))),
    }


def _against_base(rows: list[Row]) -> list[float]:
    """Accuracy less that of the restricted base, of each row."""
    return [row["accuracy"]["derived"] - row["accuracy"]["base_restricted"] for row in rows]


def _table(rows: list[Row], names: list[str]) -> str:
    rates, lines = _rates(rows), []
    for task in TASK_SIZES:
        for name in names:
            found = [picked(rows, task=task, variant=name, rate=rate) for rate in rates]
            if any(found):
                lines.append([f"{task} classes, {name}", *(percent(derived(of)) for of in found)])
    for name in names:
        found = [picked(rows, variant=name, rate=rate) for rate in rates]
        if any(found):
            apart = [_against_base(of) for of in found]
            lines.append([f"**points to the restricted base, {name}**", *(_points(of) for of in apart)])
    return table(["", *(f"{rate:g}" for rate in rates)], lines)


def _rates(rows: list[Row]) -> list[float]:
    return [rate for rate in RATES if picked(rows, rate=rate)]


def _chosen(rows: list[Row], task: int, rate: float) -> list[Row]:
    return picked(rows, task=task, rate=rate, variant="forge, closed form")


def _points(values: list[float]) -> str:
    """Mean, and the worst of them."""
    return f"{100 * sum(values) / len(values):+.1f} (worst {100 * min(values):+.1f})" if values else ""


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None:
        return ""
    rows = of_newest_base(data["rows"].values())
    trained = picked(rows, steps=STEPS)
    widths = [
        [
            f"{rate:g}",
            *(", ".join(str(row["embed"]) for row in _chosen(rows, task, rate)) for task in TASK_SIZES),
        ]
        for rate in _rates(rows)
    ]
    return "\n".join(
        [
            f"## {TITLE}\n",
            f"The base of the rendered data set, trained again on one thread: top-1 {100 * rows[0]['base_top1']:.1f} % "
            "on all 24 classes.\nShape `fused`, equal MACs, sub-tasks and recipe as above; mean and range over seeds. "
            "Where a cell is empty, the rate\ncannot be reached, or was not run. These are images rendered by the "
            "project, and no ImageNet result.\n",
            baselines_table(rows),
            f"### Nothing trained\n\n{_table(picked(rows, steps=0), [*CLOSED, *WITHOUT])}",
            *([f"### Distilled, {STEPS} steps\n\n{_table(trained, list(TRAINED))}"] if trained else []),
            "### Widths chosen, of 192, for each seed\n\n"
            + table(["MACs gone", *(f"{task} classes" for task in TASK_SIZES)], widths),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    from edgevit.cli.console import Console

    progress = Console().progress
    places = open_places(["rendered"], progress)
    of_part = cases()
    parts = [part for part in PARTS if given.only in (None, part)]
    wanted = [case for part in parts for case in of_part[part] if case.seed in SEEDS[: given.seeds]]
    complete(wanted, places, given.results, given.jobs, progress)


if __name__ == "__main__":
    main()
