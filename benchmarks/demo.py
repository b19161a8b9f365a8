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
    from edgevit.folder.model import ClassLabel
    from edgevit.models.checkpoint import Model, open_base, save

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


def table_rows(root: Path, names: list[str]) -> list[dict[str, Any]]:
    """Read what the models' own files, and the runs, say of each."""
    from edgevit.report.runs import load_runs

    p50_ns = {run.label: run.p50_ns() for run in load_runs(root / "runs.jsonl")}
    derivations = {name: json.loads((root / name / "derivation.json").read_text()) for name in names[1:]}
    accuracy = derivations[names[1]]["accuracy"]

    def row(title: str, name: str, taken: dict[str, Any]) -> dict[str, Any]:
        spec = json.loads((root / name / "model.json").read_text())
        fusion = json.loads((root / name / "export" / "export.json").read_text()).get("fusion")
        return {
            "title": title,
            "top1": taken["top1"],
            "images": taken["images"],
            "macs": spec["macs"],
            "params": spec["params"],
            "file_bytes": (root / name / "model.safetensors").stat().st_size,
            "p50_ns": p50_ns[name],
            "speed_up": p50_ns["base"] / p50_ns[name],
            "fused": f"{fusion['fused']} of {fusion['blocks']}" if fusion else "not checked",
        }

    rows = [
        row("base, full head", "base", accuracy["base_full_head"]),
        row("base, restricted to the classes", "base", accuracy["base_restricted"]),
        row("base, fine-tuned on them", "base", accuracy["base_finetuned"]),
    ]
    for name, record in derivations.items():
        rows.append(row(f"derived, {record['budget']['asked']}", name, record["accuracy"]["derived"]))
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    """A row as README and terminal show it."""
    from edgevit.derive.budget import readable

    return [
        row["title"],
        f"{100 * row['top1']:.1f} %",
        readable(row["macs"]),
        readable(row["params"]),
        f"{row['file_bytes'] / 1e6:.2f}",
        f"{row['p50_ns'] / 1e6:.2f}",
        f"{row['speed_up']:.2f} x",
        row["fused"],
    ]


def print_table(rows: list[dict[str, Any]], root: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    images = rows[0]["images"]
    head = ("", f"top-1 on {images}", "MACs", "parameters", "file MB", "p50 ms", "speed-up", "fused blocks")
    table = Table(*head, title=f"digits {CLASSES} of ten")
    for column in table.columns[1:]:
        column.justify = "right"
    for i, row in enumerate(rows):
        table.add_row(*cells(row), end_section=i == 2)
    print()
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(
        f"One image is {100 / images:.1f} %. Latency: ONNX Runtime, fp32, batch 1, this machine's CPU. Fused blocks: "
        f"TensorRT-RTX for SM 8.6,\na proxy for Orin and not Orin. Everything is in {root}/; try: edgevit show {root}/"
        f"digits-{RATES[0]}"
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
    rows = table_rows(root, names)
    seconds = time.monotonic() - started
    (root / "demo.json").write_text(json.dumps({"schema": 1, "seconds": round(seconds), "rows": rows}, indent=1) + "\n")
    print_table(rows, root)
    print(f"{seconds:.0f} s in all")


if __name__ == "__main__":
    main()
