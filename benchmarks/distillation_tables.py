"""The sections of RESULTS.md about distillation: from results/distillation.json and distillation_fashion.json."""

from __future__ import annotations

import statistics
import textwrap
from typing import Any

import older
from tables import grouped, load, percent, points, table

GENTLE = "gentle"  # the recipe that is the method's own
STATES = """## Distillation of closed-form weights

Every recipe trains copies of one closed form of forge (`fused`), {steps} steps of {batch_size} images, learning rate at
most {lr:g}, and is looked at {looks} times. Top-1 on {images} of each class, rendered for this table alone; points
against the closed form, on the same images; loss against the restricted base, likewise. `before`: warm-up, clipping and
the rate's limit off, as in all of `accuracy.json`. `gentle`: the defaults now. Mean and range over seeds {seeds}.
"""


def states() -> str:
    """The section about the state that is kept, of the rows of the two recipes that all tasks and rates have."""
    data = load("distillation")
    if data is None:
        return ""
    rows = [row for row in data["rows"] if row["recipe"] in ("before", GENTLE) and "images" not in row]
    rows = [row for row in rows if row["base_sha256"] == rows[-1]["base_sha256"]]
    how = rows[0]["training"]
    told = STATES.format(
        **{name: how[name] for name in ("steps", "batch_size", "lr")}, looks=how["evaluations"],
        images=data["fresh_per_class"], seeds=", ".join(str(s) for s in sorted({r["seed"] for r in rows})),
    )  # fmt: skip
    lines = []
    for (task, rate, recipe), group in grouped(rows, "task", "rate", "recipe").items():
        for name, chosen in CHOSEN.items():
            kept = [chosen(row["looks"]) for row in group]
            starts = [row["looks"][0]["fresh"] for row in group]
            lines.append(
                [
                    f"{task} classes, {rate}, {recipe}, {name}",
                    ", ".join(str(look["step"]) for look in kept),
                    percent([start["top1"] for start in starts]),
                    percent([look["fresh"]["top1"] for look in kept]),
                    points([k["fresh"]["top1"] - s["top1"] for k, s in zip(kept, starts, strict=True)]),
                    f"{statistics.mean(s['loss'] for s in starts):.4f}",
                    f"{statistics.mean(max(k['fresh']['loss'] for k in row['looks'][1:]) for row in group):.4f}",
                    f"{statistics.mean(k['fresh']['loss'] for k in kept):.4f}",
                ]
            )
    head = ["kept: the state of", "step", "closed form", "kept", "points", "loss, closed form", "worst look", "kept"]
    return "\n".join(part for part in (told, older.rows_told(rows), table(head, lines)) if part)


def best_accuracy(looks: list[dict[str, Any]]) -> dict[str, Any]:
    return max(looks, key=lambda look: look["validation"]["top1"])  # of equal ones the earlier


def best_loss(looks: list[dict[str, Any]]) -> dict[str, Any]:
    return min(looks, key=lambda look: look["validation"]["loss"])


def last(looks: list[dict[str, Any]]) -> dict[str, Any]:
    return looks[-1]


# By what a state is chosen, on the validation part.
CHOSEN = {"the highest accuracy": best_accuracy, "the lowest loss": best_loss, "the last step": last}


RECIPES_TITLE = "## Recipes of distillation, each against the method's own, on {data}"
RECIPES = (
    "Every recipe trains copies of one closed form of forge (`fused`), {steps} steps of {batch_size} images, learning "
    "rate at most {lr:g}; {looks} times its state is judged, and that with the lowest loss on the validation part is "
    "kept. Top-1 in % and loss against the restricted base on images that nothing was trained or chosen on, {judged}; "
    "points against `gentle`, which has warm-up and a rate that the loss limits. Mean and range over seeds {seeds}."
)
UNLABELLED = """### Recipes on {data}, with fewer labelled images

The same with {images} training images in all, and once or four times as many beside them that only the teacher judges.
"""
DATA = {"": "rendered images", "_fine": "the harder base", "_fashion": "photographs"}


def recipes(base: str) -> str:
    """The section that compares each recipe with the method's own, by what it keeps; nothing without such rows."""
    data = load(f"distillation{base}")
    rows = [row for row in (data or {"rows": []})["rows"] if "kept" in row]
    if not rows:
        return ""
    rows = [row for row in rows if row["base_sha256"] == rows[-1]["base_sha256"]]
    how, few = rows[-1]["training"], [row for row in rows if "images" in row]
    judged = {row["task"]: row["fresh_images"] for row in rows}
    told = RECIPES.format(
        **{name: how[name] for name in ("steps", "batch_size", "lr")}, looks=how["evaluations"],
        judged=", ".join(f"{count} of {task} classes" for task, count in judged.items()),
        seeds=", ".join(str(seed) for seed in sorted({row["seed"] for row in rows})),
    )  # fmt: skip
    whole = [row for row in rows if "images" not in row]
    lined = "\n".join(textwrap.wrap(told, 118))
    parts = [f"{RECIPES_TITLE.format(data=DATA[base])}\n\n{lined}\n", against_gentle(whole)]
    if few:
        counts = ", ".join(str(count) for count in sorted({row["images"] for row in few}))
        parts += [UNLABELLED.format(images=counts, data=DATA[base]), against_gentle(few)]
    return "\n".join(part for part in parts if part)


def against_gentle(rows: list[dict[str, Any]]) -> str:
    """A line per task, rate and recipe; differences are of rows with the same closed form."""
    own = {(row["task"], row["rate"], row["seed"]): row for row in rows if row["recipe"] == GENTLE}
    lines = []
    for (task, rate, recipe), group in grouped(rows, "task", "rate", "recipe").items():
        group = [row for row in group if (task, rate, row["seed"]) in own]
        if not group:
            continue
        pairs = [(row["kept"], own[task, rate, row["seed"]]["kept"]) for row in group]
        lines.append(
            [
                f"{task} classes, {rate}, {recipe}",
                percent([row["looks"][0]["fresh"]["top1"] for row in group]),
                percent([kept["top1"] for kept, _ in pairs]),
                "" if recipe == GENTLE else points([kept["top1"] - beside["top1"] for kept, beside in pairs]),
                f"{statistics.mean(kept['loss'] for kept, _ in pairs):.4f}",
                str(len(group)),
            ]
        )
    return table(["", "closed form", "trained", "points to gentle", "loss", "seeds"], lines) if lines else ""
