"""Every method trained for as long as Vulcan's own rule says: accuracy against images seen.

    python -m benchmarks.papers.published --base demo       # every case that records/published.json does not have
    python -m benchmarks.papers.published --base demo --rates 0.9 --seeds 1 --method forge vulcan
    python -m benchmarks.papers.published                   # 24 rendered classes
    python -m benchmarks.papers.published --base fashion    # photographs, in records/published_fashion.json
    python -m benchmarks.papers.published --base fine       # 48 finer classes, in records/published_fine.json
    python -m benchmarks.papers.published --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --classes dogs

Vulcan's rule gives as many passes over a task's images as its paper trained for; every
method that trains gets that length. Vulcan and NuWa also run with the choices of their papers. A super-network is
trained once for all of its sizes. The first sub-task has three seeds, the others one. At the highest rate, runs of a
sixteenth and a quarter of the length are added.

The learning rate of each method is chosen on the validation part in runs of a quarter of the length: by the loss, or by
top-1 where a method reports no loss. They have the highest rate that the method reaches on the base: a Swin's is below
0.9 where all heads and blocks stay. If the outermost learning rate is the best, the next one is tried, too. HEART drops
only tokens and heads, and has no row at the highest rate.

"Better base": a copy of the base is trained on the labels for as long, and cut in place of the base if its loss on the
validation part is lower (`--derive-from better`). Accuracy is on `val/`, which no derivation sees.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from benchmarks.derivations import BATCH, SEEDS, SIZES, Case, Options, complete, parted
from benchmarks.markdown import (
    Row,
    baselines_table,
    commits_text,
    derived,
    of_newest_base,
    percent,
    picked,
    seeds_text,
    table,
    wrapped,
)
from benchmarks.papers.published_curve import PUBLISHED_RATE
from benchmarks.papers.published_curve import text as curve_text
from benchmarks.product.rivals import METHODS, TAUGHT
from benchmarks.sources import add_source, record_file, refusals, select
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.feasibility import Target
from edgevit.derivation.method import find_method
from edgevit.errors import BudgetError
from edgevit.network.classifier import with_classes
from edgevit.network.network import Network

TASKS = {  # the first has every seed
    "rendered": (12, 6, 18),
    "demo": (4, 3, 2),
    "fine": SIZES["fine"],
    "fashion": (5, 3, 10),
}
TITLES = {
    "rendered": "the rendered base",
    "demo": "the demo's base",
    "fine": "the harder base",
    "fashion": "photographs of clothes",
}
IMAGES = {
    **dict.fromkeys(TASKS, "Images are rendered by the project: no ImageNet result. "),
    "fashion": "Photographs of ten kinds of clothes: no ImageNet result. ",
}
RATES = (PUBLISHED_RATE, 0.8, 0.6, 0.4, 0.2)
PARTS = (1 / 16, 1 / 4)  # of the length
LRS = (3e-4, 1e-4, 1e-3)  # the middle one first
FURTHER = (1e-5, 3e-5, *sorted(LRS), 3e-3, 1e-2)  # those beside them, where the outermost is the best
RIVALS = (
    "nvit",
    "mdp",
    "taylor",
    "taylor, embedding kept",
    "torch-pruning",
    "torch-pruning, magnitude",
    "xpruner",
    "dcvit",
    "corp",
    "wanda",
    "magnitude",
    "magnitude, all dimensions",
    "random",
    "random, all dimensions",
)
FULL, CURVE, TUNING = "published", "published curve", "published lr"  # tables of the rows
NUWA: Options = {"as_published": True}
VULCAN: Options = {"as_published": True}


@dataclass(frozen=True)
class Way:
    """One method as it is trained here."""

    method: str
    options: Options = field(default_factory=dict)
    shapes: Mapping[float, str] = field(default_factory=dict)  # at a rate; elsewhere fused
    trained: bool = True
    supernet: bool = False
    schedule: str = "cosine"
    derive_from: str = "base"
    rates: Sequence[float] = RATES  # the highest first

    def shape(self, rate: float) -> str:
        return self.shapes.get(rate, "fused")


PAPER = dict.fromkeys(RATES, "paper")
WHOLE = {PUBLISHED_RATE: "paper"}  # heads and blocks all stay, and `fused` ends before
BETTER = ", better base"
WAYS: dict[str, Way] = {
    "forge": Way("forge"),
    f"forge{BETTER}": Way("forge", derive_from="better"),
    "vulcan, as published": Way("vulcan", VULCAN, PAPER, schedule="constant"),
    "vulcan": Way("vulcan", {}, WHOLE),
    "vulcan + teacher": Way("vulcan", TAUGHT, WHOLE),
    "nuwa, as published": Way("nuwa", NUWA, PAPER, trained=False),
    "nuwa, fine-tuned": Way("nuwa", TAUGHT, WHOLE),
    "super-network": Way("skd", {}, PAPER, trained=False, supernet=True),
    "heart": Way("heart", TAUGHT, PAPER, rates=RATES[1:]),  # tokens and heads alone: `paper` reaches 0.75 to 0.85
    **{name: Way(METHODS[name][0], {**METHODS[name][1], **TAUGHT}, METHODS[name][2]) for name in RIVALS},
    f"vulcan + teacher{BETTER}": Way("vulcan", TAUGHT, WHOLE, derive_from="better"),
    f"nuwa, fine-tuned{BETTER}": Way("nuwa", TAUGHT, WHOLE, derive_from="better"),
    f"corp{BETTER}": Way("corp", TAUGHT, METHODS["corp"][2], derive_from="better"),
}


def length(rate: float, images: int) -> int:
    """Return the steps of BATCH images with as many passes over the task's images as Vulcan's rule gives ImageNet's."""
    published = 6250 * rate**2 + 1250 * rate  # of 256 of the 32,500 images of 25 ImageNet classes
    return max(round(published * 256 / 32_500 * images / BATCH), 1)


def _case(base: str, kind: str, name: str, task: int, rate: float, seed: int, steps: int, lr: float) -> Case:
    way = WAYS[name]
    return Case(
        kind, task, rate, seed, name, way.method, way.options, way.shape(rate), steps if way.trained else 0, BATCH, lr,
        way.schedule, base, steps if way.supernet else None,  # type: ignore[arg-type]  # a schedule by its name
        derive_from=way.derive_from, finetune_base=kind == FULL and name == "forge" and rate == PUBLISHED_RATE,
    )  # fmt: skip


def highest_rates(names: Iterable[str], base: Network, task: int, images: int) -> dict[str, float]:
    """The highest rate that each way which trains reaches on a base, for so many classes and training images."""
    network, whole = with_classes(base, range(task)), (base.geometry.macs(base.dims), base.geometry.params(base.dims))

    def reaches(name: str, rate: float) -> bool:
        way, budget = WAYS[name], make_budget(*whole, rate=rate)
        method = find_method(way.method)
        try:
            config = method.make_config(parted(way.options)[1])
            method.check(config, Target(network, budget, make_policy(way.shape(rate)), images))
        except BudgetError:
            return False
        return True

    within = {n: [r for r in WAYS[n].rates if reaches(n, r)] for n in names if WAYS[n].trained}
    return {name: rates[0] for name, rates in within.items() if rates}


def tuning(base: str, rates: Mapping[str, float], steps: int, task: int, rows: Sequence[Row] = ()) -> Iterator[Case]:
    """Runs by which the learning rate of each method is chosen, on one sub-task.

    Args:
        rates: at which they are, by method.
        steps: of the whole length.
        rows: of the runs that there are; beyond their best one another is tried, where it is the outermost.
    """
    for name, rate in rates.items():
        best = FURTHER.index(chosen_lr(rows, base, name))
        tried = {row["lr"] for row in _tried(rows, base, name)}
        neighbours = FURTHER[max(best - 1, 0) : best + 2] if tried.issuperset(LRS) else ()
        for lr in (*LRS, *(lr for lr in neighbours if lr not in LRS)):
            part = max(round(PARTS[-1] * steps), 1)
            yield _case(base, TUNING, name, task, rate, SEEDS[0], part, lr)


def _tried(rows: Iterable[Row], base: str, name: str) -> list[Row]:
    return [row for row in rows if (row["table"], row["data"], row["variant"]) == (TUNING, base, name)]


def chosen_lr(rows: Iterable[Row], base: str, name: str) -> float:
    """The learning rate of the run that is best on the validation part; of equals, or without runs, the middle one.

    By the loss there, where a method's training is watched by it: a tenth of a task's images tells top-1 to a point or
    two at best, which is more than learning rates differ by. That loss is to a teacher; where the base is trained
    first, each rate has another teacher, and the loss of that base to the labels decides.
    """
    way, runs = WAYS[name], _tried(rows, base, name)
    if not way.trained or not runs:
        return LRS[0]

    def validated(row: Row) -> float:
        validation, loss = row["validation"], row["facts"].get("loss_validation_trained")
        if start := row.get("start"):
            loss = start[f"loss_validation_{start['network']}"]
        if loss is not None:
            return -float(loss)
        return float(validation["trained"] if validation["pruned"] is None else validation["pruned"])

    return float(max(sorted(runs, key=lambda row: abs(math.log(row["lr"] / LRS[0]))), key=validated)["lr"])


def cases(
    base: str, names: Sequence[str], rates: Sequence[float], seeds: int, images: Mapping[int, int], rows: Sequence[Row]
) -> Iterator[Case]:
    """Every derivation but those of `tuning`, the most telling first.

    Args:
        images: number of training images of each sub-task, the one that has every seed first.
    """
    first, *others = images
    places = [(first, SEEDS[0]), *((first, seed) for seed in SEEDS[1:seeds]), *((size, SEEDS[0]) for size in others)]
    for rate in rates:
        for task, seed in places:
            for name in (name for name in names if rate in WAYS[name].rates):
                # A super-network is trained once, for all of its sizes.
                steps = length(PUBLISHED_RATE if WAYS[name].supernet else rate, images[task])
                yield _case(base, FULL, name, task, rate, seed, steps, chosen_lr(rows, base, name))
    for part in PARTS:
        for name in names:
            if WAYS[name].trained and PUBLISHED_RATE in WAYS[name].rates:
                steps = max(round(part * length(PUBLISHED_RATE, images[first])), 1)
                yield _case(base, CURVE, name, first, PUBLISHED_RATE, SEEDS[0], steps, chosen_lr(rows, base, name))


# -- tables ------------------------------------------------------------------------------------------------------------

TEXT = (
    "{ran} of {ways} methods and ways to train were run. All that train see as many images as Vulcan's own rule gives "
    "(up to {most} steps of {batch}). The learning rate is the best of {lrs}, or one beyond if the outermost is the "
    "best; it is chosen on the validation part in runs of a quarter of the length, by the loss, or by top-1 where a "
    "method reports no loss. As published: the choices of the paper, which keep every head and block; Vulcan has shape "
    "`paper` and learns from labels; NuWa trains masks for 10,000 steps of one image and nothing else. {better}The "
    "base is fine-tuned for as long as the models of the highest rate. Rivals are distilled as forge is, each with its "
    "own rule of warm-up. {top1}{seeds} of the first sub-task, one of the others. {images}Empty: out of reach, or not "
    "run."
)
BETTER_TEXT = (
    "Better base: the base is trained on the labels for as many steps, and that base is cut if its loss on the "
    "validation part is lower; it has then seen the images twice as often. "
)


def section(data: dict[str, Any] | None) -> str:
    """Format the section of README.md."""
    if data is None:
        return ""
    parts: list[str] = []
    rows = of_newest_base(data["rows"].values())
    for base in (*TASKS, *dict.fromkeys(row["data"] for row in rows if row["data"] not in TASKS)):
        if of_base := picked(rows, data=base):
            parts += _of_base(base, of_base)
    return "\n".join(parts)


def _of_base(base: str, rows: list[Row]) -> Iterator[str]:
    full, curve = picked(rows, table=FULL), picked(rows, table=CURVE)
    if not full:
        return
    sizes = TASKS.get(base) or tuple(dict.fromkeys(row["task"] for row in rows))  # learning rates are of the first one
    first, top1 = picked(full, task=sizes[0]), full[0]["base_top1"]
    text = TEXT.format(
        ran=len({row["variant"] for row in full}),
        ways=len(WAYS),
        most=max(row["images_seen"] for row in full) // BATCH,
        batch=BATCH,
        lrs=", ".join(f"{lr:g}" for lr in LRS),
        top1="" if top1 is None else f"Base top-1 {100 * top1:.1f} % on all classes; ",
        seeds=seeds_text(first or full),
        images=IMAGES.get(base, ""),
        better=BETTER_TEXT if any(row["variant"].endswith(BETTER) for row in full) else "",
    )
    yield f"## At published length, {TITLES.get(base, f'`{base}`')}\n\n" + "\n".join(textwrap.wrap(text, 118)) + "\n"
    yield wrapped(commits_text(row for row in rows if row["table"] in (FULL, CURVE)))
    yield baselines_table(_longest_rows(full))
    lines, rates = [], [rate for rate in RATES if picked(full, rate=rate)]
    for task in sizes:
        for name in WAYS:
            rows_of_way = picked(full, task=task, variant=name)
            cells = [percent(derived(picked(rows_of_way, rate=rate))) for rate in rates]
            if any(cells):
                lr = f"{rows_of_way[0]['lr']:g}" if WAYS[name].trained else ""
                if lr and not _tried(rows, base, name):  # what does not reach the rate at which others are tried
                    lr += ", not chosen"
                lines.append([f"{task} classes, {name}", lr, *cells])
    yield table(["top-1, %, by MACs gone", "learning rate", *(f"{rate:g}" for rate in rates)], lines)
    longest = [row for row in first if row["rate"] == PUBLISHED_RATE and row["seed"] == SEEDS[0]]
    lengths = sorted({row["steps"] for row in (*curve, *longest) if row["steps"]})
    lines = []
    for name in WAYS:
        rows_of_way = picked([*curve, *longest], variant=name)
        if WAYS[name].trained and rows_of_way:
            lines.append([name, *(percent(derived(picked(rows_of_way, steps=steps))) for steps in lengths)])
    if curve:
        yield f"Against images seen, {sizes[0]} classes, rate {PUBLISHED_RATE:g}, seed {SEEDS[0]}:\n"
        yield table(["top-1, %", *(f"{steps * BATCH} images" for steps in lengths)], lines)
        if picture := curve_text(rows):
            yield picture
    blind = dict.fromkeys(row["variant"] for row in full if not any(block["heads"] for block in row["blocks"]))
    if blind:
        text = f"No attention is left, so all images get one answer: {', '.join(blind)}."
        yield "\n".join(textwrap.wrap(text, 118)) + "\n"
    if gpu := [text for name in WAYS if (text := _on_gpu(name, picked([*curve, *full], variant=name)))]:
        text = f"Trained on a GPU: {'; '.join(gpu)}."
        yield "\n".join(textwrap.wrap(text, 118)) + "\n"


def _longest_rows(rows: Sequence[Row]) -> list[Row]:
    """Those whose baselines are told, of each sub-task: the base is fine-tuned as long as the model, longest at the
    highest rate; beside a super-network's slice that network stands in its place."""
    without_supernet = [row for row in rows if row["supernet_steps"] is None]
    highest = {
        task: max(row["rate"] for row in without_supernet if row["task"] == task)
        for task in {row["task"] for row in without_supernet}
    }
    return [row for row in without_supernet if row["rate"] == highest[row["task"]]]


def _on_gpu(name: str, rows: Iterable[Row]) -> str:
    """Which rows of one way were trained on a GPU: "name (lengths)"; nothing where none was."""
    steps = sorted({row["steps"] for row in rows if row.get("device")})
    return f"{name} ({', '.join(map(str, steps))} steps)" if steps else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser, tuple(TASKS))
    parser.add_argument("--method", nargs="+", choices=sorted(WAYS), default=list(WAYS), help="names in the table")
    parser.add_argument("--rates", type=float, nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds, of the first sub-task")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress = Console().progress
    results = record_file(options, "published", ("rendered", "demo"))  # whose rows have always been in one file
    tasks = options.tasks
    if options.data is None:
        options.tasks = TASKS.get(options.base)  # learning rates are of the first of these, whichever are asked for
    with refusals():
        selection = select(options, progress)
        images = selection.train_images()

    def do(cases: Iterable[Case]) -> None:
        due = (case for case in selection.of(cases) if case.task in (tasks or selection.sizes))
        complete(islice(due, options.rows), {selection.name: selection.place}, results, options.jobs, progress)

    first = selection.sizes[0]
    tuned: list[Row] = []
    due: list[Case] = []
    rates = highest_rates(options.method, selection.source.base, first, images[first])
    steps = length(PUBLISHED_RATE, images[first])
    while (more := list(tuning(selection.name, rates, steps, first, tuned))) != due:
        do(due := more)
        tuned = picked(of_newest_base(selection.rows(results).values()), task=first)
    do(cases(selection.name, options.method, options.rates, options.seeds, images, tuned))
    if options.data is not None:
        print(section({"rows": selection.rows(results)}))


if __name__ == "__main__":
    main()
