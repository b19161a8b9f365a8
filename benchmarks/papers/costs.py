"""NuWa's table of what many models cost: 50 sub-tasks for 10 devices each, with X-Pruner's training beside it.

    python -m benchmarks.papers.costs                 # as a section of README.md
    python -m benchmarks.papers.costs --price 0.5     # dollars of an hour of the machine that measured the rows

The paper's rows are GPU hours of one model and dollars of 500. Ours are from the derivations of published_fashion.json
at a rate of 0.2, of a small base on a processor: what is the same for all models of a sub-task counts once for it, as
`edgevit fleet` does it, and the rest for each model. What a plan really took is in `edgevit fleet PLAN --status`.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.markdown import Row, load, table, wrapped

TASKS, DEVICES = 50, 10
RATE = 0.2  # at which both methods have a row
VARIANTS = {"nuwa, as published": "NuWa", "xpruner": "X-Pruner"}
OF_A_TASK = {"baselines", "check", "purification", "statistics"}  # the same for all models of a sub-task
# GPU hours of a model, dollars of 500, and the mean accuracy, as the paper prints them.
PAPER = (("X-Pruner", 2.50, 23_074.0, 93.77), ("NuWa", 0.08, 59.12, 93.16))
PRICE = 0.5


def hours(row: Row) -> tuple[float, float]:
    """Hours of one model alone, and of all models of all tasks."""
    seconds: dict[str, float] = row["seconds"]
    shared = sum(value for name, value in seconds.items() if name in OF_A_TASK)
    own = sum(seconds.values()) - shared
    return (shared + own) / 3600, TASKS * (shared + DEVICES * own) / 3600


def section(record: dict[str, Any] | None, price: float = PRICE) -> str:
    """Format the table; empty without rows."""
    found = {} if record is None else {r["variant"]: r for r in record["rows"].values() if r["rate"] == RATE}
    rows = [found[variant] for variant in VARIANTS if variant in found]
    if len(rows) < len(VARIANTS):
        return ""
    count = TASKS * DEVICES
    lines = [
        [f"{name}, the paper's", f"{alone:g}", f"{count * alone:,.0f}", f"{dollars:,.2f}", f"{top1:.2f}"]
        for name, alone, dollars, top1 in PAPER
    ]
    for row in rows:
        alone, every = hours(row)
        cells = [f"{alone:.3f}", f"{every:.1f}", f"{price * every:.2f}", f"{100 * row['accuracy']['derived']:.2f}"]
        lines.append([f"{VARIANTS[row['variant']]}, ours", *cells])
    dear, cheap = (dollars for _, _, dollars, _ in PAPER)
    per_hour = dear / (count * PAPER[0][1])
    ours = [hours(row) for row in rows]
    return "\n".join(
        [
            f"## What {count} models cost (NuWa's table): {TASKS} sub-tasks for {DEVICES} devices each\n",
            wrapped(
                "The paper's hours are of a GPU, ours of two shared processor cores with a small base, photographs of "
                f"clothes, at a rate of {RATE}: compare ratios. The paper's dollars for X-Pruner are {per_hour:.1f} "
                f"for each of its hours; at that price NuWa's are {cheap / per_hour:.1f} hours, not "
                f"{count * PAPER[1][1]:.0f}: most of its time must be shared between the models of a sub-task. So it "
                "is here: purification, statistics and baselines count once for each sub-task."
            ),
            table(["", "hours of one model", f"hours of {count}", "dollars", "accuracy, %"], lines),
            wrapped(
                f"Of {count} models NuWa takes {ours[0][1] / ours[1][1]:.0%} of the time of X-Pruner here (the paper: "
                f"{cheap / dear:.2%} of the dollars), of one model alone {ours[0][0] / ours[1][0]:.0%} (the paper: "
                f"{PAPER[1][1] / PAPER[0][1]:.0%}). X-Pruner trains for few steps here, as all methods do on these "
                f"images. Dollars at {price:g} of an hour; for another price: "
                "`python -m benchmarks.papers.costs --price 2`."
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--price", type=float, default=PRICE, help="dollars of an hour  [default: %(default)s]")
    print(section(load("published_fashion"), parser.parse_args().price))


if __name__ == "__main__":
    main()
