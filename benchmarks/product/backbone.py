"""What a smaller backbone is worth: DINOv2 ViT-S/14, derived from pictures without labels, judged on two other tasks.

    python -m benchmarks.product.backbone               # every row that records/backbone.json does not have
    python -m benchmarks.product.backbone --rates 0.5 --methods forge --steps 0
    python -m benchmarks.product.backbone --timing      # what forge's models take beside the base, in turns

Weights and pictures are those of `benchmarks.product.real`. The backbone is derived from drawings of other subjects
(`unlabelled`), without labels. k-NN and a linear probe are fitted to the training images of a fold and judged on its
test images: five folds of twelve kinds of drawings, and two of ten kinds of clothes (photographs). No image of either
was seen when the backbone was derived.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache as cached
from math import sqrt
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from benchmarks.bases import CACHE
from benchmarks.markdown import RECORDS, Row, screen, table
from benchmarks.product import real

RATES = (0.5, 0.3, 0.7, 0.8)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {"forge": ("forge", {"cut_tokens": "never"}), **real.WITHOUT_LABELS}
STEPS = (0, 200)  # of distillation, of forge alone
RECIPE: dict[str, Any] = {"precision": "bf16"}  # beside what edgevit takes by itself: views, 32 in a step
PROBES = ("knn", "linear")
BATCHES = (1, 8)  # of the timing
PER_CLASS = 40  # test images of each class of a task whose features are compared with the base's
FOLDS = {"drawings": real.FOLDS, "clothes": 2}  # of each task
FILE = RECORDS / "backbone.json"
Judged = dict[str, list[dict[str, float]]]  # by task, fold by fold: the share of right answers of each probe


def judged(model: str | Path, cache: Path, device: str, folds: Mapping[str, int] = FOLDS, **options: Any) -> Judged:
    """The shares of right answers of each probe, by task, fold by fold, for as many `folds` of each task."""
    from edgevit.exporting.evaluate import evaluate_files
    from edgevit.exporting.request import JudgeRequest

    rows: Judged = {}
    for task, count in folds.items():
        rows[task] = []
        for fold in range(count):
            data = real.ensure_fold(fold, cache, task)
            result = evaluate_files(JudgeRequest(model=model, data=data, probe=PROBES, device=device, **options))
            assert result.probes is not None
            rows[task].append({**result.probes, "images": result.images})
    return rows


@cached
def features_of_base(cache: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """By task, some test images of all folds, and the base's features of them."""
    import edgevit

    with tempfile.TemporaryDirectory() as scratch:
        opening = real.opening(real.SIZE, cache)
        base = edgevit.base(real.TIMM_NAME, output="features", out=Path(scratch) / "base", **opening)
    chosen: dict[str, tuple[Tensor, Tensor]] = {}
    for task, count in FOLDS.items():
        folds = [real.ensure_fold(fold, cache, task) / "val" for fold in range(count)]
        classes = sorted(folder.name for folder in folds[0].iterdir())
        files = [
            file
            for name in classes
            for file in sorted(f for fold in folds for f in (fold / name).iterdir())[:PER_CLASS]
        ]
        images = torch.stack([base.transform(Image.open(file).convert("RGB")) for file in files])
        chosen[task] = images, features(base, images)
    return chosen


def features(model: Any, images: Tensor) -> Tensor:
    """The features [B, d] of images [B, 3, H, W]."""
    with torch.inference_mode():
        return torch.cat([model(batch) for batch in torch.split(images, 60)])


def likeness(model: str | Path, cache: Path) -> dict[str, float]:
    """By task, the mean cosine of a model's features to the base's, of test images."""
    import edgevit

    derived = edgevit.load(model)
    return {
        task: float(F.cosine_similarity(features(derived, images), of_base).mean())
        for task, (images, of_base) in features_of_base(cache).items()
    }


def derived_row(method: str, rate: float, steps: int, seed: int, device: str, cache: Path) -> Row:
    """Derive the backbone, if the cache has none, and judge it."""
    from edgevit import derive
    from edgevit.records.model_folder import ModelFolder
    from edgevit.train.settings import Training

    folder = cache / f"backbone-{method}-{rate:g}-{steps}{_of_seed(seed)}"
    if not folder.is_dir():
        derive(
            real.TIMM_NAME, data=real.ensure_pictures(cache) / "unlabelled", output="features", rate=rate, out=folder,
            method=METHODS[method][0], options=METHODS[method][1], cache=cache / "derivations",
            training=Training(steps=steps, seed=seed, device=device, **(RECIPE if steps else {})),
            **real.opening(real.SIZE, cache),
        )  # fmt: skip
    record = ModelFolder(folder).derivation()
    assert record is not None and record.data is not None
    return {
        "method": method,
        "rate": rate,
        "steps": steps,
        "seed": seed,
        "kept_step": record.facts.kept_step,
        "train_images": record.data.images.train,
        "likeness": likeness(folder, cache),
        "tasks": judged(folder, cache, device),
        "seconds": sum(record.seconds.values()),
        "versions": record.versions,
    }


def timed_rows(rates: Sequence[float], cache: Path) -> list[Row]:
    """Time forge's models alternately with the base: ONNX Runtime, fp32, one thread, and count fused attentions."""
    import edgevit
    from edgevit.board.comparison import compare_within, decisive

    rows: list[Row] = []
    conditions = edgevit.Conditions(batches=BATCHES, threads=1, samples=20, duration_s=0.5)
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        edgevit.base(real.TIMM_NAME, output="features", out=base, **real.opening(real.SIZE, cache))
        edgevit.export(base)
        for rate in rates:
            folder = Path(scratch) / f"{rate:g}"
            shutil.copytree(cache / f"backbone-forge-{rate:g}-0", folder)
            fusion = edgevit.export(folder).fusion
            runs = edgevit.bench_in_turns([base, folder], conditions, rounds=10, alternate=True).runs
            rows += [
                {
                    "rate": rate, "batch": row.batch, "ratio": row.ratio, "interval": [row.low, row.high],
                    "base_ms": row.before_value, "rounds": row.rounds, "cpu": runs[0].environment.get("cpu", "unknown"),
                    "fused": fusion and [fusion.fused, fusion.blocks],
                }
                for row in decisive(compare_within(runs))
            ]  # fmt: skip
    return rows


def _of_seed(seed: int) -> str:
    """What the name of a folder or row has for another seed than the first."""
    return "" if seed == real.SEED else f"-seed{seed}"


def points(base: list[dict[str, float]], models: Sequence[list[dict[str, float]]], probe: str) -> tuple[float, float]:
    """Points of a probe below the base, the mean over images, and its standard error over folds.

    Seeds are averaged first: they share test images.
    """
    lost = [
        100 * (of_base[probe] - statistics.mean(of_model[probe] for of_model in of_fold))
        for of_base, *of_fold in zip(base, *models, strict=True)
    ]
    images = [row["images"] for row in base]
    mean = sum(n * x for n, x in zip(images, lost, strict=True)) / sum(images)
    return mean, statistics.stdev(lost) / sqrt(len(lost))


def _mean_points(base: Judged, row: Row) -> float:
    """Points below the base, the mean of all tasks and probes."""
    return statistics.mean(points(base[task], [row["tasks"][task]], probe)[0] for task in FOLDS for probe in PROBES)


def section() -> str:
    """Format one question of RESULTS.md."""
    record = real.load(FILE)
    if not record["rows"]:
        return ""
    base, lines = record["base"], []
    kinds: dict[tuple[float, int, str], list[Row]] = {}
    for row in record["rows"].values():
        kinds.setdefault((row["rate"], row["steps"], row["method"]), []).append(row)
    for (rate, steps, method), rows in sorted(kinds.items()):
        cells = (
            "{:.1f} ({:.1f})".format(*points(base[task], [row["tasks"][task] for row in rows], probe))
            for task in FOLDS
            for probe in PROBES
        )
        means = [_mean_points(base, row) for row in rows]
        spread = f" ({min(means):.1f} to {max(means):.1f})" if len(means) > 1 else ""
        cosines = (f"{statistics.mean(row['likeness'][task] for row in rows):.3f}" for task in FOLDS)
        name = f"{method}, {steps} steps of views" if steps else method
        lines.append([f"{rate:g}", name, *cells, f"{statistics.mean(means):.1f}{spread}", *cosines, str(len(rows))])
    whole = {}
    for task, folds in base.items():
        images = sum(int(fold["images"]) for fold in folds)
        shares = (f"{100 * sum(fold['images'] * fold[probe] for fold in folds) / images:.1f}" for probe in PROBES)
        whole[task] = "{} % with k-NN and {} % with a linear probe".format(*shares) + f" of {images} test images"
    trained = next(iter(record["rows"].values()))["train_images"]
    return screen(
        "What is a smaller backbone worth?",
        f"DINOv2 ViT-S/14 at 112 px, derived from {trained} drawings without labels and varied copies of them, of "
        "other subjects than those it is judged on; all tokens stay. Points of top-1 below the base's features on two "
        "tasks, in brackets the standard error over folds, of the mean the range over seeds: twelve kinds of drawings "
        f"(the base has {whole['drawings']}), and ten kinds of clothes, photographs (the base has {whole['clothes']}). "
        f"Beside them the mean cosine to the base's features on {PER_CLASS} test images of each class, which varies "
        "less from model to model. SnapViT by its description, and with its correction of what stays; NuWa without its "
        "purification, which reads labels. Goals of forge's mean were 0.3, 0.8, 2 and 3.5, and 0, 0.3, 1 and 2 after "
        "steps: none is met. 1000 steps win no more than 200, so what is missing are images of more kinds.",
        [table(["MACs gone", "method", *(f"{task}, {name}" for task in FOLDS for name in ("k-NN", "linear")), "mean",
                *(f"{task}, cosine" for task in FOLDS), "seeds"], lines), *_timing(record.get("timing", ()))],
        "python -m benchmarks.product.backbone",
        "a GPU; patch tokens.",
    )  # fmt: skip


def _timing(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    times: dict[float, list[Row]] = {}
    for row in rows:
        times.setdefault(row["rate"], []).append(row)
    lines = [
        [f"{rate:g}", *("{:.2f} ({:.2f} to {:.2f})".format(row["ratio"], *row["interval"]) for row in of_rate),
         "{} of {}".format(*of_rate[0]["fused"]) if of_rate[0]["fused"] else ""]
        for rate, of_rate in times.items()
    ]  # fmt: skip
    dense = " and ".join(f"{row['base_ms']:.0f} ms at batch {row['batch']}" for row in next(iter(times.values())))
    text = (
        f"Forge's models of no steps, alternately with the base ({dense}): share of its time, 95 % interval, ONNX "
        f"Runtime, fp32, one thread of {rows[0]['cpu']}; attentions that TensorRT-RTX fuses for SM 8.6 (a proxy for "
        "Orin):"
    )
    return [
        f"{textwrap.fill(text, 118)}\n",
        table(["MACs gone", *(f"batch {batch}" for batch in BATCHES), "fused"], lines),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[real.SEED], help="of the derivation")
    parser.add_argument("--timing", action="store_true", help="time the models that the cache has, and do no other row")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    record = real.load(FILE)
    if options.timing:
        real.store(FILE, {**record, "timing": timed_rows(sorted(options.rates), options.cache)})
        return
    if "base" not in record:
        record["base"] = judged(real.TIMM_NAME, options.cache, options.device, **real.opening(real.SIZE, options.cache))
        real.store(FILE, record)
    for seed, rate, method in itertools.product(options.seeds, options.rates, options.methods):
        for steps in options.steps if method == "forge" else (0,):
            key = f"{method} {rate:g} {steps}{_of_seed(seed)}"
            if key not in record["rows"]:
                record["rows"][key] = derived_row(method, rate, steps, seed, options.device, options.cache)
                real.store(FILE, record)
                cosines = record["rows"][key]["likeness"].items()
                print(f"{key}: cosine {', '.join(f'{task} {c:.3f}' for task, c in cosines)}", flush=True)


if __name__ == "__main__":
    main()
