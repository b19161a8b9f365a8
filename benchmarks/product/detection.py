"""What cutting loses in a detector: Mask R-CNN on a pyramid of a small Swin, trained on rendered pictures.

    python -m benchmarks.product.detection                                # every case that records/detection.json lacks
    python -m benchmarks.product.detection --rates 0.6 --methods forge
    python -m benchmarks.product.detection --latency                      # of all models, in turns

The detector is that of `detection_network.py`, trained here on the annotated pictures of `benchmarks.scenes`. forge and
magnitude cut its backbone without reading an annotation, and train nothing; nuwa and vulcan learn from the objects, and
so does the base, fine-tuned. Average precision is on other pictures, drawn again for intervals. Rates are of the MACs
of the backbone; those of the pyramid stay. `--network swin` and `vit` are Faster R-CNN.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file
from torchvision.transforms.functional import to_tensor

from benchmarks import scenes
from benchmarks.bases import CACHE
from benchmarks.markdown import RECORDS, Row, screen, table
from benchmarks.product import detection_network, real
from edgevit.errors import BudgetError
from edgevit.train.settings import Training

SIZE, TRAIN, VAL = detection_network.SIZE, 3000, 300
STEPS, BATCH, LR, SEED = 1100, 16, 6e-4, 1
RATES = (0.4, 0.6, 0.8)
PAPER = (
    0.8  # from this rate on, methods that leave heads, blocks and embedding have the papers' shapes: fused end before
)
TUNED = 100  # steps of the fine-tuned base, and of vulcan
OPTIONS: dict[str, dict[str, Any]] = {
    "forge": {}, "nuwa": {"purification_steps": 60}, "vulcan": {}, "magnitude": {},
}  # fmt: skip
ORDER = ("base", "base, fine-tuned", *OPTIONS)
DRAWS = 200  # of the pictures, for the interval
FILE = RECORDS / "detection.json"
BUILDER = Path(detection_network.__file__)


def ensure_pictures(cache: Path) -> Path:
    return scenes.ensure(cache, train=TRAIN, val=VAL, size=SIZE)


def _targets(source: Any, reference: Any, mirrored: bool, masks: bool = False) -> dict[str, torch.Tensor]:
    from edgevit.data.objects import mask_of

    objects = source.objects(reference)
    boxes = torch.tensor([entry.box for entry in objects], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    if mirrored:
        boxes[:, [0, 2]] = SIZE - boxes[:, [2, 0]]
    targets = {"boxes": boxes, "labels": torch.tensor([entry.category for entry in objects], dtype=torch.int64)}
    if masks:
        drawn = torch.stack([mask_of(entry, SIZE, SIZE) for entry in objects])
        targets["masks"] = drawn.flip(-1) if mirrored else drawn
    return targets


def ensure_weights(function: str, device: str, cache: Path) -> Path:
    """Train the detector by its own losses if the cache has no weights; an interrupted training goes on."""
    from edgevit.data.sources.coco import open_pictures

    file = cache / f"detection-{function}.safetensors"
    if file.is_file():
        return file
    source, unfinished = open_pictures(str(ensure_pictures(cache))), file.with_suffix(".pt")
    references = source.references("train", source.class_names[0])
    torch.manual_seed(SEED)
    detector: Any = getattr(detection_network, function)().train().to(device)
    optimizer = torch.optim.AdamW(detector.parameters(), lr=LR, weight_decay=0.05)
    first, seconds = 0, 0.0
    if unfinished.is_file():
        state = torch.load(unfinished, weights_only=True)
        detector.load_state_dict(state["detector"])
        optimizer.load_state_dict(state["optimizer"])
        first, seconds = state["step"], state["seconds"]
    for step in range(first, STEPS):
        started = time.process_time()
        rng = np.random.default_rng([SEED, step])
        for group in optimizer.param_groups:
            group["lr"] = LR * min((step + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        chosen = rng.choice(len(references), BATCH, replace=False)
        mirrored = rng.random(BATCH) < 0.5
        pictures, targets = [], []
        for i, mirror in zip(chosen, mirrored, strict=True):
            picture = to_tensor(source.read(references[i]))
            pictures.append((picture.flip(-1) if mirror else picture).to(device))
            of_picture = _targets(source, references[i], bool(mirror), function == "masks")
            targets.append({name: value.to(device) for name, value in of_picture.items()})
        torch.manual_seed(step)  # proposals are sampled
        loss: Any = sum(detector(pictures, targets).values())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 1.0)
        optimizer.step()
        seconds += time.process_time() - started
        if (step + 1) % 50 == 0 or step + 1 == STEPS:
            states = {"detector": detector.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**states, "step": step + 1, "seconds": seconds}, unfinished)
            print(f"{function}: step {step + 1} of {STEPS}, loss {float(loss):.3f}, {seconds:.0f} s", flush=True)
    save_file(detector.state_dict(), file)
    unfinished.unlink()
    return file


def ensure_derived(function: str, method: str, rate: float, device: str, cache: Path) -> Path:
    """Derive a detector, if the cache has none."""
    import edgevit

    folder, steps = cache / f"detection-{function}-{method}-{rate:g}", TUNED if method == "vulcan" else 0
    if not folder.is_dir():
        geometry = _loaded(function, device, cache).geometry
        whole = _loaded(function, device, cache).spec.macs
        edgevit.derive(
            f"{BUILDER}:{function}", checkpoint=ensure_weights(function, device, cache), data=ensure_pictures(cache),
            output="boxes", macs=whole - rate * (whole - geometry.head_macs), out=folder, cache=cache / "derivations",
            method=method, options=OPTIONS[method], training=_training(steps, device),
            shape="fused" if method == "forge" or rate < PAPER else "paper",
        )  # fmt: skip
    return folder


def _training(steps: int, device: str) -> Training:
    return Training(steps=steps, seed=SEED, device=device, batch_size=BATCH, augment="flip", evaluations=1)


def _scores(network: Any, cache: Path) -> Row:
    """The average precision of a network on pictures of the test part, with its interval."""
    from edgevit.data.sources.coco import CocoImages
    from edgevit.data.task import Split
    from edgevit.train.detections import find_objects

    source: Any = CocoImages(ensure_pictures(cache))
    references = tuple(source.references("test", source.class_names[0]))
    findings = find_objects(network, Split(source, references, (-1,) * len(references), {}), source.categories)
    whole, rng = findings.record(), np.random.default_rng(0)
    # On the same pictures for every network.
    drawn = [findings.record(rng.integers(len(references), size=len(references)).tolist()) for _ in range(DRAWS)]
    row = {**_recorded(whole), "drawn": [round(each.boxes.ap, 5) for each in drawn]}
    if whole.masks is not None:
        row["drawn_masks"] = [round(each.masks.ap, 5) for each in drawn if each.masks is not None]
    return row


def _recorded(found: Any) -> Row:
    masks = {} if found.masks is None else {"ap_masks": found.masks.ap}
    boxes = {"ap": found.boxes.ap, "ap50": found.boxes.ap50, "per_class": found.boxes.per_class}
    return {"images": found.images, "objects": found.objects, **boxes, **masks}


def _loaded(function: str, device: str, cache: Path) -> Any:
    from edgevit.network.opening import open_network

    return open_network(f"{BUILDER}:{function}", checkpoint=ensure_weights(function, device, cache))


def base_row(function: str, device: str, cache: Path) -> Row:
    whole = _loaded(function, device, cache)
    return {"network": function, "method": "base", "rate": 0.0, "macs": whole.spec.macs, **_scores(whole, cache)}


def tuned_row(function: str, device: str, cache: Path) -> Row:
    """Train the base as long as vulcan trains, if the cache has none, and judge it."""
    import edgevit
    from edgevit.derivation.problem import finetuned_base
    from edgevit.derivation.session import baselines
    from edgevit.network.opening import open_network

    file = cache / f"detection-{function}-tuned.safetensors"

    def kept(problem: Any) -> Any:
        network: Any = finetuned_base(problem)
        save_file(network.module.detector.state_dict(), file)
        return network

    if not file.is_file():  # a derivation trains it, and keeps what it finds
        with tempfile.TemporaryDirectory() as scratch, mock.patch.object(baselines, "finetuned_base", kept):
            edgevit.derive(
                f"{BUILDER}:{function}", checkpoint=ensure_weights(function, device, cache),
                data=ensure_pictures(cache), output="boxes", method="magnitude", rate=0.2, out=Path(scratch) / "model",
                finetune_base=True, base_steps=TUNED, training=_training(0, device), cache=cache / "derivations",
            )  # fmt: skip
    tuned: Any = open_network(f"{BUILDER}:{function}", checkpoint=file)
    method = {"network": function, "method": "base, fine-tuned"}
    return {**method, "rate": 0.0, "macs": tuned.spec.macs, **_scores(tuned, cache)}


def derived_row(function: str, method: str, rate: float, device: str, cache: Path) -> Row:
    """Judge what a cut detector finds."""
    import edgevit
    from edgevit.records.model_folder import ModelFolder

    folder = ensure_derived(function, method, rate, device, cache)
    record, model = ModelFolder(folder).derivation(), edgevit.load(folder)
    assert record is not None and record.data is not None and record.boxes is not None
    return {
        "network": function, "train_images": record.data.images.train, "versions": record.versions, "method": method,
        "rate": rate, "macs": model.spec.macs, "error": record.boxes.error, **_scores(model, cache),
        "seconds": sum(record.seconds.values()),
    }  # fmt: skip


def latency_rows(function: str, device: str, cache: Path) -> dict[str, Row]:
    """Measure backbone and pyramid of the base and of each model in turns on one thread: ratios by method and rate."""
    import edgevit
    from edgevit import bench_in_turns
    from edgevit.board.comparison import compare_within, decisive
    from edgevit.board.request import Conditions

    base = cache / f"detection-{function}-base"
    if not base.is_dir():
        edgevit.base(
            f"{BUILDER}:{function}", checkpoint=ensure_weights(function, device, cache), output="boxes", out=base
        )
    names = [(method, rate) for method in OPTIONS for rate in RATES]
    folders = {name: cache / f"detection-{function}-{name[0]}-{name[1]:g}" for name in names}
    folders = {name: folder for name, folder in folders.items() if folder.is_dir()}
    for folder in (base, *folders.values()):
        if not (folder / "export").is_dir():
            edgevit.export(folder)
    conditions = Conditions(threads=1, duration_s=1.0, warmup_seconds=0.2)
    runs = bench_in_turns([base, *folders.values()], conditions, rounds=8).runs
    compared = dict(zip(folders, decisive(compare_within(runs)), strict=True))
    ms = {"base_ms": runs[0].latency_ms}
    return {
        f"{function} {method} {rate:g}": {"ratio": c.ratio, "low": c.low, "high": c.high, **ms}
        for (method, rate), c in compared.items()
    }


def _interval(values: Sequence[float]) -> str:
    low, high = np.quantile(values, (0.025, 0.975))
    return f"{_percent(low)} to {_percent(high)}"


def _percent(score: float) -> str:
    return f"{round(100 * score, 1) + 0.0:.1f}"  # and no minus before zero


def _loss(base: Row, row: Row, ap: str = "ap", drawn: str = "drawn") -> str:
    """The points that a network loses against the base, with the interval over the same pictures drawn again."""
    if drawn not in row:
        return ""
    differences = [before - after for before, after in zip(base[drawn], row[drawn], strict=True)]
    return f"{_percent(base[ap] - row[ap])} ({_interval(differences)})"


def _faster(row: Row | None) -> str:
    if row is None:
        return ""
    interval = "" if row["low"] is None else f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"{row['ratio']:.2f}{interval}"


def section() -> str:
    """Format one question of RESULTS.md."""
    record = real.load(FILE)
    rows: list[Row] = sorted(record["rows"].values(), key=lambda r: (r["network"], r["rate"], ORDER.index(r["method"])))
    rows = [row for row in rows if row["network"] == "masks"]
    if not rows:
        return ""
    lines, first, latency = [], rows[0], record.get("latency", {})
    for row in rows:
        key = f"{row['network']} {row['method']} {row['rate']:g}"
        cells = [f"{row['rate']:g}", row["method"], *(_percent(row[name]) for name in ("ap", "ap50", "ap_masks"))]
        lost = ["", ""] if row is first else [_loss(first, row), _loss(first, row, "ap_masks", "drawn_masks")]
        lines.append([*cells, *lost, _faster(latency.get(key))])
    return screen(
        "What is lost in a detector?",
        f"Mask R-CNN on a pyramid of a small Swin ({SIZE} px, {first['macs'] / 1e6:.0f} M MACs of backbone and "
        f"pyramid), trained for {STEPS} steps of {BATCH} on {TRAIN} rendered pictures with six kinds of shapes: about "
        "ten minutes of one core, so that it has more to spare than one trained to the end, and learns more when it is "
        "trained on. forge and magnitude cut its backbone in closed form and read no annotation. nuwa trains masks of "
        f"neurons on the objects, {OPTIONS['nuwa']['purification_steps']} steps; vulcan trains the whole detector for "
        f"{TUNED} steps, as long as the fine-tuned base. MACs gone are of the backbone; at {PAPER} all but forge have "
        "the papers' shapes, as fusable ones do not reach it. COCO's average precision in percent on "
        f"{first['images']} other pictures with {first['objects']} objects; points of AP lost against the base have "
        f"the 95 % interval of {DRAWS} drawings of these pictures. Time is that of backbone and pyramid with ONNX "
        "Runtime on one thread, in turns with the base.",
        [
            table(
                ["MACs gone", "method", "AP", "AP at 0.5", "AP of masks", "points of AP lost", "of masks", "time"],
                lines,
            )
        ],
        "python -m benchmarks.product.detection",
        "photographs; a detector trained to the end, or several; a ViT; distillation after the cut.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("masks", "swin", "vit"), default="masks")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--methods", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--latency", action="store_true", help="measure the models that there are in turns, no others")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    record, function = real.load(FILE), options.network
    if options.latency:
        record["latency"] = record.get("latency", {}) | latency_rows(function, options.device, options.cache)
        real.store(FILE, record)
        return

    def add(key: str, row: Row) -> None:
        record["rows"][key] = row
        real.store(FILE, record)
        print(f"{key}: AP {_percent(row['ap'])}, at 0.5 {_percent(row['ap50'])}", flush=True)

    for name, make in (("base", base_row), ("base, fine-tuned", tuned_row)):
        if f"{function} {name}" not in record["rows"]:
            add(f"{function} {name}", make(function, options.device, options.cache))
    for rate in options.rates:
        for method in options.methods:
            if f"{function} {method} {rate:g}" in record["rows"]:
                continue
            try:
                row = derived_row(function, method, rate, options.device, options.cache)
            except BudgetError as error:
                print(f"{function} {method} {rate:g}: {error}", flush=True)
                continue
            add(f"{function} {method} {rate:g}", row)


if __name__ == "__main__":
    main()
