"""Classes that the base never learnt: features of another task, a head that is fitted here, and what labels then add.

    python benchmarks/transfer.py                     # everything that is not in results/transfer.json yet
    python benchmarks/transfer.py --seeds 1 --rates 0.9

The base learnt ten kinds of clothes (fashion.py); its classifier is taken away, and the task is scikit-learn's ten
digits, scanned and real. `derive` fits a linear head to its frozen features. So the base knows less of the task than
its labels do, and a method that imitates it can be ahead of it only by chance. Beside the base as it is stands
`--derive-from better`: a copy of the base is trained on the labels for as long as the model, and cut where its loss on
the validation part is less. The images are parted anew for each seed; test images are judged once.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accuracy import BATCH, LR, SEEDS, Case, Options, Place, base_arguments, complete, load
from accuracy_tables import baselines_table
from base import CACHE, KEPT
from fashion import FASHION_ARGS
from older import commits_told
from tables import Row, derived, percent, picked, points, seeds_told, table

RESULTS = Path(__file__).parent / "results" / "transfer.json"
CLASSES, STEPS = 10, 270  # ten passes over the training images
RATES = (0.9, 0.95, 0.8)
BETTER = "better"
# Of a variant: method, options, steps after the cut, and what is cut.
VARIANTS: dict[str, tuple[str, Options, int, str]] = {
    "forge": ("forge", {}, STEPS, "base"),
    "forge, better base": ("forge", {}, STEPS, BETTER),
    "forge, better base, nothing trained after": ("forge", {}, 0, BETTER),
    "forge, taught by the fine-tuned base": ("forge", {"teacher": "finetuned"}, STEPS, "base"),
    "forge, labels alone": ("forge", {"teacher": "none"}, STEPS, "base"),
    "vulcan": ("vulcan", {}, STEPS, "base"),
    "vulcan, better base": ("vulcan", {}, STEPS, BETTER),
}


def shape(method: str, rate: float) -> str:
    """Vulcan keeps all heads and blocks, and `fused` ends before."""
    return "paper" if method == "vulcan" and rate > 0.8 else "fused"


def cases(seeds: Sequence[int], rates: Sequence[float]) -> Iterator[Case]:
    for rate in rates:
        for seed in seeds:
            for name, (method, options, steps, start) in VARIANTS.items():
                yield Case(
                    "transfer", CLASSES, rate, seed, name, method, options, shape(method, rate), steps, BATCH, LR,
                    data="digits", derive_from=start,
                )  # fmt: skip


def open_headless(cache: Path = CACHE) -> Place:
    """The kept base of the photographs without its classifier, and the digits."""
    from safetensors.torch import save_file

    from edgevit.network.checkpoint import tensors_sha256
    from edgevit.network.weights import read_weights

    told = {folder: json.loads((folder / "base.json").read_text()) for folder in KEPT.glob("base-*")}
    (folder, facts), *_ = (pair for pair in told.items() if pair[1]["model_args"] == FASHION_ARGS)
    weights = read_weights(folder / "base.safetensors")
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    cache.mkdir(parents=True, exist_ok=True)
    save_file(weights, cache / "headless.safetensors")
    headless = {"checkpoint": cache / "headless.safetensors", "model_args": {**FASHION_ARGS, "num_classes": 0}}
    classes = tuple(map(str, range(CLASSES)))
    start = base_arguments(folder, facts) | headless
    return Place(Path("digits"), start, classes, tensors_sha256(weights), None, cache)


# -- tables ------------------------------------------------------------------------------------------------------------

TEXT = (
    "The base learnt photographs of clothes, without its classifier; the task is scikit-learn's digits, with {train} "
    "training images. `derive` fits a linear head to the base's frozen features, which is what `base, restricted` is "
    "here. Equal MACs; {steps} steps of {batch} at a learning rate of {lr:g}, which no method was tuned for. Better "
    "base: a copy of the base has trained on the labels for as many steps, and was cut, as its loss on the validation "
    "part was less than before in {taken} derivations of {asked}. Mean and range, {seeds}: each parts the images "
    "anew, with {test} for the test. Digits are no ImageNet. Where a cell is empty, it was not run, or is out of reach."
)


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None or not data["rows"]:
        return ""
    rows: list[Row] = list(data["rows"].values())
    starts = [row["start"]["network"] for row in rows if "start" in row]
    told = TEXT.format(
        train=rows[0]["train_images"], steps=STEPS, batch=BATCH, lr=LR, taken=starts.count("finetuned"),
        asked=len(starts), seeds=seeds_told(rows), test=rows[0]["test_images"],
    )  # fmt: skip
    lines, gains = [], []
    rates = sorted({row["rate"] for row in rows})
    for name in VARIANTS:
        of = picked(rows, variant=name)
        if of:
            lines.append([name, *(percent(derived(picked(of, rate=rate))) for rate in rates)])
    for method in ("forge", "vulcan"):
        cells = []
        for rate in rates:
            pair = [
                {row["seed"]: row["accuracy"]["derived"] for row in picked(rows, variant=name, rate=rate)}
                for name in (method, f"{method}, better base")
            ]
            both = sorted(pair[0].keys() & pair[1].keys())
            cells.append(points([pair[1][seed] - pair[0][seed] for seed in both]) if both else "")
        gains.append([method, *cells])
    head = [f"{rate:g}" for rate in rates]
    parts = [
        "## A base of other classes: digits by features of clothes\n",
        "\n".join(textwrap.wrap(told, 118)) + "\n",
        commits_told(rows),
        baselines_table([row for row in rows if row["accuracy"]["base_finetuned"] is not None]),
        table(["top-1, %, by MACs gone", *head], lines),
        "Points that the better base adds:\n",
        table(["MACs gone", *head], gains),
    ]
    return "\n".join(part for part in parts if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the rows; another one for a trial")
    given = parser.parse_args()
    from edgevit.cli.console import Console

    progress, places = Console().progress, {"digits": open_headless()}
    complete(cases(SEEDS[: given.seeds], given.rates), places, given.results, given.jobs, progress)
    print(section({"rows": load(given.results)}))


if __name__ == "__main__":
    main()
