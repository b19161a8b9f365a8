"""Make RESULTS.md from results/*.json: every number in it comes from a record.

python benchmarks/results.py
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TITLES = {
    "base_full_head": "base, full head",
    "base_restricted": "base, restricted",
    "base_finetuned": "base, fine-tuned",
}
HEAD = """# Results

Made by `python benchmarks/results.py` from `benchmarks/results/*.json`; `make benchmark` measures again. Machines were
shared: ratios measured side by side mean more than seconds.
"""
ACCURACY = """## Accuracy on the rendered data set

ViT 192 x 6 (head width 64), 24 rendered classes of 48 x 48 pixels, trained from scratch by `base.py`. Top-1 in per cent
on `val/`, which no derivation sees; choices are made on a tenth of the training images, held out. {steps} steps of
{batch_size} images, learning rate {lr:g}, {schedule}, shape `fused`. Mean and range over seeds {seeds}; `cut only` is
Vulcan's plan and surgery with no training before it. This is no ImageNet result.
"""
CLOSED_FORM = """## Cost of NuWa's closed form

{machine}, {threads} thread(s), torch {torch}; load average {load_average:.1f} at the start. Random weights and
features.
"""
SHAPES = """## Shapes: latency beside MACs

Random weights; each derived model and its dense base are measured in turns in one process. `fused` and `paper` have
equal MACs, `padded` is `paper` with the smaller of QK and VO zero-padded. Latency ratio to dense, with half the
distance between its quartiles. Fused attention blocks: TensorRT-RTX for SM 8.6, a proxy for Orin and not Orin. A CPU
does not fuse attention: what the shapes cost on a board is not in this table.
"""


def load(name: str) -> dict[str, Any] | None:
    file = HERE / "results" / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def percent(values: Sequence[float]) -> str:
    """Mean, and the spread between smallest and largest where there are several."""
    mean = f"{100 * statistics.mean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def grouped(rows: Iterable[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[k] for k in keys)].append(row)
    return groups


def derived(rows: Iterable[dict[str, Any]]) -> list[float]:
    return [row["accuracy"]["derived"] for row in rows]


def main_table(rows: list[dict[str, Any]], untrained: list[dict[str, Any]]) -> str:
    """Three baselines, Vulcan at each rate, and Vulcan's cut with no training before it, per sub-task."""
    by_task = grouped(rows, "task")
    rates = sorted({row["rate"] for row in rows})
    lines = []
    for (task,), group in sorted(by_task.items()):
        cells = [f"{task} classes, {group[0]['test_images']} test images"]
        for key in TITLES:
            taken = [a for row in group if (a := row["accuracy"][key]) is not None]
            cells.append(percent(sorted(set(taken))) if taken else "")
        cells += [percent(derived(r for r in group if r["rate"] == rate)) for rate in rates]
        cut = [[r for r in untrained if (r["task"], r["rate"]) == (task, rate)] for rate in rates]
        lines.append(cells + [percent(derived(rows)) if rows else "" for rows in cut])
    head = [*(f"vulcan {r}" for r in rates), *(f"cut only {r}" for r in rates)]
    return table(["sub-task", *TITLES.values(), *head], lines)


def ablation_table(rows: list[dict[str, Any]]) -> str:
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


def schedule_table(constant: list[dict[str, Any]], cosine: list[dict[str, Any]]) -> str:
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


def accuracy() -> str:
    data = load("accuracy")
    if data is None:
        return ""
    rows = list(data["rows"].values())
    names = ("main", "untrained", "schedule", "ablation", "learning-rate")
    tables = {name: [r for r in rows if r["table"] == name] for name in names}
    first, seeds = tables["main"][0], sorted({r["seed"] for r in tables["main"]})
    parts = [
        ACCURACY.format(**{**first, "seeds": ", ".join(map(str, seeds))}),
        main_table(tables["main"], tables["untrained"]),
    ]
    if tables["ablation"]:
        row = tables["ablation"][0]
        parts += [
            f"### Each choice on its own: {row['task']} classes, rate {row['rate']}, {row['schedule']} learning rate\n",
            ablation_table(tables["ablation"]),
            f"One image of the {row['test_images']} is {100 / row['test_images']:.2f} points; the standard error of "
            f"one figure near 85 % is {100 * (0.85 * 0.15 / row['test_images']) ** 0.5:.1f} points.\n",
        ]
    if tables["learning-rate"]:
        lines = [
            [r["variant"], percent([r["validation"]["pruned"]]), percent(derived([r]))] for r in tables["learning-rate"]
        ]
        parts += ["### Learning rate (chosen on validation)\n", table(["", "validation top-1", "test top-1"], lines)]
    if tables["schedule"]:
        parts += [
            "### Learning-rate schedule (chosen on validation)\n",
            schedule_table(tables["schedule"], tables["main"]),
        ]
    return "\n".join(parts)


def cost() -> str:
    data = load("cost")
    if data is None:
        return ""
    e = data["environment"]
    parts = [
        "## Cost of Vulcan's parts\n",
        f"Random weights, rate {data['rate']}, fp32, {e['machine']}, {e['threads']} threads, torch {e['torch']}; load "
        f"average {e['load_average']:.1f} at the start. Median of several, smallest and largest in brackets.\n",
    ]
    models = data["models"]
    names = {title for m in models for title in m["rows"]}

    def kind(title: str) -> str:
        return "plain SVDs of d x d" if "plain" in title else title

    order = [kind(t) for t in models[0]["rows"]]
    assert {kind(n) for n in names} == set(order)
    lines = []
    for title in order:
        cells = [title if "plain" not in title else "the same by plain SVDs of d x d"]
        for m in models:
            r = next(v for k, v in m["rows"].items() if kind(k) == title)
            cells.append(f"{r['median_s']:.3g} s ({r['min_s']:.3g} to {r['max_s']:.3g})")
        lines.append(cells)
    parts.append(table(["", *(m["model"] for m in models)], lines))
    lines = [
        [
            m["model"],
            f"{100 * m['ratios']['both regularisers of a training step']:.2f} %",
            f"{m['ratios']['plain SVDs over surgery']:.0f} x",
            f"{m['ratios']['plain SVDs over effective ranks']:.0f} x",
            f"{m['memory']['of_the_weights']:.2f} x",
            f"{m['export']['export_s']:.0f} s, {m['export']['export_peak_bytes'] / 1e9:.2f} GB",
        ]
        for m in models
    ]
    head = [
        "",
        "both regularisers of a training step",
        "surgery faster than plain SVDs",
        "effective ranks faster",
        "peak memory of both regularisers, of the weights",
        "export of the dense model, all checks but accuracy",
    ]
    parts.append(table(head, lines))
    return "\n".join(parts)


def closed_form() -> str:
    data = load("closed_form")
    if data is None:
        return ""
    layer, whole = data["least_squares"], data["whole_model"]
    lines = [
        [how, f"{statistics.median(layer[how]['seconds']):.2f} s", f"{layer[how]['peak_bytes'] / 1e6:.0f} MB"]
        for how in ("pseudo-inverse", "moments")
    ]
    runs = [
        [
            f"rate {r['rate']}",
            *(f"{r['seconds'].get(stage, 0):.1f} s" for stage in ("statistics", "closed_form")),
            f"{r['total_s']:.1f} s",
            ", ".join(r["reused"]) or "nothing",
        ]
        for r in whole["runs"]
    ]
    return "\n".join(
        [
            CLOSED_FORM.format(**data["environment"]),
            table(["one FFN of DeiT-Base, 25216 tokens, 3072 to 1229 neurons", "time", "peak memory"], lines),
            f"The moments are those of all 3072 neurons and serve every width: {layer['faster']:.1f} x faster, "
            f"{layer['memory_ratio']:.2f} of the memory, solutions {layer['difference']:.1e} apart.\n",
            table([f"{whole['model']}, one after the other", "statistics", "closed form", "in all", "reused"], runs),
        ]
    )


def shapes() -> str:
    data = load("shapes")
    if data is None:
        return ""
    rows = data["rows"]
    parts = [SHAPES]
    for (runner, batch), group in sorted(grouped(rows, "runner", "batch").items()):
        lines = []
        for (model, rate), forms in grouped((r for r in group if r["shape"] != "dense"), "model", "rate").items():
            cells = [model.split("_patch")[0], f"{rate}"]
            for shape in ("paper", "padded", "fused"):
                found = [r for r in forms if r["shape"] == shape]
                cells.append(_shape_cell(found[0]) if found else "")
            lines.append(cells)
        parts += [f"### {runner}, batch {batch}\n", table(["", "rate", "paper", "padded", "fused"], lines)]
    return "\n".join(parts)


def _shape_cell(row: dict[str, Any]) -> str:
    fused = "" if row["fused"] is None else f", {row['fused']}/{row['blocks']} fused"
    memory = "" if row["memory_peak_bytes"] is None else f", {row['memory_peak_bytes'] / 1e6:.0f} MB"
    ratio = f"{row['latency_ratio']:.3f} of {row['macs_ratio']:.3f} MACs (± {row['latency_ratio_iqr'] / 2:.3f})"
    return f"{ratio}{memory}{fused}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    sections = [part for part in (accuracy(), cost(), closed_form(), shapes()) if part]
    parser.parse_args().out.write_text("\n".join([HEAD, *sections]))


if __name__ == "__main__":
    main()
