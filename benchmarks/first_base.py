"""The tables of results/accuracy_first_base.json: what settled the defaults of Vulcan and NuWa.

That base learnt from the 400 images per class that its users have, and too few of them: benchmarks/base.py now trains
another one.
"""

from __future__ import annotations

import statistics

from accuracy_tables import BASELINES, attention_table
from tables import Row, derived, grouped, load, percent, picked, table

ACCURACY = """## On the first base ({base_top1:.1f} %, undertrained)

Top-1 in per cent on `val/`. {steps} steps of {batch_size} images, learning rate {lr:g}, {schedule}, shape `fused`. Mean
and range over seeds {seeds}; `cut only` is Vulcan's plan and surgery with no training before it. Kept, as
the code of that time made it, because it settled the defaults of Vulcan and NuWa; it cannot be made again.
"""


def main_table(rows: list[Row], untrained: list[Row]) -> str:
    """Three baselines, Vulcan at each rate, and Vulcan's cut with no training before it, per sub-task."""
    by_task = grouped(rows, "task")
    rates = sorted({row["rate"] for row in rows})
    lines = []
    for (task,), group in sorted(by_task.items()):
        cells = [f"{task} classes, {group[0]['test_images']} test images"]
        for key in BASELINES:
            taken = [a for row in group if (a := row["accuracy"][key]) is not None]
            cells.append(percent(sorted(set(taken))) if taken else "")
        cells += [percent(derived(r for r in group if r["rate"] == rate)) for rate in rates]
        cut = [[r for r in untrained if (r["task"], r["rate"]) == (task, rate)] for rate in rates]
        lines.append(cells + [percent(derived(rows)) if rows else "" for rows in cut])
    head = [*(f"vulcan {r}" for r in rates), *(f"cut only {r}" for r in rates)]
    return table(["sub-task", *BASELINES.values(), *head], lines)


def ablation_table(rows: list[Row]) -> str:
    """Each variant beside the default of the same seed, so that the seed's own luck cancels."""
    default = {row["seed"]: row["accuracy"]["derived"] for row in rows if row["variant"] == "default"}
    lines = []
    for (variant,), group in grouped(rows, "variant").items():
        differences = [r["accuracy"]["derived"] - default[r["seed"]] for r in group if r["seed"] in default]
        validation = [r["validation"]["pruned"] for r in group]
        gap = [r["validation"]["trained"] - r["validation"]["pruned"] for r in group]
        shown = ", ".join(f"{100 * d:+.1f}" for d in differences) if variant != "default" else ""
        gap_points = f"{100 * statistics.mean(gap):+.1f}"
        lines.append([variant, percent(derived(group)), shown, percent(validation), gap_points])
    head = ["variant", "test top-1", "against the default, per seed", "validation top-1", "trained minus pruned"]
    return table(head, lines)


def schedule_table(constant: list[Row], cosine: list[Row]) -> str:
    """The published constant learning rate beside a cosine of it: same tasks, rates and seed."""
    lines = []
    for row in constant:
        same = [r for r in cosine if all(r[k] == row[k] for k in ("task", "rate", "seed"))]
        cells = [f"{row['task']} classes, rate {row['rate']}"]
        for rows in ([row], same):
            cells += [
                percent([r["validation"]["pruned"] for r in rows]) if rows else "",
                percent(derived(rows)) if rows else "",
            ]
        lines.append(cells)
    head = ["", "constant, validation", "constant, test", "cosine, validation", "cosine, test"]
    return table([f"seed {constant[0]['seed']}", *head[1:]], lines)


def learning_rate_table(rows: list[Row]) -> str:
    lines = [[r["variant"], percent([r["validation"]["pruned"]]), percent(derived([r]))] for r in rows]
    return table(["", "validation top-1", "test top-1"], lines)


def nuwa_table(rows: list[Row]) -> str:
    """Every variant at every rate on every sub-task; one seed."""
    places = sorted({(row["task"], row["rate"]) for row in rows})
    lines = [
        [variant, *(percent(derived(picked(group, task=task, rate=rate))) for task, rate in places)]
        for (variant,), group in grouped(rows, "variant").items()
    ]
    return table([f"seed {rows[0]['seed']}", *(f"{task} classes, {rate}" for task, rate in places)], lines)


def section() -> str:
    data = load("accuracy_first_base")
    if data is None:
        return ""
    tables = {name: rows for (name,), rows in grouped(data["rows"].values(), "table").items()}
    first, seeds = tables["main"][0], sorted({r["seed"] for r in tables["main"]})
    row = tables["ablation"][0]
    told = {**first, "base_top1": 100 * data["base"]["val_top1"], "seeds": ", ".join(map(str, seeds))}
    parts = [
        ACCURACY.format(**told),
        main_table(tables["main"], tables["untrained"]),
        f"### Each choice on its own: {row['task']} classes, rate {row['rate']}, {row['schedule']} learning rate\n",
        ablation_table(tables["ablation"]),
        f"One image of the {row['test_images']} is {100 / row['test_images']:.2f} points; the standard error of "
        f"one figure near 85 % is {100 * (0.85 * 0.15 / row['test_images']) ** 0.5:.1f} points.\n",
        "### Learning rate (chosen on validation)\n",
        learning_rate_table(tables["learning-rate"]),
        "### Learning-rate schedule (chosen on validation)\n",
        schedule_table(tables["schedule"], tables["main"]),
        "### NuWa and each of its choices\n",
        "Nothing trained but where it says so; the first row is the default.\n",
        nuwa_table(tables["nuwa"]),
    ]
    attention = load("attention_first_base")
    return "\n".join([*parts, attention_table(attention)] if attention else parts)
