"""What a smaller backbone is worth: DINOv2 ViT-S/14, derived from pictures without labels, judged on another task.

    python -m benchmarks.product.backbone               # every rate that records/backbone.json does not have
    python -m benchmarks.product.backbone --rates 0.5

Weights and pictures are those of `benchmarks.product.real`. The backbone is derived from drawings of other subjects
(`unlabelled`), without labels. k-NN and a linear probe are fitted to the training images of twelve kinds of drawings,
for each of five folds, and judged on the held-out ones: neither was seen when the backbone was derived.
"""

from __future__ import annotations

import argparse
import statistics
from math import sqrt
from pathlib import Path
from typing import Any

from benchmarks.bases import CACHE
from benchmarks.markdown import RECORDS, Row, screen, table
from benchmarks.product import real

RATES = (0.3, 0.5)
PROBES = ("knn", "linear")
FILE = RECORDS / "backbone.json"


def _base(size: int, cache: Path) -> dict[str, Any]:
    return {
        "checkpoint": real.ensure_weights(size, cache),
        "model_args": {"img_size": size},
        "preprocessing": {"crop_pct": 1.0},
    }


def judged(model: str | Path, cache: Path, device: str, **options: Any) -> list[dict[str, float]]:
    """The shares of right answers of each probe, fold by fold."""
    from edgevit.exporting.evaluate import evaluate_files
    from edgevit.exporting.request import JudgeRequest

    rows = []
    for fold in range(real.FOLDS):
        data = real.ensure_fold(fold, cache)
        result = evaluate_files(JudgeRequest(model=model, data=data, probe=PROBES, device=device, **options))
        assert result.probes is not None
        rows.append({**result.probes, "images": result.images})
    return rows


def derived_row(rate: float, size: int, device: str, cache: Path) -> Row:
    """Derive the backbone, if the cache has none, and judge it."""
    from edgevit import derive
    from edgevit.records.model_folder import ModelFolder
    from edgevit.train.settings import Training

    folder = cache / f"backbone-{size}-{rate:g}"
    if not folder.is_dir():
        derive(
            real.TIMM_NAME, data=real.ensure_pictures(cache) / "unlabelled", output="features", rate=rate, out=folder,
            options={"cut_tokens": "never"}, cache=cache / "derivations",
            training=Training(steps=0, seed=real.SEED, device=device), **_base(size, cache),
        )  # fmt: skip
    record = ModelFolder(folder).derivation()
    assert record is not None and record.similarity is not None and record.data is not None
    return {
        "rate": rate,
        "size": size,
        "train_images": record.data.images.train,
        "cosine": record.similarity.cosine,
        "same_neighbours": record.similarity.same_neighbours,
        "folds": judged(folder, cache, device),
        "seconds": sum(record.seconds.values()),
        "versions": record.versions,
    }


def points(base: list[dict[str, float]], model: list[dict[str, float]], probe: str) -> tuple[float, float]:
    """Points of a probe below the base, the mean over images, and its standard error over folds."""
    lost = [100 * (of_base[probe] - of_model[probe]) for of_base, of_model in zip(base, model, strict=True)]
    images = [row["images"] for row in base]
    mean = sum(n * x for n, x in zip(images, lost, strict=True)) / sum(images)
    return mean, statistics.stdev(lost) / sqrt(len(lost))


def section() -> str:
    """Format one question of RESULTS.md."""
    record = real.load(FILE)
    if not record["rows"]:
        return ""
    base, lines = record["base"], []
    for row in sorted(record["rows"].values(), key=lambda row: row["rate"]):
        cells = ("{:.1f} ({:.1f})".format(*points(base, row["folds"], probe)) for probe in PROBES)
        neighbours = f"{row['same_neighbours']:.1%}"
        lines.append([f"{row['rate']:g}", *cells, f"{row['cosine']:.3f}", neighbours, f"{row['seconds'] / 60:.0f}"])
    images = sum(int(row["images"]) for row in base)
    whole = (100 * sum(row["images"] * row[probe] for row in base) / images for probe in PROBES)
    trained = next(iter(record["rows"].values()))["train_images"]
    return screen(
        "What is a smaller backbone worth?",
        f"DINOv2 ViT-S/14 at 112 px, derived by forge's closed form from {trained} drawings without labels, of other "
        f"subjects than those it is judged on; all tokens stay. Points of top-1 below the base's features on {images} "
        "test images in five folds of twelve kinds of drawings, in brackets the standard error over folds. The base "
        "has {:.1f} % with k-NN and {:.1f} % with a linear probe. Cosine and nearest images are on held-out "
        "drawings of the other subjects.".format(*whole),
        [table(["MACs gone", "k-NN", "linear probe", "cosine", "ten nearest images kept", "minutes"], lines)],
        "python -m benchmarks.product.backbone",
        "another task; distillation; a GPU; patch tokens.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    record = real.load(FILE)
    if "base" not in record:
        record["base"] = judged(real.TIMM_NAME, options.cache, options.device, **_base(real.SIZE, options.cache))
        real.store(FILE, record)
    for rate in options.rates:
        if f"{rate:g}" not in record["rows"]:
            record["rows"][f"{rate:g}"] = derived_row(rate, real.SIZE, options.device, options.cache)
            real.store(FILE, record)
            print(f"{rate:g}: cosine {record['rows'][f'{rate:g}']['cosine']:.4f}")


if __name__ == "__main__":
    main()
