"""Classes that the base never learnt: features of another task, a head that is fitted here, and what labels then add.

    python -m benchmarks.product.transfer                     # every case that records/transfer.json does not have
    python -m benchmarks.product.transfer --seeds 1 --rates 0.9
    python -m benchmarks.product.transfer --data CARS --base deit_base_patch16_224 --checkpoint FILE --rates 0.6 0.8

The last line is Vulcan's Table 13 (Cars, Flowers, Food) and SKD's Table 5, for a folder of images and a base that
learnt other classes: its head is not used (`--new-head`), and training takes ten passes over the images. Its tables are
printed. `base, fine-tuned` is the papers' fine-tuned base.

The base learnt ten kinds of clothes; its classifier is taken away, and the task is scikit-learn's ten digits. `derive`
fits a linear head to the frozen features. So the base knows less of the task than the labels do, and a model that
imitates it is ahead of it only by chance. "Better base" is `--derive-from better`: a copy of the base is trained on the
labels for as long as the model, and cut if its loss on the validation part is lower. Each seed splits the images anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from benchmarks.bases import BASES, CACHE, FASHION_ARGS
from benchmarks.derivations import BATCH, LR, SEEDS, Case, Options, Place, complete, shortened, task_classes
from benchmarks.markdown import (
    RECORDS,
    Row,
    baselines_table,
    commits_text,
    derived,
    load,
    of_newest_base,
    percent,
    picked,
    points,
    screen,
    seeds_text,
    table,
)
from benchmarks.sources import Selection, add_source, record_file, refusals, select, start_of
from edgevit.data.sources import class_names

RESULTS = RECORDS / "transfer.json"
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
    """Choose the shape: Vulcan keeps all heads and blocks, and cannot reach higher rates in `fused`."""
    return "paper" if method == "vulcan" and rate > 0.8 else "fused"


def cases(
    seeds: Sequence[int], rates: Sequence[float], sizes: Sequence[int] = (CLASSES,), data: str = "digits"
) -> Iterator[Case]:
    for size in sizes:
        for rate in rates:
            for seed in seeds:
                for name, (method, options, steps, start) in VARIANTS.items():
                    yield Case(
                        "transfer", size, rate, seed, name, method, options, shape(method, rate), steps, BATCH, LR,
                        data=data, derive_from=start,
                    )  # fmt: skip


def cases_of(selection: Selection, seeds: Sequence[int], rates: Sequence[float]) -> Iterator[Case]:
    """Yield the cases of a user's folder: ten passes over its images, and the fine-tuned base beside forge."""
    from edgevit.data.task import open_task
    from edgevit.train.settings import usual_steps

    images = {}
    for size in selection.sizes:
        classes = list(selection.classes or task_classes(selection.place.classes, size))
        prepared = selection.source.base.preprocessing
        task = open_task(selection.source.data, classes, preprocessing=prepared, base_outputs=size, base_names=classes)
        images[size] = len(task.train)
    for case in selection.of(cases(seeds, rates, selection.sizes, selection.name)):
        steps = case.steps and usual_steps(images[case.task], case.batch_size)
        yield replace(case, steps=steps, finetune_base=case.variant == "forge")


def open_headless(cache: Path = CACHE) -> Place:
    """Return the base of the photographs without its classifier, and the digits."""
    from safetensors.torch import save_file

    from edgevit.network.model import tensors_sha256
    from edgevit.network.weights import read_weights

    base = BASES / "fashion"
    weights = read_weights(base / "base.safetensors")
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    cache.mkdir(parents=True, exist_ok=True)
    save_file(weights, cache / "headless.safetensors")
    headless = {"checkpoint": cache / "headless.safetensors", "model_args": {**FASHION_ARGS, "num_classes": 0}}
    classes = tuple(map(str, range(CLASSES)))
    return Place(Path("digits"), start_of(base) | headless, classes, tensors_sha256(weights), None, cache)


def gains(rows: Sequence[Row], method: str) -> list[float]:
    """Return what the better base adds to the method, by seed."""
    plain, better = (
        {row["seed"]: row["accuracy"]["derived"] for row in picked(rows, variant=name)}
        for name in (method, f"{method}, better base")
    )
    return [better[seed] - plain[seed] for seed in sorted(plain.keys() & better.keys())]


def tables(rows: Sequence[Row]) -> list[str]:
    """Format the baselines, and the models by rate."""
    rates = sorted({row["rate"] for row in rows})
    lines = [
        [name, *(percent(derived(picked(rows, variant=name, rate=rate))) for rate in rates)]
        for name in VARIANTS
        if picked(rows, variant=name)
    ]
    for method in ("forge", "vulcan"):
        added = [gains(picked(rows, rate=rate), method) for rate in rates]
        if any(added):
            lines.append([f"points that the better base adds to {method}", *(points(values) for values in added)])
    trained = [row for row in rows if row["accuracy"]["base_finetuned"] is not None]
    return [baselines_table(trained), table(["top-1, %, by MACs gone", *(f"{rate:g}" for rate in rates)], lines)]


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("transfer")
    if record is None:
        return ""
    rows: list[Row] = list(record["rows"].values())
    starts = [row["start"]["network"] for row in rows if "start" in row]
    return screen(
        "What if the base never learnt the classes?",
        f"A base of clothes without its classifier; the task is scikit-learn's digits, {rows[0]['train_images']} "
        f"training and {rows[0]['test_images']} test images. `derive` fits a linear head (`base, restricted`). "
        f"{STEPS} steps of {BATCH} images; mean and range, {seeds_text(rows)}. The better base was chosen in "
        f"{starts.count('finetuned')} of {len(starts)} derivations. {commits_text(rows)}",
        tables(rows),
        "python -m benchmarks.product.transfer",
        "real backbones and larger tasks. Digits are no ImageNet.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser, ("clothes",))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), help="names of rows")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--steps", type=int, help="of every case that trains: for a trial")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, results = Console().progress, record_file(options, "transfer", ("clothes",))
    seeds = SEEDS[: options.seeds]
    with refusals():
        if options.data is None:
            due, places = cases(seeds, options.rates), {"digits": open_headless()}
        else:
            options.tasks = options.tasks or [len(class_names(options.data))]
            selection = select(options, progress)
            new_head = replace(selection.place, start={**selection.place.start, "new_head": True})
            due, places = cases_of(selection, seeds, options.rates), {selection.name: new_head}
        chosen = (case for case in due if case.variant in options.variants)
        chosen = (shortened(case, options.steps) if options.steps else case for case in chosen)
        complete(islice(chosen, options.rows), places, results, options.jobs, progress)
    if options.data is not None:
        print("\n".join(tables(of_newest_base(selection.rows(results).values()))))


if __name__ == "__main__":
    main()
