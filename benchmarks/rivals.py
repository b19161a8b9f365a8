"""Every rival beside forge: the same base, images, seeds and MACs, with nothing trained and after a short training.

    python benchmarks/rivals.py                   # everything that is not in results/rivals.json yet
    python benchmarks/rivals.py --only cut        # nothing trained; distilled, labels
    python benchmarks/rivals.py --tasks 6 --seeds 1 --method taylor
    python benchmarks/rivals.py --base fine       # on 48 finer classes, in results/rivals_fine.json
    python benchmarks/rivals.py --base fashion    # on photographs, in results/rivals_fashion.json
    python benchmarks/rivals.py --rates 0.2 0.4 0.6 0.8    # Vulcan's rates; three of them are not among the default
    python benchmarks/rivals.py --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --classes dogs.txt

The sub-tasks, steps and images of accuracy.py, on the base that base.py trains on this machine, or another, or a
user's; the smallest sub-task comes first. Each method is as its docstring has it from its source, in the first of the
shapes `fused`, `paper` and `free` in which it reaches the rate: one that keeps every head and the embedding cannot be
as small as the others.
NuWa's table has a rival that trains nothing and is called Numerical: `magnitude` with nothing trained is taken to be
it, as that method's docstring says.
All train for as many steps at one learning rate, which is tuned for none of them, each with its own rule of warm-up:
so these rows say what a method is worth after so many steps, and published.py what it comes to.
Everything is chosen on the validation part; accuracy is reported on `val/`, which no derivation ever sees.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from accuracy import (
    LR,
    OTHER_SIZES,
    SEEDS,
    STEPS,
    TASK_SIZES,
    Case,
    Options,
    complete,
    shortened,
)
from accuracy_tables import baselines_table, of_newest_base
from older import EVERY, HARDER, PHOTOGRAPHS, commits_told
from source import add_source, chosen_from, refusals, results_file
from tables import Row, derived, percent, picked, points, table

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
NUMERICAL = {"magnitude": 'magnitude (NuWa\'s "numerical")'}  # what another paper calls it, with nothing trained
PARTS = ("cut", "distilled", "labels")


def _case(part: str, name: str, task: int, rate: float, seed: int) -> Case:
    method, given, shapes = METHODS[name]
    teacher: Options = {"cut": {}, "distilled": TAUGHT, "labels": {"teacher": "none"}}[part]
    return Case(
        "rivals", task, rate, seed, name, method, {**given, **teacher}, shapes.get(rate, "fused"),
        0 if part == "cut" else STEPS,
    )  # fmt: skip


def cases(tasks: Sequence[int] = TASK_SIZES, rates: Sequence[float] = RATES) -> Iterator[tuple[str, Case]]:
    """Every derivation with its part, in the order in which a reader would miss it."""
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


def rates_of(rows: Iterable[Row]) -> list[float]:
    return sorted({row["rate"] for row in rows})


def methods_table(rows: list[Row], names: Mapping[str, str]) -> str:
    """Accuracy by method and rate, the sub-tasks one below the other; `names`: of methods that are shown by another."""
    lines, rates = [], rates_of(rows)
    for task in sorted({row["task"] for row in rows}):
        for name in METHODS:
            cells = []
            for rate in rates:
                found = picked(rows, task=task, variant=name, rate=rate)
                shape = f" `{found[0]['shape']}`" if found and found[0]["shape"] != "fused" else ""
                cells.append(percent(derived(found)) + shape)
            if any(cells):
                lines.append([f"{task} classes, {names.get(name, name)}", *cells])
    return table(["top-1, %, by MACs gone", *(f"{rate:g}" for rate in rates)], lines)


def differences_table(rows: list[Row]) -> str:
    """Forge less each rival, over n pairs of sub-task and seed."""
    lines, rates = [], rates_of(rows)
    for name in METHODS:
        cells = []
        for rate in rates:
            of = {
                (row["task"], row["seed"], row["variant"]): row["accuracy"]["derived"]
                for row in picked(rows, rate=rate)
            }
            pairs = [(of[task, seed, "forge"], value) for (task, seed, variant), value in of.items()
                     if variant == name and (task, seed, "forge") in of]  # fmt: skip
            cells.append(f"{points([a - b for a, b in pairs])}; n = {len(pairs)}" if pairs else "")
        if name != "forge" and any(cells):
            lines.append([name, *cells])
    return table(["points, forge less, over n pairs", *(f"{rate:g}" for rate in rates)], lines)


RENDERED = f"""## Rivals: what else cuts the same base

Each method as `edgevit methods NAME` says, on the base of {EVERY} (top-1 {{top1:.1f}} % on all 24 classes),
at equal MACs{{beyond}}: mean and range over the seeds that were run. Shape `fused`, but where a method keeps every head
and the embedding and ends before the rate: then the shape is named. These are images rendered by the project, and no
ImageNet result; where a cell is empty, the rate cannot be reached, or was not run.
"""
FINE = f"""## Rivals on the harder base

The same on the base of {HARDER} (top-1 {{top1:.1f}} %; `rivals.py --base fine`), at equal MACs{{beyond}}:
mean and range over the seeds that were run. Where a cell is empty, the rate cannot be reached, or was not run. These
are images rendered by the project, and no ImageNet result.
"""
FASHION = f"""## Rivals on photographs

The same on the base of {PHOTOGRAPHS} (top-1 {{top1:.1f}} % on the 10,000 test images; `rivals.py --base fashion`), at
equal MACs{{beyond}}: mean and range over the seeds that were run. Where a cell is empty, the rate cannot be reached,
or was not run. Ten classes of clothes are no ImageNet.
"""
YOURS = """## Rivals on `{name}`

Each method as `edgevit methods NAME` says, on images and a base of yours, at equal MACs{beyond}: mean and range over
the seeds that were run. Shape `fused`, but where a method keeps every head and the embedding and ends before the rate:
then the shape is named. Where a cell is empty, the rate cannot be reached, or was not run.
"""
TITLES = {
    "cut": "### Nothing trained\n\nNuWa's table has a rival that trains nothing and is called Numerical, without more "
    "of it: by its name it is\n`magnitude`, and that row says so.",
    "distilled": "### Distilled: {steps} steps, the restricted base's answers and final tokens",
    "labels": "### Trained on the labels alone: {steps} steps",
}
TRAINED = """All methods see the same images in {steps} steps at one learning rate, {lr:g}, which was tuned for none of
them, and not until they converge. Each has its own rule of warm-up: {gentle} up for a tenth of the steps, to a rate
that the loss caps (docs/decisions/015-gentle-training.md), and all others have the full rate from the first step. So a
difference is of methods with their rules after {steps} steps; what is left of it after as many as Vulcan's own rule
gives is in the sections at published length, as far as these were run.
"""
BEYOND = 0.005  # of the MACs: what a method may cut beyond what was asked without being named


def section(data: dict[str, Any] | None, introduction: str) -> str:
    """The part of RESULTS.md about one base."""
    if data is None or not data["rows"]:
        return ""
    rows = of_newest_base(data["rows"].values())
    top1 = 100 * (rows[0]["base_top1"] or 0.0)  # of a user's base nothing is known, nor told
    title, told = introduction.format(top1=top1, beyond=beyond_told(rows), name=rows[0]["data"]).split("\n\n")
    commits = "" if introduction is YOURS else commits_told(rows)
    parts = [f"{title}\n", _wrapped(told), commits, baselines_table(rows)]
    for part, title in TITLES.items():
        if found := [row for row in rows if part_of(row) == part]:
            steps = max(row["steps"] for row in found)
            trained = TRAINED.format(steps=steps, lr=LR, gentle=gentle_told(found)) if steps else ""
            parts += [f"{title.format(steps=steps)}\n", _wrapped(trained) if trained else ""]
            parts += [methods_table(found, NUMERICAL if part == "cut" else {}), differences_table(found)]
    return "\n".join(part for part in parts if part)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 118)) + "\n"


def beyond_told(rows: Iterable[Row]) -> str:
    """Which methods end well below the MACs that were asked for, and by how much at most; nothing where none does."""
    largest: dict[str, float] = {}
    for row in rows:
        largest[row["variant"]] = max(row["rate_reached"] - row["rate"], largest.get(row["variant"], 0.0))
    told = [
        f"{name} cuts up to {beyond:.3f} of the base's MACs more" for name, beyond in largest.items() if beyond > BEYOND
    ]
    return f" ({', '.join(told)})" if told else ""


def gentle_told(rows: Iterable[Row]) -> str:
    """The methods of these rows whose training starts from weights that are nearly right."""
    from edgevit.derivation.methods import load_method

    methods = sorted({row["method"] for row in rows})
    gentle = [name for name in methods if load_method(name).METHOD.gentle]
    return f"{' and '.join(gentle) or 'none'} {'warm' if len(gentle) > 1 else 'warms'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser, ("rendered", *OTHER_SIZES))
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS), help="names in the table")
    parser.add_argument("--rates", type=float, nargs="+", choices=(*LOWER, *RATES), default=list(RATES))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--steps", type=int, help="of every case that trains: for a trial")
    given = parser.parse_args()
    from edgevit.cli.console import Console

    progress, results = Console().progress, results_file(given, "rivals", ("rendered",))
    with refusals():
        chosen = chosen_from(given, progress)
    wanted = [
        shortened(case, given.steps) if given.steps else case
        for part, case in cases(chosen.sizes, given.rates)
        if given.only in (None, part) and case.variant in given.method and case.seed in SEEDS[: given.seeds]
    ]
    complete(islice(chosen.of(wanted), given.rows), {chosen.name: chosen.place}, results, given.jobs, progress)
    if given.data is not None:
        print(section({"rows": chosen.rows(results)}, YOURS))


if __name__ == "__main__":
    main()
