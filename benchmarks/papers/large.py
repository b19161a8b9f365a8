"""One derivation by each method from a ViT-L/16 of random weights: seconds, peak memory, export, fused attentions.

    python -m benchmarks.papers.large                        # what records/large.json does not have
    python -m benchmarks.papers.large --device cuda
    python -m benchmarks.papers.large --model deit_tiny_patch16_224 --methods forge --out /tmp/large.json

Few images of noise and few steps: what is shown is that a network of 307 million parameters goes through, and what it
takes, not accuracy. Each method runs in a process of its own, whose peak of RAM is recorded before and after the
export; on a GPU that of its memory, too. ViT-L is the largest network of Vulcan's and NuWa's tables.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.derivations import device_field
from benchmarks.markdown import RECORDS, Row, table, wrapped
from edgevit.agent.engine import BUILD_BYTES, BUILD_PER_FILE_BYTE
from edgevit.records.writing import write_whole

RESULTS = RECORDS / "large.json"
MODEL, RATE = "vit_large_patch16_224", 0.6
IMAGES = {"train": 14, "val": 1}  # of each of two classes
FEW = {"calibration_images": 4}
ENOUGH = {"calibration_images": 24}  # tokens for the moments of 4096 neurons
# Options and steps of each method; `supernet` is then sliced by skd.
METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "forge": ({**ENOUGH, "sensitivity_images": 4, "measured_images": 4}, 0),
    "nuwa": ({**ENOUGH, "purification": "none"}, 0),
    "vulcan": (FEW, 5),
    "heart": ({"calibration_images": 4, "probes": 1}, 0),
    "supernet": ({"proxy_images": 4, "points": 2, "updates": 1}, 2),
}


def make(method: str, model: str, device: str, folder: Path) -> Row:
    """Derive and export in this process."""
    import edgevit
    from edgevit.exporting.request import Tolerances
    from edgevit.records.model_folder import ModelFolder
    from edgevit.train.settings import Training

    options, steps = METHODS[method]
    training = Training(steps=steps, batch_size=2, device=device, evaluations=1, workers=0)
    shared: dict[str, Any] = {
        "checkpoint": folder / "base.safetensors", "data": folder / "data", "base_classes": ["a", "b"],
        "model_args": {"num_classes": 2}, "accept_weak_base": True, "accept_preprocessing": True, "training": training,
    }  # fmt: skip
    began = time.monotonic()
    if method == "supernet":
        net = edgevit.supernet(model, **shared, rate=RATE, options=options, out=folder / "net")
        seconds: dict[str, float] = dict(net.record.seconds)
        sliced = Training(steps=0, device=device)
        made = edgevit.derive(supernet=folder / "net", method="skd", rate=RATE, out=folder / "model", training=sliced)
    else:
        made = edgevit.derive(
            model, **shared, rate=RATE, method=method, options=options, shape="fused", out=folder / "model",
            cache=folder / "cache",
        )  # fmt: skip
        seconds = dict(made.record.seconds)
    row: Row = {"wall_s": round(time.monotonic() - began, 1), "stages_s": seconds, "peak_bytes": peak_bytes()}
    row["cpu_s"] = round(time.process_time(), 1)
    if device == "cuda":
        import torch

        row["gpu_peak_bytes"] = torch.cuda.max_memory_allocated()
    began = time.monotonic()
    # Random weights score tokens nearly alike, so that rounding changes which of them HEART drops.
    edgevit.export(made.folder, accuracy=False, tolerances=Tolerances(fp16_error=0.1))
    export, spec = ModelFolder(made.folder).export, made.model.spec
    file, fusion = export.onnx("fp16"), export.record().fusion
    row |= {"export_s": round(time.monotonic() - began, 1), "export_peak_bytes": peak_bytes()}
    row |= {"fp16_bytes": sum(f.stat().st_size for f in file.parent.glob(f"{file.name}*")), "macs": spec.macs}
    row |= {
        "attentions": sum(block.heads > 0 for block in spec.blocks),
        "fusable": sum(block.fusable for block in spec.blocks),
        "params": spec.params,
    }
    return {**row, "fused": fusion and fusion.fused, "compiler": fusion and fusion.compiler}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def write_base(model: str, folder: Path) -> None:
    """Write random weights and images of noise."""
    import numpy as np
    import timm
    import torch
    from PIL import Image
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(timm.create_model(model, num_classes=2).state_dict(), folder / "base.safetensors")
    random = np.random.default_rng(0)
    for part, count in IMAGES.items():
        for label in ("a", "b"):
            (folder / "data" / part / label).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 255, (224, 224, 3), np.uint8)
                Image.fromarray(pixels).save(folder / "data" / part / label / f"{number}.png")


def section(rows: Sequence[Row]) -> str:
    """Format the section of README.md."""
    if not rows:
        return ""
    lines = []
    for row in rows:
        fused = row["fusable"] if row["fused"] is None else row["fused"]
        gpu = f"{row['gpu_peak_bytes'] / 1e9:.1f}" if "gpu_peak_bytes" in row else ""
        name = f"{row['model']}, {row['method']}, {row['steps']} steps, {row['images']} images"
        gigabytes = [f"{row[peak] / 1e9:.1f}" for peak in ("peak_bytes", "export_peak_bytes")]
        size, of = f"{row['fp16_bytes'] / 1e6:.0f}", f"{fused} of {row['attentions']}"
        build = f"{(BUILD_BYTES + BUILD_PER_FILE_BYTE * row['fp16_bytes']) / 1e9:.1f}"
        walls = [f"{row[name]:.0f}" for name in ("wall_s", "export_s")]
        processor = f"{row['cpu_s']:.0f}" if "cpu_s" in row else ""
        where = row.get("device", "cpu")
        lines.append([name, where, walls[0], processor, gigabytes[0], gpu, walls[1], gigabytes[1], size, build, of])
    head = ["", "device", "s", "of the processor", "peak, GB", "of the GPU, GB", "export, s", "peak with it, GB",
            "fp16 file, MB", "engine build, GB", "fused"]  # fmt: skip
    text = (
        f"Random weights, a few images of noise, {RATE:g} of the MACs gone, on a machine that other programs shared: "
        "seconds by the clock and of the processor. `fused` are the attentions that TensorRT-RTX fuses, or where it is "
        "not installed those whose shapes it fuses by the rule that was measured. `engine build` is the estimate by "
        "which a board refuses to build from the fp16 file, beside the workspace; it was never measured on a board."
    )
    return f"## ViT-L/16 goes through\n\n{wrapped(text)}\n{table(head, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, help="a timm name of 224 px")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # method and folder: what a process of ours does
    options = parser.parse_args()
    if options.one:
        method, folder = options.one
        print(json.dumps(make(method, options.model, options.device, Path(folder))))
        return
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.out.is_file() else []
    for method in options.methods:
        of = {"model": options.model, "method": method, "steps": METHODS[method][1], **device_field(options.device)}
        of["images"] = 2 * IMAGES["train"]
        if any(of.items() <= row.items() and row.get("device") == of.get("device") for row in rows):
            continue
        with tempfile.TemporaryDirectory() as folder:
            write_base(options.model, Path(folder))
            command = [sys.executable, "-m", "benchmarks.papers.large", "--one", method, folder]
            command += ["--model", options.model, "--device", options.device]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"{method} did not end: exit status {done.returncode}", file=sys.stderr)
            continue
        rows.append({**of, **json.loads(done.stdout.splitlines()[-1])})
        write_whole(options.out, json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")
    print(section(rows))


if __name__ == "__main__":
    main()
