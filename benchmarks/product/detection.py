"""What cutting loses in a detector: Faster R-CNN on a pyramid of a small Swin, trained on rendered pictures.

    python -m benchmarks.product.detection                                # every case that records/detection.json lacks
    python -m benchmarks.product.detection --rates 0.5 --methods forge

The detector is that of `detection_network.py`, trained here on the annotated pictures of `benchmarks.scenes`. Its
backbone is cut in closed form on training pictures, whose annotations no derivation reads; average precision is on
other pictures, drawn again for intervals. `--network vit` is the same with a ViT.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torchvision.transforms.functional import to_tensor

from benchmarks import scenes
from benchmarks.bases import CACHE
from benchmarks.markdown import RECORDS, Row, screen, table
from benchmarks.product import detection_network, real
from benchmarks.product.saliency import by_magnitude

SIZE, TRAIN, VAL = detection_network.SIZE, 3000, 300
STEPS, BATCH, LR, SEED = 1100, 16, 6e-4, 1
# By norms an equal share of each block cannot take 0.7 of the MACs away.
RATES = {"forge": (0.3, 0.5, 0.7), "magnitude": (0.3, 0.5)}
DRAWS = 200  # of the pictures, for the interval
FILE = RECORDS / "detection.json"
BUILDER = Path(detection_network.__file__)


def ensure_pictures(cache: Path) -> Path:
    return scenes.ensure(cache, train=TRAIN, val=VAL, size=SIZE)


def _targets(source: Any, reference: Any, mirrored: bool) -> dict[str, torch.Tensor]:
    objects = source.objects(reference)
    boxes = torch.tensor([entry.box for entry in objects], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    if mirrored:
        boxes[:, [0, 2]] = SIZE - boxes[:, [2, 0]]
    return {"boxes": boxes, "labels": torch.tensor([entry.category for entry in objects], dtype=torch.int64)}


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
            of_picture = _targets(source, references[i], bool(mirror))
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


def ensure_derived(function: str, rate: float, device: str, cache: Path) -> Path:
    """Derive a detector, if the cache has none."""
    import edgevit
    from edgevit.train.settings import Training

    folder = cache / f"detection-{function}-{rate:g}"
    if not folder.is_dir():
        edgevit.derive(
            f"{BUILDER}:{function}", checkpoint=ensure_weights(function, device, cache), data=ensure_pictures(cache),
            output="boxes", rate=rate, out=folder, cache=cache / "derivations",
            training=Training(steps=0, seed=SEED, device=device),
        )  # fmt: skip
    return folder


def _scores(network: Any, cache: Path) -> Row:
    """The average precision of a network on pictures of the test part, with its interval."""
    from edgevit.data.sources.coco import CocoImages
    from edgevit.data.task import Split
    from edgevit.train.detections import find_objects

    source: Any = CocoImages(ensure_pictures(cache))
    references = tuple(source.references("test", source.class_names[0]))
    findings = find_objects(network, Split(source, references, (-1,) * len(references), {}), source.categories)
    whole, rng = findings.record(), np.random.default_rng(0)
    drawn = [findings.record(rng.integers(len(references), size=len(references)).tolist()).boxes for _ in range(DRAWS)]
    return {
        "images": whole.images,
        "objects": whole.objects,
        "ap": whole.boxes.ap,
        "ap50": whole.boxes.ap50,
        "per_class": whole.boxes.per_class,
        "drawn": [round(each.ap, 5) for each in drawn],  # AP on the same pictures for every network
    }


def _loaded(function: str, device: str, cache: Path) -> Any:
    from edgevit.network.checkpoint import open_network

    return open_network(f"{BUILDER}:{function}", checkpoint=ensure_weights(function, device, cache))


def base_row(function: str, device: str, cache: Path) -> Row:
    whole = _loaded(function, device, cache)
    return {"network": function, "method": "base", "rate": 0.0, "macs": whole.spec.macs, **_scores(whole, cache)}


def derived_row(function: str, method: str, rate: float, device: str, cache: Path) -> Row:
    """Judge what a cut detector finds."""
    import edgevit
    from edgevit.records.model_folder import ModelFolder

    folder = ensure_derived(function, rate, device, cache)
    record, model = ModelFolder(folder).derivation(), edgevit.load(folder)
    assert record is not None and record.data is not None and record.boxes is not None
    network = model if method == "forge" else by_magnitude(_loaded(function, device, cache), model.spec.macs)
    return {
        "network": function,
        "method": method,
        "rate": rate,
        "macs": network.geometry.macs(network.dims),
        "train_images": record.data.images.train,
        "error": record.boxes.error if method == "forge" else None,
        **_scores(network, cache),
        "seconds": sum(record.seconds.values()) if method == "forge" else None,
        "versions": record.versions,
    }


def _interval(values: Sequence[float]) -> str:
    low, high = np.quantile(values, (0.025, 0.975))
    return f"{_percent(low)} to {_percent(high)}"


def _percent(score: float) -> str:
    return f"{round(100 * score, 1) + 0.0:.1f}"  # and no minus before zero


def _loss(base: Row, row: Row) -> str:
    """The points that a network loses against the base, with the interval over the same pictures drawn again."""
    differences = [before - after for before, after in zip(base["drawn"], row["drawn"], strict=True)]
    return f"{_percent(base['ap'] - row['ap'])} ({_interval(differences)})"


def section() -> str:
    """Format one question of RESULTS.md."""
    record = real.load(FILE)
    order = ("base", *RATES)
    rows: list[Row] = sorted(record["rows"].values(), key=lambda r: (r["network"], r["rate"], order.index(r["method"])))
    if not rows:
        return ""
    lines, first = [], rows[0]
    for row in rows:
        cells = [f"{row['rate']:g}", row["method"], _percent(row["ap"]), _percent(row["ap50"])]
        lines.append([*cells, "" if row is first else _loss(first, row)])
    return screen(
        "What is lost in a detector?",
        f"Faster R-CNN on a pyramid of a small Swin ({SIZE} px, {first['macs'] / 1e6:.0f} M MACs), trained for {STEPS} "
        f"steps of {BATCH} on {TRAIN} rendered pictures with six kinds of shapes: ten minutes of one core, so that it "
        "has more to spare than one trained to the end. Its backbone is cut in closed form on training pictures, whose "
        "annotations are not read; nothing is trained after the cut, and MACs gone are of backbone and pyramid. "
        f"COCO's average precision of boxes in percent on {first['images']} other pictures with {first['objects']} "
        f"objects; points of AP lost against the base have the 95 % interval of {DRAWS} drawings of these pictures.",
        [table(["MACs gone", "method", "AP", "AP at 0.5", "points of AP lost"], lines)],
        "python -m benchmarks.product.detection",
        "photographs; a detector trained to the end, or several; a ViT; masks; distillation after the cut.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("swin", "vit"), default="swin")
    parser.add_argument("--rates", type=float, nargs="+", help="by default 0.3, 0.5 and for forge 0.7")
    parser.add_argument("--methods", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    record = real.load(FILE)

    def add(key: str, row: Row) -> None:
        record["rows"][key] = row
        real.store(FILE, record)
        print(f"{key}: AP {_percent(row['ap'])}, at 0.5 {_percent(row['ap50'])}", flush=True)

    function = options.network
    if f"{function} base" not in record["rows"]:
        add(f"{function} base", base_row(function, options.device, options.cache))
    for method in options.methods:
        for rate in options.rates or RATES[method]:
            if (key := f"{function} {method} {rate:g}") not in record["rows"]:
                add(key, derived_row(function, method, rate, options.device, options.cache))


if __name__ == "__main__":
    main()
