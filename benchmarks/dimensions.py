"""What each dimension is worth to forge: beside forge without the narrower embedding, and without steps of its own.

    python benchmarks/dimensions.py              # everything that is not in results/dimensions.json yet
    python benchmarks/dimensions.py --seeds 1
    python benchmarks/dimensions.py --only trained
    python benchmarks/dimensions.py --base fine       # on 48 finer classes, in results/dimensions_fine.json
    python benchmarks/dimensions.py --base fashion    # on photographs, in results/dimensions_fashion.json

The sub-tasks, seeds, steps and images of accuracy.py, on the base that base.py trains on this machine; shape `fused`.
Everything is chosen on the validation part; accuracy is reported on `val/`, which no derivation ever sees.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accuracy import (
    OTHER_SIZES,
    SEEDS,
    STEPS,
    TASK_SIZES,
    Case,
    Options,
    add_device,
    complete,
    on_base,
    open_places,
    records_of,
)
from accuracy_tables import baselines_table, of_newest_base
from older import TITLES, code_told
from tables import Row, derived, percent, picked, table

RATES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.97)
BEFORE: Options = {"cut_embedding": False, "align": False, "refit_head": False, "drop_sites": False}
NEVER: Options = {"cut_tokens": "never"}
# Each takes one away from forge's closed form.
WITHOUT: dict[str, Options] = {f"{name}=false": {name: value} for name, value in BEFORE.items()}
WITHOUT["cut_tokens=never"] = NEVER
WITHOUT["fit_decoders=false"] = {"fit_decoders": False}
TOLD = {"cut_embedding=false": "cut_embedding=false (and so cut_tokens=never)"}
CLOSED = {"forge, closed form": {}, "without all of these": {**BEFORE, **NEVER}}
TRAINED = {"forge": {}, "forge, without all of these": {**BEFORE, **NEVER}}
PARTS = ("closed", "without", "trained", "longer")
LONGER = 8 * STEPS
EMBED = {"rendered": 192, "fine": 192, "fashion": 128}  # width of the bases
RENDERED = (
    f"## {TITLES['Every dimension']}\n"
    + """
The base of the rendered data set, trained again on one thread (it is in `bases/`): top-1 {base_top1:.1f} % on all 24
classes. Shape `fused`, equal MACs, {steps} steps of {batch_size} images; mean and range over seeds. Where a cell is
empty, the rate cannot be reached, or was not run. These are images rendered by the project, and no ImageNet result.

{code}
"""
)
FINE = (
    f"## {TITLES['Harder base']}\n"
    + """
ViT 192 x 6 (head width 64), 48 x 48 pixels in 64 patches of 6 x 6, on 48 rendered classes: eight shapes, two of them
polygons between those of the 24 classes, in six textures (`fine.py`; the base is in `bases/`). It learnt from 1200
images of each class: top-1 {base_top1:.1f} % on the 4800 of `val/`, which no derivation sees. Its user has 200 others
of each, a tenth of them held out to choose on. Shape `fused`, equal MACs, {steps} steps of {batch_size} images; mean
and range over seeds. Where a cell is empty, the rate cannot be reached, or was not run. These are images rendered by
the project, and no ImageNet result. That forge measures the width that seems best (decision 029) was made a default
after a look at seed 42 of these test images; tokens that are tried (050) were compared on them; fitted decoders (055)
were found by looking at seeds 42 and 43, before any row of seed 44; and that the search for a width ends where 0.0003
nats are lost (055), by all seeds at 0.8.

{code}
"""
)
FASHION = (
    f"## {TITLES['Photographs']}\n"
    + """
ViT 128 x 6 (head width 64), 28 x 28 pixels in 49 patches, which learnt from the first 54,000 training images
(`fashion.py`; the base is in `bases/`): top-1 {base_top1:.1f} % on the 10,000 test images. Its user has the other
6,000, a tenth of them held out to choose on, and the test images are judged once. Shape `fused`, equal MACs, {steps}
steps of {batch_size} images; mean and range over seeds. Where a cell is empty, the rate cannot be reached, or was not
run. Ten classes of clothes are no ImageNet. Chosen on these test images: when the base was trained enough, as 91 % of
them were wanted. Of forge, fitted decoders (055) were looked at on those of seeds 42 and 43.

{code}
"""
)
# At most so many points below the restricted base, by steps and rate.
TARGETS = {(0, 0.9): 1.0, (0, 0.95): 4.0}
TARGETS |= {(steps, rate): most for steps in (STEPS, LONGER) for rate, most in ((0.9, 0.5), (0.95, 2.0))}


def cases() -> dict[str, list[Case]]:
    """Every derivation by part, in the order in which a reader would miss it."""

    def made(options: dict[str, Options], steps: int, rates: tuple[float, ...]) -> Iterator[Case]:
        for seed in SEEDS:
            for rate in rates:
                for task in TASK_SIZES:
                    for name, given in options.items():
                        yield Case("dimensions", task, rate, seed, name, "forge", given, steps=steps)

    return {
        "closed": list(made(CLOSED, 0, (0.8, 0.9, 0.95, 0.97, 0.6, 0.4, 0.2))),
        "without": list(made(WITHOUT, 0, (0.9, 0.95, 0.8))),
        "trained": [
            *made(TRAINED, STEPS, (0.95, 0.9)),
            *made({"forge": {}}, STEPS, (0.8, 0.97)),
        ],
        "longer": list(made({"forge, longer": {}}, LONGER, (0.95, 0.9))),
    }


def _against_base(rows: list[Row]) -> list[float]:
    """Accuracy less that of the restricted base, of each row."""
    return [row["accuracy"]["derived"] - row["accuracy"]["base_restricted"] for row in rows]


def _table(rows: list[Row], names: list[str]) -> str:
    rates, lines = _rates(rows), []
    for task in _tasks(rows):
        for name in names:
            found = [picked(rows, task=task, variant=name, rate=rate) for rate in rates]
            if any(found):
                lines.append([f"{task} classes, {TOLD.get(name, name)}", *(percent(derived(of)) for of in found)])
    for name in names:
        found = [picked(rows, variant=name, rate=rate) for rate in rates]
        if any(found):
            apart = [_against_base(of) for of in found]
            lines.append([f"**points to the restricted base, {TOLD.get(name, name)}**", *(_points(of) for of in apart)])
    return table(["top-1, %, by MACs gone", *(f"{rate:g}" for rate in rates)], lines)


def _tasks(rows: list[Row]) -> list[int]:
    return sorted({row["task"] for row in rows})


def _rates(rows: list[Row]) -> list[float]:
    return [rate for rate in RATES if picked(rows, rate=rate)]


def _chosen(rows: list[Row], task: int, rate: float) -> list[Row]:
    return picked(rows, task=task, rate=rate, variant="forge, closed form")


def _points(values: list[float]) -> str:
    """Mean, and the worst of them."""
    return f"{100 * sum(values) / len(values):+.1f} (worst {100 * min(values):+.1f})" if values else ""


def _targets(rows: list[Row]) -> str:
    lines = []
    for (steps, rate), most in TARGETS.items():
        found = _against_base(picked(rows, steps=steps, rate=rate, options={}))
        if found:
            mean = 100 * sum(found) / len(found)
            verdict = "met" if -mean <= most else f"missed by {-mean - most:.2f}"
            how = f"distilled, {steps} steps" if steps else "nothing trained"
            lines.append([f"{rate:g} of the MACs gone, {how}", f"{most:g}", f"{-mean:.2f}", str(len(found)), verdict])
    return table(["", "at most", "points below", "derivations", ""], lines)


BEFORE_TEXT = """### With the code before fitted decoders: each step taken away, and longer training

None of these rows has been made again since decision 055, with which forge loses less: they are to be set against each
other, and not against those above.

{code}
"""


def _before(data: dict[str, Any] | None) -> Iterator[str]:
    """What has not been measured again with fitted decoders, with forge's own rows of that time."""
    if data is None:
        return
    rows = of_newest_base(data["rows"].values())
    yield BEFORE_TEXT.format(code=code_told(row["versions"]["edgevit"] for row in rows))
    yield _table([row for row in rows if not row["steps"] and row["rate"] in (0.8, 0.9, 0.95)], [*CLOSED, *WITHOUT])
    if longer := picked(rows, steps=LONGER):
        yield f"Distilled, {LONGER} steps:\n"
        yield _table(longer, ["forge, longer"])


def section(data: dict[str, Any] | None, introduction: str, before: dict[str, Any] | None = None) -> str:
    """The part of RESULTS.md about one base; `before`: rows of the code before fitted decoders."""
    if data is None:
        return ""
    rows = of_newest_base(data["rows"].values())
    trained, longer = picked(rows, steps=STEPS), picked(rows, steps=LONGER)
    tasks, whole = _tasks(rows), EMBED[rows[0]["data"]]
    widths = [
        [f"{rate:g}", *(", ".join(str(row["embed"]) for row in _chosen(rows, task, rate)) for task in tasks)]
        for rate in _rates(rows)
    ]
    return "\n".join(
        [
            introduction.format(
                **{
                    **rows[0],
                    "base_top1": 100 * rows[0]["base_top1"],
                    "steps": STEPS,
                    "code": code_told(row["versions"]["edgevit"] for row in rows),
                }
            ),
            baselines_table(rows),
            f"### Targets: points below the restricted base\n\n{_targets(rows)}",
            f"### Nothing trained\n\n{_table(picked(rows, steps=0), [*CLOSED, *WITHOUT])}",
            *([f"### Distilled, {STEPS} steps\n\n{_table(trained, [*TRAINED])}"] if trained else []),
            *([f"### Distilled, {LONGER} steps\n\n{_table(longer, ['forge, longer'])}"] if longer else []),
            f"### Widths chosen, of {whole}, for each seed\n\n"
            + table(["MACs gone", *(f"{task} classes" for task in tasks)], widths),
            *_before(before),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", choices=("rendered", *OTHER_SIZES), default="rendered")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rates", type=float, nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--results", type=Path, help="file of the rows; another one for a trial")
    add_device(parser)
    given = parser.parse_args()
    from edgevit.cli.console import Console

    progress = Console().progress
    places = open_places([given.base], progress, given.device)
    of_part = cases()
    parts = [part for part in PARTS if given.only in (None, part)]
    wanted = [
        case
        for part in parts
        for case in of_part[part]
        if case.rate in given.rates and case.seed in SEEDS[: given.seeds]
    ]
    results = given.results or records_of("dimensions", given.base)
    complete(on_base(wanted, given.base), places, results, given.jobs, progress)


if __name__ == "__main__":
    main()
