"""The tables of results/accuracy.json: every method side by side, what each step of forge is worth, learning curves.

Rows may be missing: a table shows what is there, and a target that cannot be judged says so.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accuracy import (
    CURVE,
    FORGE,
    FORGE_SHAPES,
    HIGHEST,
    METHODS,
    NARROW,
    PUBLISHED_RATE,
    RATES,
    SEEDS,
    SKD_STEPS,
    STEPS,
    TASK_SIZES,
)
from older import anchor, rows_told
from tables import Row, derived, grouped, load, percent, picked, points, table

BASELINES = {
    "base_full_head": "base, full head",
    "base_restricted": "base, restricted",
    "base_finetuned": "base, fine-tuned",
}
NOT_PREPARATION = {"baselines", "finetune_base", "evaluation", "training"}  # stages that measure, or that train
# forge with heads narrower than `fused` has them, at the highest rate
NARROWER = [f"{name}, {shape}" for shape in NARROW for name, (method, _, _) in METHODS.items() if method == "forge"]
LONGER = "At published length, photographs of clothes"  # the section that has the same after longer training
UNTRAINED = {"forge": "forge, closed form", "nuwa, fine-tuned": "nuwa"}  # where these learning curves start

RENDERED = """## Accuracy on the rendered data set

ViT 192 x 6 (head width 64), 24 rendered classes of 48 x 48 pixels, trained from scratch by `base.py` on other images
than its users have; top-1 {base_top1:.1f} % on all classes. Top-1 in per cent on `val/`, which no derivation sees;
choices are made on a tenth of the training images, held out. Whatever trains does {steps} steps of {batch_size} images,
learning rate {lr:g}, {schedule}. Mean and range over seeds {seeds}; without a range, one seed or no difference between
them. This is no ImageNet result. All rows were trained with earlier defaults: the full
rate from the first step, and the state of the best validation accuracy kept (docs/decisions/015-gentle-training.md).
"""
MAIN = """Methods at one rate have the same MACs: the rate reached is at most {beyond:.3f} above the one asked. Shape
`fused`; Vulcan and NuWa keep every head and block, and `fused` then ends at rate 0.892 of this base: at 0.9 theirs is
`paper`, whose heads may be narrower and need not fuse; `fused4` is all that fuses. Time: one derivation that finds
nothing cached, on one thread, without measuring.
"""
OTHER_BASE = """### The papers' methods on {where}

The same base and sub-tasks; methods, steps and shapes as on the rendered data set, seeds {seeds}: forge beside them is
in the tables above. The rate reached is at most {beyond:.3f} above the one asked.
"""
FORGE_TEXT = """### Each step of forge, taken away or replaced: seed {seed}

Points are against forge of the same shape, over the same sub-tasks; those of the rows `shape=` against `fused`.
"""
CURVE_TEXT = """### Learning curve: {task} classes, rate {rate}, seed {seed}

Each point is a derivation of its own, with its own cosine. Top-1, and the seconds of the whole derivation. Of all
methods, with longer training: [{title}](#{anchor}).
"""
DIGITS = """## Accuracy on digits

scikit-learn's digits, scaled up to 32 x 32 pixels; ViT 192 x 6, top-1 {base_top1:.1f} % on all ten.
{steps} steps of {batch_size} images. Seeds {seeds}.
"""
SKD_TEXT = """### Slices of one network (SKD)

One super-network per sub-task, trained on as many images as any method, and cut to each size at once; the same of a
base that was only brought into WPAC's order; both directly, and after {steps} steps, of which the slices have seen that
much more. Vulcan trains anew for each size.
"""
ATTENTION = """### Attention alone{where}, factorised and cut to a width (of {whole}), nothing trained: top-1

Moments of {images} training images: of no tokens (`weights`), of all of them, of all weighted by importance, of the
class token alone.
"""
SELECTED = """Token selection as in Table 6 of the SKD paper, which is at half of the width: so many tokens of each
image at random (mean and range over {draws} draws), and all at a weight of 0.01, which cancels here: a moment is a
weighted mean, and its decomposition does not fail on what has no full rank.
"""
KINDS = {
    "weights": "weights",
    "activations": "all tokens",
    "activations x 0.01": "all tokens x 0.01",
    "tokens": "weighted tokens",
    "class token": "class token",
}


def of_newest_base(rows: Iterable[Row]) -> list[Row]:
    """Rows of the base that the last row of each data set is of: another base is another benchmark."""
    kept = []
    for group in grouped(rows, "data").values():
        kept += picked(group, base_sha256=group[-1]["base_sha256"])
    return kept


# -- time --------------------------------------------------------------------------------------------------------------


def preparation_s(rows: Sequence[Row]) -> float:
    """Mean seconds of everything but training, where nothing is cached; the rows are of one method, task and seed.

    Where none of them found the cache empty, each stage is taken where it took longest, in the row that paid it.
    """
    cold = [row for row in rows if not set(row["facts"].get("reused", ())) - {"baselines"}]
    stages = {stage for row in rows for stage in row["seconds"].keys() - NOT_PREPARATION}
    if cold:
        return float(sum(statistics.mean(row["seconds"].get(stage, 0.0) for row in cold) for stage in stages))
    return float(sum(max(row["seconds"].get(stage, 0.0) for row in rows) for stage in stages))


def training_s(row: Row) -> float:
    return float(row["seconds"].get("training", 0.0))


def preparations(rows: Iterable[Row], method: str) -> dict[tuple[int, int], float]:
    """Seconds of preparation per (sub-task, seed)."""
    return {
        place: preparation_s(group) for place, group in grouped(picked(rows, method=method), "task", "seed").items()
    }


def duration(rows: list[Row], of: Sequence[Row]) -> str:
    """Mean of the whole derivations `of`, one variant of one method, among all `rows`; of those on the CPU."""
    rows, of = ([row for row in some if "device" not in row] for some in (rows, of))
    if not of:
        return ""
    prepared = preparations(rows, of[0]["method"])
    seconds = statistics.mean(prepared[r["task"], r["seed"]] + training_s(r) for r in of)
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


# -- all methods -------------------------------------------------------------------------------------------------------


def baselines_table(rows: Sequence[Row]) -> str:
    lines = []
    for (task,), group in sorted(grouped(rows, "task").items()):
        cells = [f"{task} classes, {group[0]['test_images']} test images"]
        for name in BASELINES:
            # Those that no seed touches are in every row; the base is fine-tuned for as many steps as the model.
            trained = [row for row in group if name != "base_finetuned" or row["steps"]]
            taken = {row["seed"]: a for row in trained if (a := row["accuracy"][name]) is not None}
            values = list(taken.values())
            cells.append(percent(values[:1] if len(set(values)) == 1 else values))
        lines.append(cells)
    return table(["sub-task", *BASELINES.values()], lines)


def mean_per_seed(rows: Sequence[Row], tasks: Sequence[int]) -> list[float]:
    """Mean over the sub-tasks, of each seed that has them all."""
    groups = grouped(rows, "seed").values()
    return [statistics.mean(derived(group)) for group in groups if {row["task"] for row in group} == set(tasks)]


def methods_table(rows: list[Row], rates: Sequence[float]) -> str:
    tasks = sorted({row["task"] for row in rows})
    lines = []
    for rate in rates:
        for variant in (*METHODS, *NARROWER):
            found = picked(rows, rate=rate, variant=variant)
            if not found:
                continue
            cells = [percent(derived(picked(found, task=task))) for task in tasks]
            shapes = ", ".join(sorted({row["shape"] for row in found}))
            mean = percent(mean_per_seed(found, tasks))
            lines.append([f"{rate}", variant, shapes, *cells, mean, duration(rows, found)])
    head = ["rate", "method", "shape", *(f"{task} classes" for task in tasks), "mean", "time"]
    return table(head, lines)


def differences(rows: Iterable[Row], ours: str, theirs: str, rate: float) -> dict[tuple[int, int], float]:
    """Top-1 of one minus that of the other, per (sub-task, seed) that has both."""
    rows = picked(rows, rate=rate)
    first, second = (
        {(r["task"], r["seed"]): r["accuracy"]["derived"] for r in picked(rows, variant=name)}
        for name in (ours, theirs)
    )
    return {place: first[place] - second[place] for place in sorted(first.keys() & second.keys())}


def per_seed(values: Mapping[tuple[int, int], float]) -> list[float]:
    """Mean over the sub-tasks, of each seed."""
    seeds = sorted({seed for _, seed in values})
    return [statistics.mean(v for (_, s), v in values.items() if s == seed) for seed in seeds]


def differences_table(rows: Sequence[Row], rates: Sequence[float], places: int) -> str:
    """Each pair that a target compares; mean over sub-tasks, range over seeds."""
    pairs = list(dict.fromkeys((target.ours, target.theirs) for target in TARGETS))
    lines = []
    for rate in rates:
        cells = []
        for pair in pairs:
            found = differences(rows, *pair, rate)
            partial = f", {len(found)} of {places} pairs" if 0 < len(found) < places else ""
            cells.append(points(per_seed(found)) + partial)
        lines.append([f"{rate}", *cells])
    return table(["rate, points", *(f"{ours} minus {theirs}" for ours, theirs in pairs)], lines)


# -- targets -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasurementTarget:
    """At each of these rates: at least so much better, on the mean over sub-tasks and seeds."""

    ours: str
    theirs: str
    rates: tuple[float, ...]
    least: float = 0.0  # of 1
    equal_will_do: bool = True


TARGETS = (
    MeasurementTarget("forge", "vulcan", (0.8, 0.9), least=0.04),
    MeasurementTarget("forge", "vulcan", (0.4, 0.6)),
    MeasurementTarget("forge", "vulcan + teacher", RATES, equal_will_do=False),
    MeasurementTarget("forge, closed form", "nuwa", RATES, equal_will_do=False),
    MeasurementTarget("forge, closed form, fused4", "nuwa", (0.9,), equal_will_do=False),
    MeasurementTarget("forge, closed form, paper", "nuwa", (0.9,), equal_will_do=False),
    MeasurementTarget("forge, paper", "vulcan", (0.9,), least=0.04),
    MeasurementTarget("forge, closed form", "vulcan", (0.8,), equal_will_do=False),
)


def verdict(difference: float, target: MeasurementTarget) -> str:
    """`difference` and target as shares of 1, the verdict in points."""
    beyond = round(difference - target.least, 9)  # sums of shares of images are off by rounding
    met = beyond > 0 or (target.equal_will_do and beyond == 0)
    return f"{'met' if met else 'missed'} by {abs(100 * beyond):.2f}"


def targets_table(rows: Sequence[Row], places: int) -> str:
    """Every target with what was measured, and by how much it is met or missed."""
    lines = []
    for target in TARGETS:
        needed = f"{'at least' if target.equal_will_do else 'above'} {100 * target.least:+.1f}"
        for rate in target.rates:
            found = differences(rows, target.ours, target.theirs, rate)
            cells = [f"{target.ours} minus {target.theirs}, {rate}", needed, f"{len(found)} of {places}"]
            if found:
                mean = statistics.mean(found.values())
                lines.append([*cells, f"{100 * mean:+.2f}", verdict(mean, target)])
            else:
                lines.append([*cells, "", "not measured"])
    lines.append(time_target(rows, places))
    return table(["target, points", "needed", "pairs", "measured", ""], lines)


def time_target(rows: Sequence[Row], places: int) -> list[str]:
    """Preparation is all that the closed forms do, and what the trained variants do before they train."""
    ours, theirs = (preparations(rows, method) for method in ("forge", "nuwa"))
    both = ours.keys() & theirs.keys()
    cells = ["seconds, forge closed form of nuwa", "below 1", f"{len(both)} of {places}"]
    if not both:
        return [*cells, "", "not measured"]
    a, b = (statistics.mean(of[place] for place in both) for of in (ours, theirs))
    shown = f"{'met' if a < b else 'missed'} by {abs(1 - a / b):.2f}"
    return [*cells, f"{a:.1f} s of {b:.1f} s, {a / b:.2f}", shown]


def at_length_told(data: dict[str, Any] | None) -> str:
    """How Vulcan and forge stand where both are trained as long as Vulcan's rule says; nothing without such rows."""
    ours, theirs = "forge", "vulcan, as published"
    rows = of_newest_base(data["rows"].values()) if data else []
    rows = picked(rows, data="demo", table="published", rate=PUBLISHED_RATE)
    apart = differences(rows, theirs, ours, PUBLISHED_RATE)
    if not apart:
        return ""
    task = rows[0]["task"]  # the one that has every seed
    seeds = sorted(seed for of, seed in apart if of == task)
    first, second = ([r for r in picked(rows, task=task, variant=v) if r["seed"] in seeds] for v in (ours, theirs))
    gained = round(sum(apart[task, row["seed"]] * row["test_images"] for row in first))
    told = (
        f"These are differences after {STEPS} steps, and no more is claimed. After the {first[0]['steps']} steps that "
        f"Vulcan's own rule gives, on the demo's base ({task} classes, {PUBLISHED_RATE:g} of the MACs gone), Vulcan as "
        f"its paper has it reaches {percent(derived(second))} and forge {percent(derived(first))}: n = {len(seeds)} "
        f"seed{'s' * (len(seeds) > 1)}, of {sum(row['test_images'] for row in first)} test images Vulcan gets "
        f"{abs(gained)} {'more' if gained >= 0 else 'fewer'} right."
    )
    return "\n".join(textwrap.wrap(told, 118)) + "\n"


# -- forge -------------------------------------------------------------------------------------------------------------


def forge_rows(rows: Iterable[Row]) -> list[Row]:
    """The rows of the table, with forge itself taken from the main one."""
    rows = list(rows)
    own = picked(rows, table="forge")
    seeds, rates = {row["seed"] for row in own}, {row["rate"] for row in own}
    whole = [r for r in picked(rows, table="main", method="forge") if r["seed"] in seeds and r["rate"] in rates]
    known = {(r["variant"], r["task"], r["rate"], r["steps"]) for r in own}
    named = [{**r, "variant": "forge" if r["shape"] == "fused" else f"shape={r['shape']}"} for r in whole]
    return [r for r in named if (r["variant"], r["task"], r["rate"], r["steps"]) not in known] + own


def against_forge(rows: Sequence[Row], found: Sequence[Row]) -> list[float]:
    """Top-1 minus that of forge in the same place, and of the same shape where the shape is not the question."""
    gained = []
    for row in found:
        shaped = row["variant"] in FORGE and row["shape"] != "fused"
        whole = f"shape={row['shape']}" if shaped else "forge"
        same = picked(rows, variant=whole, task=row["task"], rate=row["rate"], seed=row["seed"], steps=row["steps"])
        gained += [row["accuracy"]["derived"] - value for value in derived(same)]
    return gained


def forge_table(rows: Sequence[Row]) -> str:
    """Closed form on every sub-task, trained on those measured; beside forge."""
    trained_tasks = sorted({row["task"] for row in picked(rows, table="forge") if row["steps"]})
    lines = []
    for rate in sorted({row["rate"] for row in rows}):
        shapes = dict.fromkeys((*NARROW, *FORGE_SHAPES))
        for variant in ("forge", *FORGE, *(f"shape={s}" for s in shapes)):
            found = picked(rows, rate=rate, variant=variant)
            if not found:
                continue
            cells = [f"{rate}", variant, found[0]["shape"]]
            for trained, tasks in ((False, TASK_SIZES), (True, trained_tasks)):
                lot = [row for row in found if bool(row["steps"]) == trained and row["task"] in tasks]
                cells += [percent(derived(picked(lot, task=task))) for task in tasks]
                gained = against_forge(rows, lot) if variant != "forge" else []
                cells.append(points([statistics.mean(gained)]) if gained else "")
            lines.append(cells)
    closed = [f"closed form, {task} classes" for task in TASK_SIZES]
    distilled = [f"trained, {task} classes" for task in trained_tasks]
    return table(["rate", "variant", "shape", *closed, "points", *distilled, "points"], lines)


# -- learning curve ----------------------------------------------------------------------------------------------------


def curve_rows(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Per method, from no images to all: what was derived for the curve, and what the main table has of it."""
    rows = list(rows)
    own = picked(rows, table="curve")
    if not own:
        return {}
    place = {name: own[0][name] for name in ("task", "rate", "seed")}
    main = picked(rows, table="main", **place)
    curves = {}
    for variant in CURVE:
        lot = picked(own, variant=variant) + picked(main, variant=variant)
        lot += picked(main, variant=UNTRAINED[variant]) if variant in UNTRAINED else []
        if lot:
            curves[variant] = sorted(lot, key=lambda row: int(row["images_seen"]))
    return curves


def curve_points(rows: list[Row], curve: Sequence[Row]) -> list[tuple[int, float, float]]:
    """Images seen, seconds of the whole derivation, top-1 in per cent."""
    same = picked(rows, method=curve[0]["method"], task=curve[0]["task"], seed=curve[0]["seed"], data="rendered")
    prepared = preparation_s([r for r in same if r["table"] in ("main", "curve")])
    return [(r["images_seen"], prepared + training_s(r), 100 * r["accuracy"]["derived"]) for r in curve]


def curve_section(rows: list[Row]) -> str:
    curves = {name: curve_points(rows, curve) for name, curve in curve_rows(rows).items()}
    if not curves:
        return ""
    lines = []
    for seen in sorted({i for of in curves.values() for i, _, _ in of}):
        found = [next(((s, y) for i, s, y in of if i == seen), None) for of in curves.values()]
        lines.append([f"{seen}", *(f"{pair[1]:.1f} ({pair[0]:.0f} s)" if pair else "" for pair in found)])
    told = CURVE_TEXT.format(**picked(rows, table="curve")[0], title=LONGER, anchor=anchor(LONGER))
    return "\n".join([told, table(["images seen", *curves], lines)])


# -- slices ------------------------------------------------------------------------------------------------------------


def skd_table(rows: Sequence[Row]) -> str:
    """One line per size and way to get there; the mean is over the sub-tasks."""
    tasks = sorted({row["task"] for row in rows})
    lines = []
    for (rate, variant), group in sorted(grouped(rows, "rate", "variant").items()):
        cells = [percent(derived(picked(group, task=task))) for task in tasks]
        lines.append([f"{1 - rate:g}", variant, *cells, percent(mean_per_seed(group, tasks))])
    return table(["share of the MACs", "", *(f"{task} classes" for task in tasks), "mean"], lines)


# -- attention alone ---------------------------------------------------------------------------------------------------


def attention_table(data: dict[str, Any] | None) -> str:
    """Kind of moments x width, per sub-task, as Tables 3 and 6 of the SKD paper have it."""
    if data is None:
        return ""
    bases = picked(data["rows"], kind="base")
    widths = sorted({row["width"] for row in data["rows"]} - {row["width"] for row in bases}, reverse=True)
    lines = []
    for (task, kind), group in grouped((r for r in data["rows"] if r["kind"] != "base"), "task", "kind").items():
        whole = [row["top1"] for row in picked(bases, task=task)]
        cut = [percent([row["top1"] for row in picked(group, width=width)]) for width in widths]
        name = KINDS.get(kind) or f"{kind.removeprefix('random ')} random"
        lines.append([f"{task} classes, {name}", percent(whole), *cut])
    of = data.get("source", "rendered")
    where = "" if of == "rendered" else f" of {of}"
    if not bases:
        return ""
    title = ATTENTION.format(where=where, whole=bases[0]["width"], images=data["calibration_images"])
    if drawn := [row for row in data["rows"] if row["kind"].startswith("random ")]:
        title += SELECTED.format(draws=1 + max(row["draw"] for row in drawn))
    return title + "\n" + table(["", "whole", *map(str, widths)], lines)


# -- all of it ---------------------------------------------------------------------------------------------------------


def _told(rows: Sequence[Row]) -> dict[str, Any]:
    """What the introductions say of the rows."""
    trained = [row for row in rows if row["steps"]] or rows
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    return {**trained[0], "base_top1": 100 * rows[0]["base_top1"], "seeds": seeds}


def section(data: dict[str, Any] | None, attention: dict[str, Any] | None) -> str:
    """Everything that the records have rows for."""
    rows = of_newest_base(data["rows"].values()) if data else []
    main, forge = picked(rows, table="main"), forge_rows(rows)
    digits, skd = picked(rows, table="digits"), picked(rows, table="skd")
    parts = []
    if main:
        places, older = len(TASK_SIZES) * len(SEEDS), [told] if (told := rows_told(main)) else []
        parts += [
            RENDERED.format(**_told(main)),
            *older,
            baselines_table(main),
            MAIN.format(beyond=max(row["rate_reached"] - row["rate"] for row in main)),
            methods_table(main, (*RATES, HIGHEST)),
            differences_table(main, RATES, places),
            "### Targets\n",
            *older,
            *([told] if (told := at_length_told(load("published"))) else []),
            targets_table(main, places),
        ]
    if picked(rows, table="forge"):
        parts += [FORGE_TEXT.format(seed=picked(rows, table="forge")[0]["seed"]), forge_table(forge)]
    if curve := curve_section(rows):
        parts.append(curve)
    if skd:
        parts += [SKD_TEXT.format(steps=SKD_STEPS), skd_table(skd)]
    if attention:
        parts.append(attention_table(attention))
    if digits:
        parts += [
            DIGITS.format(**_told(digits)),
            *([told] if (told := rows_told(digits, "digits")) else []),
            baselines_table(digits),
            methods_table(digits, sorted({row["rate"] for row in digits})),
        ]
    return "\n".join(parts)


def other_base_section(data: dict[str, Any] | None, where: str) -> str:
    """Every method on another base, to follow what forge's dimensions are worth there."""
    main = picked(of_newest_base(data["rows"].values()), table="main") if data else []
    if not main:
        return ""
    beyond = max(row["rate_reached"] - row["rate"] for row in main)
    return "\n".join(
        [OTHER_BASE.format(**_told(main), beyond=beyond, where=where), methods_table(main, (*RATES, HIGHEST))]
    )
