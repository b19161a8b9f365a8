"""What else cuts the same base: every rival beside forge, with nothing trained and after a short training.

    python -m benchmarks.product.rivals --base fashion    # photographs, in records/rivals_fashion.json
    python -m benchmarks.product.rivals --base fine       # 48 finer classes, in records/rivals_fine.json
    python -m benchmarks.product.rivals                   # 24 rendered classes, in records/rivals.json
    python -m benchmarks.product.rivals --only cut --tasks 6 --seeds 1 --method taylor
    python -m benchmarks.product.rivals --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --classes dogs.txt

All methods get the same base, images, seeds and MACs, in the first of the shapes `fused`, `paper` and `free` in which
the method reaches the rate. All train for as many steps at one learning rate that was tuned for none of them, each with
its own rule of warm-up; `benchmarks/papers/published.py` trains them at length. `magnitude` with nothing trained is
taken to be the rival that NuWa's paper calls Numerical. Accuracy is reported on `val/`, which no derivation sees.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice

from benchmarks.derivations import SEEDS, SIZES, STEPS, Case, Options, complete, shortened
from benchmarks.markdown import (
    Row,
    commits_text,
    derived,
    lead_text,
    leads,
    nearest,
    of_newest_base,
    percent,
    picked,
    rows_of,
    screen,
    table,
)
from benchmarks.sources import add_source, record_file, refusals, select

RATES = (0.8, 0.9, 0.95)
LOWER = (0.2, 0.4, 0.6)  # of the papers, where these are asked for: methods differ less there
TAUGHT: Options = {"teacher": "restricted", "token_weight": 1.0}  # forge's own distillation
WIDE: Options = {"grouping": "isomorphic", "attention": "both", "cut_embedding": True}

FUSED = dict.fromkeys(RATES, "fused")  # of those that cut heads or the embedding
NARROW = {0.8: "fused", 0.9: "paper", 0.95: "free"}  # of those that keep every head and the embedding
PAPER = dict.fromkeys(RATES, "paper")  # of those that keep the widths of heads, and so need blocks of one head

# Name in the tables: method, its options, and the shape at each rate; at lower ones it is fused.
METHODS: dict[str, tuple[str, Options, dict[float, str]]] = {
    "forge": ("forge", {}, FUSED),
    "nuwa": ("nuwa", {}, NARROW),
    "corp": ("corp", {}, NARROW),
    "corp, nothing made up for": ("corp", {"compensate": False}, NARROW),
    "nvit": ("nvit", {}, FUSED),
    "mdp": ("mdp", {}, FUSED),
    "mdp, embedding kept": ("mdp", {"cut_embedding": False}, FUSED),
    "taylor": ("taylor", {}, FUSED),
    "taylor, embedding kept": ("taylor", {"cut_embedding": False}, FUSED),
    "torch-pruning": ("torch_pruning", {}, FUSED),
    "torch-pruning, magnitude": ("torch_pruning", {"importance": "magnitude"}, FUSED),
    "xpruner": ("xpruner", {}, PAPER),
    "dcvit": ("dcvit", {}, FUSED),
    "wanda": ("wanda", {}, NARROW),
    "magnitude": ("magnitude", {}, NARROW),
    "magnitude, all dimensions": ("magnitude", WIDE, FUSED),
    "random": ("random", {}, NARROW),
    "random, all dimensions": ("random", {**WIDE, "grouping": "uniform"}, FUSED),
}
PARTS = {"cut": "nothing trained", "distilled": f"distilled alike, {STEPS} steps", "labels": "trained on labels"}


def _case(part: str, name: str, task: int, rate: float, seed: int) -> Case:
    method, options, shapes = METHODS[name]
    teacher: Options = {"cut": {}, "distilled": TAUGHT, "labels": {"teacher": "none"}}[part]
    return Case(
        "rivals", task, rate, seed, name, method, {**options, **teacher}, shapes.get(rate, "fused"),
        0 if part == "cut" else STEPS,
        finetune_base=name == "forge" and part != "cut" and rate == 0.8,
    )  # fmt: skip


def cases(tasks: Sequence[int] = SIZES["rendered"], rates: Sequence[float] = RATES) -> Iterator[tuple[str, Case]]:
    """Every derivation with its part, the most telling first."""
    trained = [(part, seed) for seed in SEEDS for part in ("distilled", "labels")]
    for task in tasks:
        for seed in SEEDS:
            for rate in rates:
                for name in METHODS:
                    yield "cut", _case("cut", name, task, rate, seed)
    for part, seed in trained:
        for task in tasks:
            for rate in sorted(rates, key=(0.9, 0.95, 0.8, *LOWER[::-1]).index):
                for name in METHODS:
                    yield part, _case(part, name, task, rate, seed)


# -- tables ------------------------------------------------------------------------------------------------------------


def part_of(row: Row) -> str:
    if not row["steps"]:
        return "cut"
    return "labels" if row["options"].get("teacher") == "none" else "distilled"


def methods_table(rows: Sequence[Row], rate: float | None = None) -> str:
    """Top-1 of every method, by sub-task and rate; or of one rate only."""
    lines, rates = [], sorted({row["rate"] for row in rows}) if rate is None else [rate]
    tasks = sorted({row["task"] for row in rows})
    for name in METHODS:
        cells = [percent(derived(picked(rows, task=task, variant=name, rate=at))) for at in rates for task in tasks]
        if any(cells):
            lines.append([name, *cells])
    head = [f"{task} classes" + (f", {at:g}" if rate is None else "") for at in rates for task in tasks]
    return table(["top-1, %", *head], lines)


TITLES = {
    "rivals_fashion": "photographs of clothes",
    "rivals_fine": "48 finer classes",
    "rivals": "24 rendered classes",
}


def section() -> str:
    """Format two questions of RESULTS.md: the nearest rival on each base, and all of them on one."""
    lines = []
    for record, title in TITLES.items():
        for part, kind in PARTS.items():
            rows = [row for row in rows_of(record) if part_of(row) == part]
            cells = [nearest(leads(picked(rows, rate=rate))) for rate in RATES]
            if any(cells) and part != "labels":
                lines.append([f"{title}, {kind}", *cells])
    rows = rows_of("rivals_fashion")
    by_part = {part: [row for row in picked(rows, rate=0.9) if part_of(row) == part] for part in PARTS}
    ahead = {part: leads(part_rows) for part, part_rows in by_part.items()}
    return "\n".join(
        [
            screen(
                "How far ahead of the nearest rival is forge?",
                "Points of top-1 ahead of the rival that comes nearest, at equal MACs: mean and range over n pairs of "
                "sub-task and seed, and of how many rivals it is the nearest.",
                [table(["MACs gone", *(f"{rate:g}" for rate in RATES)], lines)],
                "python -m benchmarks.product.rivals --base fashion",
                "training at length, at a learning rate of each method's own, where rivals come nearer: "
                "[benchmarks/papers](../papers/README.md). Short training favours a method whose closed form is good.",
            ),
            screen(
                "What else cuts the same base?",
                "Points of top-1 that forge is ahead on photographs of clothes, 0.9 of the MACs gone; mean and range "
                "over n pairs. Methods as `edgevit methods NAME` says; those that keep every head and the embedding "
                "are in shape `paper`. Empty: not run, or the rate cannot be reached. "
                + commits_text(row for part_rows in by_part.values() for row in part_rows),
                [
                    table(
                        ["forge ahead of", *PARTS.values()],
                        [
                            [name, *(lead_text(ahead[part].get(name, [])) for part in PARTS)]
                            for name in METHODS
                            if any(name in differences for differences in ahead.values())
                        ],
                    )
                ],
                "python -m benchmarks.product.rivals --base fashion --rates 0.9",
                "0.8 and 0.95 of the MACs, and the other bases, which the records have.",
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser, ("rendered", "fine", "fashion"))
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS), help="names in the table")
    parser.add_argument("--rates", type=float, nargs="+", choices=(*LOWER, *RATES), default=list(RATES))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--steps", type=int, help="of every case that trains: for a trial")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, results = Console().progress, record_file(options, "rivals", ("rendered",))
    with refusals():
        selection = select(options, progress)
    due = [
        shortened(case, options.steps) if options.steps else case
        for part, case in cases(selection.sizes, options.rates)
        if options.only in (None, part) and case.variant in options.method and case.seed in SEEDS[: options.seeds]
    ]
    complete(
        islice(selection.of(due), options.rows), {selection.name: selection.place}, results, options.jobs, progress
    )
    if options.data is not None:
        print(methods_table(of_newest_base(selection.rows(results).values())))


if __name__ == "__main__":
    main()
