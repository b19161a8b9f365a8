"""Was the width that forge chose for the embedding the right one? The closed form at every rung, beside the choice.

    python benchmarks/embedding.py                             # everything that is not in results/embedding.json yet
    python benchmarks/embedding.py --base fine                 # on 48 finer classes, in results/embedding_fine.json
    python benchmarks/embedding.py --base fashion --seeds 1 --rates 0.95

At each rate forge derives with the ladder as it is, and once with every width as the only one: the sub-tasks, seeds and
images of accuracy.py, on the base that base.py trains on this machine, or another; shape `fused`. What is compared is
the closed form: its top-1 on the validation part, which a choice would go by, and on `val/`, which is only told.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from accuracy import OTHER_SIZES, SEEDS, TASK_SIZES, Case, complete, on_base, open_places, records_of
from accuracy_tables import of_newest_base
from dimensions import EMBED
from older import commits_told
from tables import Row, derived, grouped, percent, picked, points, table

from edgevit.derivation.allocate.policy import POLICIES
from edgevit.derivation.embedding import ladder

RATES = (0.9, 0.95, 0.8)
CHOSEN = "chosen"
TITLES = {"rendered": "24 rendered classes", "fine": "48 finer classes", "fashion": "photographs of clothes"}


def widths(base: str) -> list[int]:
    """What the embedding of this base can be narrowed to, the whole first."""
    return list(ladder(EMBED[base], POLICIES["fused"].embed_step))


def cases(base: str, seeds: Sequence[int], rates: Sequence[float]) -> Iterator[Case]:
    """The choice and every width, place by place, so that what is complete can be read; tasks as of the first base."""
    for seed in seeds:
        for task in TASK_SIZES:
            for rate in rates:
                for width in (0, *widths(base)):
                    options = {"embed_width": width} if width else {}
                    yield Case("embedding", task, rate, seed, f"{width or CHOSEN}", "forge", options, steps=0)


def validation(row: Row) -> float:
    return float(row["facts"]["accuracy_validation_closed_form"])


def best(rows: Sequence[Row]) -> Row:
    """By the validation part; of equal ones the one of which less loss is predicted."""
    return max(rows, key=lambda row: (validation(row), -row["facts"]["predicted_nats"]))


TEXT = """## The width of the embedding, on {title}: chosen against every other

Forge's closed form as it chooses the width, and with each width of {whole} down as the only choice; shape `fused`,
equal MACs, top-1 in % on `val/`. Mean over seeds {seeds}. `by validation`: the width whose model is best on the
validation part, once every width has a model. Where a cell is empty, the width cannot be had at that rate, or was not
run.
"""


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None or not data["rows"]:
        return ""
    rows = of_newest_base(data["rows"].values())
    every_width = widths(rows[0]["data"])
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    found, judged = [], []
    for (task, rate), of in sorted(grouped(rows, "task", "rate").items()):
        chosen = picked(of, variant=CHOSEN)
        place = f"{task} classes, {rate:g}"
        forced = [derived(picked(of, variant=str(width))) for width in every_width]
        found.append([place, percent(derived(chosen)), *(percent([mean(one)]) if one else "" for one in forced)])
        every = {seed: [r for r in picked(of, seed=seed) if r["variant"] != CHOSEN] for seed in {r["seed"] for r in of}}
        pairs = [(row, best(every[row["seed"]])) for row in chosen if every[row["seed"]]]
        judged.append(
            [
                place,
                ", ".join(str(row["embed"]) for row, _ in pairs),
                ", ".join(str(other["embed"]) for _, other in pairs),
                points([row["accuracy"]["derived"] - other["accuracy"]["derived"] for row, other in pairs]),
            ]
        )
    parts = [
        TEXT.format(title=TITLES[rows[0]["data"]], whole=every_width[0], seeds=seeds),
        commits_told(rows),
        table(["", CHOSEN, *map(str, every_width)], found),
        table(["", "chosen, for each seed", "by validation", "points, chosen less that one"], judged),
    ]
    return "\n".join(part for part in parts if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", choices=("rendered", *OTHER_SIZES), default="rendered")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--results", type=Path, help="file of the rows; another one for a trial")
    given = parser.parse_args()
    from edgevit.cli.console import Console

    progress = Console().progress
    places = open_places([given.base], progress)
    wanted = on_base(cases(given.base, SEEDS[: given.seeds], given.rates), given.base)
    results = given.results or records_of("embedding", given.base)
    complete(wanted, places, results, given.jobs, progress)  # some widths cannot be had at a rate


if __name__ == "__main__":
    main()
