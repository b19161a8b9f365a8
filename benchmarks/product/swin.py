"""A small Swin on the rendered images: every method at equal MACs, with nothing trained and after a short training.

    python -m benchmarks.product.swin --base-only    # train the base: about 15 minutes of one processor
    python -m benchmarks.product.swin                # every row that records/swin.json does not have
    python -m benchmarks.product.swin --only cut --tasks 6 --seeds 1

The base has two stages of 144 and 36 tokens, with shifted windows of 4 x 4 tokens. It learns from the images from which
the ViT of the other benchmarks learns, and derivations see the images of its user.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file

from benchmarks import images as rendering
from benchmarks.bases import BASES, CACHE, RENDERED_PER_CLASS, Recipe, _train, predict, read_folder, top1
from benchmarks.derivations import SEEDS, SIZES, STEPS, Case, Options, Place, complete
from benchmarks.markdown import RECORDS, Row, commits_text, percent, picked, rows_of, screen, table
from edgevit.cli.console import Console
from edgevit.progress import Progress

NAME = "swin_tiny_patch4_window7_224"
ARGS = {"img_size": 48, "patch_size": 4, "embed_dim": 64, "depths": [2, 4], "num_heads": [2, 4], "window_size": 4}
RECIPE = Recipe(epochs=4, batch_size=64, lr=1e-3, bf16=True)
RATES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95)
NARROW = 0.8  # from this rate on shapes are free: those of the papers do not reach it
TAUGHT: Options = {"teacher": "restricted", "token_weight": 1.0}
METHODS: dict[str, tuple[str, Options]] = {
    "forge": ("forge", {}),
    "vulcan": ("vulcan", {}),
    "nuwa": ("nuwa", {}),
    "super-network": ("skd", {}),
    "torch-pruning": ("torch_pruning", {}),
    "magnitude": ("magnitude", {}),
    "random": ("random", {}),
}
CLOSED = ("forge", "nuwa", "super-network", "torch-pruning", "magnitude", "random")  # vulcan trains what it will cut
PARTS = {"cut": "nothing trained", "distilled": f"distilled alike, {STEPS} steps"}


def train_base(folder: Path, progress: Progress) -> None:
    """Train the base, and write base.safetensors and base.json to `folder`."""
    learnt = rendering.ensure(CACHE, train_per_class=RENDERED_PER_CLASS, val_per_class=1, seed=1, progress=progress)
    images, test = read_folder(learnt), read_folder(rendering.ensure(CACHE, progress=progress))
    torch.manual_seed(RECIPE.seed)
    model = timm.create_model(NAME, num_classes=len(images.classes), drop_path_rate=0.0, **ARGS)
    steps = RECIPE.epochs * math.ceil(len(images.train) / RECIPE.batch_size)
    with progress.stage("base", steps, "step") as stage:
        _train(model, images, RECIPE, stage, steps)
    accuracy = top1(predict(model, test.val), test.val_labels)
    card = {"timm_name": NAME, "model_args": ARGS, "recipe": asdict(RECIPE), "val_top1": accuracy}
    with rendering.complete_folder(folder) as partial:
        save_file(model.state_dict(), partial / "base.safetensors")
        (partial / "base.json").write_text(json.dumps(card, indent=2) + "\n")


def place(progress: Progress) -> Place:
    """Return the user's images and the base, which is trained if it is not there."""
    folder = BASES / "swin"
    if not folder.is_dir():
        train_base(folder, progress)
    card, file = json.loads((folder / "base.json").read_text()), folder / "base.safetensors"
    data = rendering.ensure(CACHE, progress=progress)
    start: Options = {
        "base": NAME,
        "checkpoint": str(file),
        "model_args": ARGS,
        "preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"},
    }
    classes = tuple(sorted(path.name for path in (data / "train").iterdir()))
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return Place(data, start, classes, sha256, card["val_top1"], CACHE)


def cases() -> Iterator[tuple[str, Case]]:
    """Every derivation with its part, the most telling first."""
    for seed in SEEDS:
        for part in PARTS:
            for task in SIZES["rendered"]:
                for rate in RATES:
                    for name in CLOSED if part == "cut" else METHODS:
                        method, options = METHODS[name]
                        yield part, Case(
                            "swin", task, rate, seed, name, method, options if part == "cut" else {**options, **TAUGHT},
                            "paper" if rate < NARROW else "free", 0 if part == "cut" else STEPS,
                            data="swin", supernet_steps=2 * STEPS if method == "skd" else None,
                        )  # fmt: skip


def section() -> str:
    """Format one question of RESULTS.md."""
    rows = rows_of("swin")
    if not rows:
        return ""
    lines = []
    for steps, kind in ((0, "nothing trained"), (STEPS, f"distilled, {STEPS} steps")):
        for name in METHODS:
            of_method = picked(rows, variant=name, steps=steps)
            if of_method:
                cells = [_accuracies(picked(of_method, rate=rate)) for rate in RATES]
                lines.append([f"{name}, {kind}", *cells, str(len(of_method))])
    tasks = sorted({row["task"] for row in rows})
    bases = [f"{n} classes {percent([picked(rows, task=n)[0]['accuracy']['base_restricted']])} %" for n in tasks]
    return screen(
        "Does a Swin lose more?",
        f"A small Swin on the 24 rendered classes (two stages, shifted windows of 4 x 4 tokens; "
        f"{100 * rows[0]['base_top1']:.1f} % top-1 on all classes: it was trained for {RECIPE.epochs} passes), by MACs "
        "gone; from 0.8 on forge narrows the stages, too. Top-1 in % on sub-tasks, mean and range where there are "
        "several (54 rows are three sub-tasks with three seeds); "
        f"the base restricted to a sub-task: {', '.join(bases)}.",
        [table(["", *(f"{rate:g}" for rate in RATES), "rows"], lines)],
        "python -m benchmarks.product.swin",
        "cells without a number, which were not run; a Swin on photographs. " + commits_text(rows),
    )


def _accuracies(rows: list[Row]) -> str:
    return percent([row["accuracy"]["derived"] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-only", action="store_true", help="train the base and do no derivation")
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--rates", type=float, nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--tasks", type=int, nargs="+", choices=SIZES["rendered"], default=list(SIZES["rendered"]))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    options = parser.parse_args()
    progress: Any = Console().progress
    where = place(progress)
    if options.base_only:
        print(f"{BASES / 'swin'}: {100 * (where.base_top1 or 0):.2f} % of the test images")
        return
    due = [
        case
        for part, case in cases()
        if options.only in (None, part)
        and case.variant in options.method
        and case.task in options.tasks
        and case.rate in options.rates
        and case.seed in SEEDS[: options.seeds]
    ]
    complete(due, {"swin": where}, RECORDS / "swin.json", options.jobs, progress)


if __name__ == "__main__":
    main()
