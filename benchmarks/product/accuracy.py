"""What forge loses: top-1 below the base, by MACs gone, and what each of its steps is worth.

    python -m benchmarks.product.accuracy                   # every case that records/accuracy.json does not have
    python -m benchmarks.product.accuracy --only trained --seeds 1
    python -m benchmarks.product.accuracy --base fine       # 48 finer classes, in records/accuracy_fine.json
    python -m benchmarks.product.accuracy --base fashion    # photographs, in records/accuracy_fashion.json

Three sub-tasks and three seeds; shape `fused`. Accuracy is reported on `val/`, which no derivation sees.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import sources
from benchmarks.derivations import SEEDS, SIZES, STEPS, Case, Options, complete, on_base
from benchmarks.markdown import RECORDS, Row, commits_text, picked, rows_of, screen, table

RATES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.97)
SHOWN_RATES = RATES[3:]
BASELINE_RATE = 0.8  # the base is fine-tuned once per sub-task and seed, as it does not depend on the rate
WITHOUT: dict[str, Options] = {  # each takes one step away
    "cut_embedding=false": {"cut_embedding": False},
    "align=false": {"align": False},
    "refit_head=false": {"refit_head": False},
    "drop_sites=false": {"drop_sites": False},
    "cut_tokens=never": {"cut_tokens": "never"},
    "fit_decoders=false": {"fit_decoders": False},
}
NONE: Options = {
    "cut_embedding": False, "align": False, "refit_head": False, "drop_sites": False, "cut_tokens": "never",
}  # fmt: skip
CLOSED: dict[str, Options] = {"forge, closed form": {}, "without all of these": NONE}
TRAINED: dict[str, Options] = {"forge": {}, "forge, without all of these": NONE}
PARTS = ("closed", "without", "trained")
TITLES = {
    "accuracy_fashion": "photographs of clothes",
    "accuracy_fine": "48 finer rendered classes",
    "accuracy": "24 rendered classes",
}


def cases() -> dict[str, list[Case]]:
    """Every derivation by part, the most telling first."""

    def variants(options: dict[str, Options], steps: int, rates: Sequence[float]) -> Iterator[Case]:
        for seed in SEEDS:
            for rate in rates:
                for task in SIZES["rendered"]:
                    for name, option in options.items():
                        yield Case(
                            "dimensions", task, rate, seed, name, "forge", option, steps=steps,
                            finetune_base=name == "forge" and rate == BASELINE_RATE,
                        )  # fmt: skip

    return {
        "closed": list(variants(CLOSED, 0, (0.8, 0.9, 0.95, 0.97, 0.6, 0.4, 0.2))),
        "without": list(variants(WITHOUT, 0, (0.9, 0.95, 0.8))),
        "trained": [*variants(TRAINED, STEPS, (0.95, 0.9)), *variants({"forge": {}}, STEPS, (0.8, 0.97))],
    }


def below(rows: Sequence[Row]) -> list[float]:
    """Top-1 of the restricted base minus that of the model, in points."""
    return [100 * (row["accuracy"]["base_restricted"] - row["accuracy"]["derived"]) for row in rows]


def _below_text(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    lost = below(rows)
    mean = round(statistics.mean(lost), 2) + 0.0  # -0.0 is 0
    return f"{mean:.2f} (worst {max(lost):.2f})"


def section() -> str:
    """Format two questions of RESULTS.md."""
    records = {title: rows_of(name) for name, title in TITLES.items()}
    kinds = {0: "closed form", STEPS: f"distilled, {STEPS} steps"}
    losses = []
    for title, rows in records.items():
        for steps, kind in kinds.items():
            forge_rows = picked(rows, options={}, steps=steps)
            losses.append([f"{title}, {kind}", *(_below_text(picked(forge_rows, rate=rate)) for rate in SHOWN_RATES)])
    bases = [
        [title, *(f"{100 * max(row['accuracy'][name] for row in picked(rows, task=task)):.1f}"
                  for task in sorted({row["task"] for row in rows}) for name in ("base_full_head", "base_restricted"))]
        for title, rows in records.items()
    ]  # fmt: skip
    steps_lines = []
    for name in (*CLOSED, *WITHOUT):
        cells = [
            _below_text(picked(rows, variant=name, rate=rate, steps=0))
            for rows in records.values()
            for rate in (0.9, 0.95)
        ]
        steps_lines.append([name, *cells])
    commits = {title: commits_text(rows) for title, rows in records.items()}
    return "\n".join(
        [
            screen(
                "How much accuracy does a model lose?",
                "Points of top-1 below the base restricted to the classes, by MACs gone: forge, shape `fused`, mean "
                "and worst of nine derivations (three sub-tasks, three seeds). The project trained the bases; there "
                "is no "
                "ImageNet result.",
                [
                    table(["MACs gone", *(f"{rate:g}" for rate in SHOWN_RATES)], losses),
                    "The bases, top-1 in %, full head and restricted, for the smallest, middle and largest sub-task:\n",
                    table(["", *["full head", "restricted"] * 3], bases),
                ],
                "python -m benchmarks.product.accuracy --base fashion",
                "lower rates, where nothing is lost; sub-tasks one by one and the widths chosen, which the records "
                f"have. {' '.join(f'{title}: {text}' for title, text in commits.items())}",
            ),
            screen(
                "What is each step of forge worth?",
                "The same points below the restricted base, nothing trained, with one step taken away: a larger number "
                "than that of the first row is what the step is worth.",
                [table(["", *(f"{title}, {rate:g}" for title in records for rate in (0.9, 0.95))], steps_lines)],
                "python -m benchmarks.product.accuracy --only without --base fashion",
                "0.8 of the MACs, where steps hardly differ.",
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", choices=("rendered", "fine", "fashion"), default="rendered")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rates", type=float, nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--results", type=Path, help="file of the rows; another one for a trial")
    sources.add_device(parser)
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress = Console().progress
    places = {options.base: sources.project_source(options.base, progress).place(options.device)}
    by_part = cases()
    due = [
        case
        for part in PARTS
        if options.only in (None, part)
        for case in by_part[part]
        if case.rate in options.rates and case.seed in SEEDS[: options.seeds]
    ]
    name = "accuracy" if options.base == "rendered" else f"accuracy_{options.base}"
    complete(on_base(due, options.base), places, options.results or RECORDS / f"{name}.json", options.jobs, progress)


if __name__ == "__main__":
    main()
