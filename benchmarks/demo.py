"""The whole of edgevit on a small real data set: `make demo`.

Trains a small timm ViT on scikit-learn's digits (8 x 8 pixels, 1797 images: a digits model is no ImageNet result),
then types the three commands a user types: derive for three of the ten classes at two rates, export, bench. Prints
one table.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

CLASSES = "3,8,9"
RATES = (0.6, 0.8)
TRAIN_ARGS = "--steps 150 --batch-size 64 --lr 3e-4 --evaluations 5 --device cpu"


def edgevit(command: str) -> None:
    """Show a command and run it as the user would."""
    print(f"\n$ edgevit {command}", flush=True)
    subprocess.run([sys.executable, "-m", "edgevit.cli", *shlex.split(command)], check=True)


def make_base(folder: Path) -> None:
    """Train the base on the images that derivations train and validate on, and write it as a model folder."""
    from base import DIGITS_ARGS, DIGITS_RECIPE, ensure_base, read_digits

    from edgevit.cli.console import Console
    from edgevit.data.task import open_task
    from edgevit.models.checkpoint import Model, open_base, save
    from edgevit.models.spec import ClassLabel

    preprocessing = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}
    # Splits are per class and by seed: the test images of the ten classes hold those of any three.
    plain = {**preprocessing, "input_size": [3, 32, 32], "crop_mode": "center"}
    task = open_task("digits", None, preprocessing=plain, base_outputs=10)
    train = [int(r) for r in (*task.train.references, *task.validation.references)]
    images = read_digits(train, [int(r) for r in task.test.references])
    trained = ensure_base(images, DIGITS_ARGS, DIGITS_RECIPE, progress=Console().progress)
    name = json.loads((trained / "base.json").read_text())["timm_name"]
    checkpoint = trained / "base.safetensors"
    base = open_base(name, checkpoint=checkpoint, model_args=DIGITS_ARGS, preprocessing=preprocessing)
    labels = tuple(ClassLabel(c.name, c.base_index) for c in task.classes)
    save(Model(base.network, replace(base.spec, head="subset", classes=labels)), folder, {})


def results_of(folder: Path) -> dict[str, Any]:
    """What one model's own files say of it."""
    exported = json.loads((folder / "export" / "export.json").read_text())
    fusion = exported.get("fusion")
    return {
        "spec": json.loads((folder / "model.json").read_text()),
        "megabytes": (folder / "model.safetensors").stat().st_size / 1e6,
        "fused": f"{fusion['fused']} of {fusion['blocks']}" if fusion else "not checked",
    }


def print_table(root: Path, names: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from edgevit.derive.budget import readable
    from edgevit.report.runs import load_runs

    runs = {run.label: run for run in load_runs(root / "runs.jsonl")}
    accuracy = json.loads((root / names[1] / "derivation.json").read_text())["accuracy"]
    images = accuracy["derived"]["images"]
    table = Table(
        "", f"top-1 on {images}", "MACs", "parameters", "file MB", "p50 ms", "speed-up", "fused blocks",
        title=f"digits {CLASSES} of ten",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    base_ns = runs["base"].p50_ns()

    def cost(name: str) -> list[str]:
        facts, p50 = results_of(root / name), runs[name].p50_ns()
        spec = facts["spec"]
        cells = [readable(spec["macs"]), readable(spec["params"]), f"{facts['megabytes']:.2f}", f"{p50 / 1e6:.2f}"]
        return [*cells, f"{base_ns / p50:.2f} x", facts["fused"]]

    for title, key in (
        ("base, full head", "base_full_head"),
        ("base, restricted to the classes", "base_restricted"),
        ("base, fine-tuned on them", "base_finetuned"),
    ):
        table.add_row(title, f"{100 * accuracy[key]['top1']:.1f} %", *cost("base"))
    table.add_section()
    for name in names[1:]:
        record = json.loads((root / name / "derivation.json").read_text())
        derived = f"{100 * record['accuracy']['derived']['top1']:.1f} %"
        table.add_row(f"derived, {record['budget']['asked']}", derived, *cost(name))
    print()
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(
        f"One image is {100 / images:.1f} %. Latency: ONNX Runtime, fp32, batch 1, this machine's CPU. Fused blocks: "
        f"TensorRT-RTX for SM 8.6,\na proxy for Orin and not Orin. Everything is in {root}/; try: edgevit show {root}/"
        f"{names[1]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="replaced if it is there")
    root: Path = parser.parse_args().out
    started = time.monotonic()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    make_base(root / "base")
    names = ["base", *(f"digits-{rate}" for rate in RATES)]
    for i, (name, rate) in enumerate(zip(names[1:], RATES, strict=True)):
        third = "--finetune-base" if i == 0 else ""
        edgevit(
            f"derive {root}/base --data digits --classes {CLASSES} --rate {rate} {TRAIN_ARGS} {third} "
            f"--out {root}/{name}"
        )
    for name in names:
        edgevit(f"export {root}/{name}" + (" --data digits" if name == "base" else ""))
    for name in names:
        edgevit(f"bench {root}/{name} --batch 1 --output {root}/runs.jsonl")
    print_table(root, names)
    print(f"{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
