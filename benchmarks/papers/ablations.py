"""The ablations of the papers: each step of Vulcan and NuWa taken away; rho, learning rate, batch size; LoRA.

    python -m benchmarks.papers.ablations                   # on photographs, in records/ablations.json
    python -m benchmarks.papers.ablations --only vulcan --seeds 1
    python -m benchmarks.papers.ablations --base fine       # on 48 finer classes, in records/ablations_fine.json
    python -m benchmarks.papers.ablations --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --classes dogs

Vulcan's Table 3 (without the collapse of neurons, without the rank of attention), Figure 9 (rho), Figure 22 (learning
rate; batch size at equal steps, with the peak memory) and
Table 17 (LoRA: ranks are the same share of the base's width as the paper's 256 is of 768; tables show the learning rate
that is best on the validation part). NuWa without purification, with random neurons, without least squares, at the
paper's rate and a higher one. Each is as published except for the length: 200 steps, where Vulcan's rule gives some
thousands (published.py). Accuracy is on `val/`, which no derivation sees.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from benchmarks.derivations import BATCH, LR, SEEDS, SIZES, STEPS, Case, Options, complete, shortened
from benchmarks.markdown import Row, baselines_table, derived, of_newest_base, percent, picked, plain, points, table
from benchmarks.papers import alike
from benchmarks.papers.published import NUWA, VULCAN
from benchmarks.sources import add_source, record_file, refusals, select

RATES = (0.6, 0.8)
# NuWa's budget is met by attention alone at the last: FFNs are two thirds of a block, so that no more can go.
NUWA_RATES = (*RATES, 0.3)
VULCAN_PARTS: dict[str, Options] = {
    "vulcan": {},
    "without the collapse of neurons": {"collapse": False},
    "without the rank of attention": {"rank": False},
}
NUWA_PARTS: dict[str, Options] = {
    "nuwa": {},
    "without purification": {"purification": "none"},
    "random neurons": {"neurons": "random"},
    "without least squares": {"refit": False},
    "attention alone": {"cut_ffn": False},
}
RHOS = (0.1, 1.0, 10.0)
LRS, BATCHES = (1e-4, LR, 5e-4, 1e-3), (6, 12, 24, 48)
# The divisor of the base's width that is the rank; 0: whole weights. The paper's 256 is a third of DeiT-Base's 768.
LORA = {
    "whole weights": 0,
    "LoRA, rank a third of the width": 3,
    "LoRA, rank a sixth": 6,
    "LoRA, rank a twelfth": 12,
}
LORA_LRS = (1e-4, 3e-4, 1e-3, 3e-3)  # whole weights take the first three, updates the last three
WIDTH = 128  # of the first base
PARTS = ("vulcan", "nuwa", "rho", "learning rate", "batch size", "lora")
PEAK = "training_memory_peak_mib"  # of a row
ROUTE = "constraint_by_step"  # of a row: step, loss_collapse, loss_rank at each evaluation
LORA_TEXT = "The two losses of the constraints at the evaluations of the training, at the same learning rates:"
MEMORY = (
    "Memory is the peak during the training steps: of the whole process with Python, torch and the images, or on a GPU "
    "what torch allocated. Empty: not recorded."
)
TITLES = {
    "vulcan": "Vulcan's steps, taken away (its Table 3)",
    "nuwa": "NuWa's steps, taken away",
    "rho": "Vulcan's rho (its Figure 9)",
    "learning rate": "Vulcan's learning rate (its Figure 22)",
    "batch size": f"Vulcan's batch size, {STEPS} steps of each (its Figure 22)",
    "lora": "Vulcan with LoRA (its Table 17)",
}
BASES = ("fashion", "fine", "rendered", "demo")  # photographs first
RENDERED = "Rendered images are no ImageNet, and "
# By base: what the title says of it, its introduction, and what it is not. A user's have their own name.
WHERE = {
    "fashion": ("photographs", "the base of Fashion-MNIST", "Ten classes of clothes are no ImageNet, and "),
    "fine": ("48 finer classes", "the harder base (`--base fine`)", RENDERED),
    "rendered": ("rendered images", "the rendered base (`--base rendered`)", RENDERED),
    "demo": ("the demo's base", "the demo's base (`--base demo`)", RENDERED),
}
INTRODUCTION = (
    "On {base}{top1} (`ablations.py`), shape `paper`. Vulcan as published (anchors of each batch; multipliers by "
    "gradient ascent) for {steps} steps of {batch} images; NuWa as published (10,000 steps "
    "of one image for the masks). Mean and range over the seeds, and points relative to the first row of each table. "
    "{but}{steps} steps are a small part of what Vulcan's own rule gives."
)


def _variants(part: str, width: int = WIDTH) -> Iterator[tuple[str, Case]]:
    """Yield each variant by name, without task, rate and seed, for a base of this embedding width."""
    trained = Case("ablations", 0, 0, 0, "", "vulcan", dict(VULCAN), "paper", STEPS, schedule="constant")
    if part == "vulcan":
        for name, options in VULCAN_PARTS.items():
            yield name, replace(trained, options={**VULCAN, **options})
    elif part == "nuwa":
        for name, options in NUWA_PARTS.items():
            yield name, replace(trained, method="nuwa", options={**NUWA, **options}, steps=0, schedule="cosine")
    elif part == "rho":
        for rho in RHOS:
            yield f"rho {rho:g}, ascent", replace(trained, options={**VULCAN, "rho": rho})
    elif part == "learning rate":
        for lr in LRS:
            yield f"learning rate {lr:g}", replace(trained, lr=lr)
    elif part == "batch size":
        for size in BATCHES:
            yield f"{size} images", replace(trained, batch_size=size)
    else:
        for name, divisor in LORA.items():
            rank = round(width / divisor) if divisor else 0
            for lr in LORA_LRS[1:] if divisor else LORA_LRS[:-1]:
                yield name, replace(trained, options={**VULCAN, "lora_rank": rank}, lr=lr)


def cases(sizes: Sequence[int] = SIZES["rendered"], width: int = WIDTH) -> Iterator[tuple[str, Case]]:
    """Every derivation with its part, the most telling first.

    Args:
        sizes: of the sub-tasks.
        width: of the base's embedding.
    """
    for seed in SEEDS:
        for part in PARTS:
            for rate in NUWA_RATES if part == "nuwa" else RATES:
                for task in sizes:
                    for name, case in _variants(part, width):
                        if case.options.get("cut_ffn", True) or rate == NUWA_RATES[-1]:
                            yield part, replace(case, task=task, rate=rate, seed=seed, variant=name)


def _part_table(rows: list[Row], part: str) -> str:
    names = [name for name, _ in _variants(part)]
    rates = [rate for rate in NUWA_RATES if picked(rows, rate=rate)]
    memory = any(PEAK in row for row in rows)  # older rows do not tell
    lines = []
    for name in names:
        cells = [name]
        for rate in rates:
            variant_rows = picked(rows, rate=rate, variant=name)
            first = {(row["task"], row["seed"]): row for row in picked(rows, rate=rate, variant=names[0])}
            pairs = [(row, first[at]) for row in variant_rows if (at := (row["task"], row["seed"])) in first]
            apart = [a["accuracy"]["derived"] - b["accuracy"]["derived"] for a, b in pairs]
            cells += [percent(derived(variant_rows)), "" if name == names[0] else points(apart)]
        if any(cells[1:]):
            peaks = [row[PEAK] for row in picked(rows, variant=name) if PEAK in row]
            lines.append([*cells, plain(peaks)] if memory else cells)
    titles = [title for rate in rates for title in (f"rate {rate:g}", "points")]
    return table(["", *titles, *(["memory, MiB"] if memory else [])], lines)


def _best(rows: list[Row]) -> list[Row]:
    """Select, for each variant, task, rate and seed, the row whose learning rate is best on the validation part."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in ("variant", "task", "rate", "seed"))
        if key not in best or row["validation"]["pruned"] > best[key]["validation"]["pruned"]:
            best[key] = row
    return list(best.values())


def _lora_tables(rows: list[Row]) -> str:
    """Format accuracy, memory and constraints at each variant's best learning rate."""
    best = _best(rows)
    lines, losses = [], []
    for name in LORA:
        for rate in RATES:
            for row in picked(best, variant=name, rate=rate):
                (first, *_) = [
                    *picked(best, variant="whole weights", rate=rate, task=row["task"], seed=row["seed"]),
                    {},
                ]
                apart = [row["accuracy"]["derived"] - first["accuracy"]["derived"]] if first else []
                rank = row["options"]["lora_rank"]
                named = f"{row['task']} classes, {name}" + (f" ({rank})" if rank else "")
                lines.append([
                    named, f"{rate:g}", f"{row['lr']:g}", percent([row["validation"]["pruned"]]),
                    percent([row["accuracy"]["derived"]]), points(apart) if rank else "",
                    plain([row[PEAK]] if PEAK in row else []),
                ])  # fmt: skip
                if text := row.get(ROUTE):
                    losses += [
                        [f"{named}, rate {rate:g}", of, *(f"{point[place]:.3g}" for point in text)]
                        for place, of in ((1, "collapse"), (2, "rank"))
                    ]
    head = ["", "rate", "learning rate", "validation", "top-1", "points", "memory, MiB"]
    steps = next(([f"step {point[0]}" for point in row[ROUTE]] for row in best if row.get(ROUTE)), [])
    text = table(head, lines)
    if losses:
        text += f"\n{LORA_TEXT}\n\n" + table(["", "loss", *steps], losses)
    return text


def section(data: dict[str, Any] | None) -> str:
    """Format the section of README.md."""
    if data is None or not data["rows"]:
        return ""
    rows = of_newest_base(data["rows"].values())
    name, top1, steps = rows[0]["data"], rows[0]["base_top1"], max(row["steps"] for row in rows) or STEPS
    title_of_base, base, but = WHERE.get(name, (f"`{name}`", f"images of `{name}`", ""))
    text = INTRODUCTION.format(
        base=base, top1="" if top1 is None else f", top-1 {100 * top1:.1f} % on all of its classes",
        steps=steps, batch=BATCH, but=but,
    )  # fmt: skip
    title = f"## The papers' ablations, on {title_of_base}\n"
    if any(PEAK in row for row in rows):
        text += f" {MEMORY}"
    parts = [title, "\n".join(textwrap.wrap(text, 118)) + "\n", baselines_table(rows)]
    for part in PARTS:
        of = [row for row in rows if _is_of(row, part)]
        if of:
            shown = _lora_tables(of) if part == "lora" else _part_table(of, part)
            parts.append(f"### {TITLES[part]}\n\n{shown}")
            if part == "lora":
                continue
            parts[-1] += alike.text(of, [name for name, _ in _variants(part)])
    return "\n".join(parts)


def _is_of(row: Row, part: str) -> bool:
    return row["variant"] in [name for name, _ in _variants(part)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser, BASES)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--rates", type=float, nargs="+", choices=NUWA_RATES, default=list(NUWA_RATES))
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--steps", type=int, help="of every case that trains: for a trial")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, results = Console().progress, record_file(options, "ablations", BASES[:1])
    with refusals():
        selection = select(options, progress)
        width = selection.source.base.spec.embed
        assert width is not None, "a base that was opened knows it"
    due = [
        shortened(case, options.steps) if options.steps else case
        for part, case in cases(selection.sizes, width)
        if options.only in (None, part) and case.rate in options.rates and case.seed in SEEDS[: options.seeds]
    ]
    complete(
        islice(selection.of(due), options.rows), {selection.name: selection.place}, results, options.jobs, progress
    )
    if options.data is not None:
        print(section({"rows": selection.rows(results)}))


if __name__ == "__main__":
    main()
