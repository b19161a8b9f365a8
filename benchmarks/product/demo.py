"""The whole of edgevit on a small data set that tells models apart: `make demo`.

Renders images of four classes that are easily confused (images.py), takes a ViT of 24 such classes (records/bases),
then types what a user types: a base, a sweep over rates, the chosen model distilled, exported, and measured in turns.
Ends with one table, the picture, and the commands for one's own data.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import images
from benchmarks.bases import BASES, CACHE, RENDERED_ARGS, TIMM_NAME
from edgevit.records.derivation import AccuracyRecord, DerivationRecord
from edgevit.records.model_folder import ModelFolder

TARGETS = ("checkered_cross", "checkered_star", "dotted_cross", "dotted_star")
RATES = "0.8,0.95,0.98"
DISTIL = "--steps 60 --batch-size 48 --lr 3e-4 --evaluations 4 --finetune-base"


def edgevit(command: str) -> None:
    """Show a command and run it as the user would."""
    print(f"\n$ edgevit {command}", flush=True)
    subprocess.run([sys.executable, "-m", "edgevit", *shlex.split(command)], check=True)


def _derivation(folder: Path) -> DerivationRecord:
    record = ModelFolder(folder).derivation()
    assert record is not None
    return record


def table_rows(sweep: Path, distilled: Path, runs: Path) -> list[dict[str, Any]]:
    """Read the rows of the table from the models' files and the runs; accuracy is on the test part."""
    from edgevit.board.comparison import compare_within, decisive, load_runs
    from edgevit.jobs.sweep.record import read_sweep

    folders = [sweep / point.folder for point in read_sweep(sweep).derived]
    ratios = {c.after.split()[0]: c for c in decisive(compare_within(load_runs(runs)))}
    baselines = _derivation(distilled).accuracy

    def row(title: str, folder: Path, accuracy: AccuracyRecord | None) -> dict[str, Any]:
        assert accuracy is not None
        files, comparison = ModelFolder(folder), ratios.get(folder.name)
        spec = files.spec()
        return {
            "title": title,
            "top1": accuracy.top1,
            "images": accuracy.images,
            "macs": spec.macs,
            "params": spec.params,
            "file_bytes": files.weights_file.stat().st_size,
            "ratio": comparison and [comparison.ratio, comparison.low, comparison.high],
        }

    rows = [
        row("base, full head", sweep / "base", baselines.base_full_head),
        row("base, restricted to the classes", sweep / "base", baselines.base_restricted),
    ]
    if baselines.base_finetuned is not None:
        rows.append({**row("base, fine-tuned on them", sweep / "base", baselines.base_finetuned), "ratio": None})
    for folder in (*folders, distilled):
        record = _derivation(folder)
        kind = "distilled" if folder == distilled else "closed form"
        rows.append(row(f"{record.budget.option}, {kind}", folder, record.accuracy.derived))
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row for README and terminal."""
    from edgevit.data.shares import share_text
    from edgevit.text import format_count

    ratio = ""
    if row["ratio"] is not None:
        middle, low, high = row["ratio"]
        ratio = f"{middle:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")
    return [
        row["title"],
        share_text(row["top1"], row["images"]),
        format_count(row["macs"]),
        format_count(row["params"]),
        f"{row['file_bytes'] / 1e6:.2f}",
        ratio,
    ]


def print_table(rows: list[dict[str, Any]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    top1 = f"top-1 on {rows[0]['images']} test images (95 % interval)"
    head = ("", top1, "MACs", "parameters", "file MB", "latency, of the base's")
    table = Table(*head, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    baselines = sum(row["title"].startswith("base") for row in rows)
    for i, row in enumerate(rows):
        table.add_row(*cells(row), end_section=i in (baselines - 1, len(rows) - 2))
    print()
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def processor_s() -> float:
    """Return the processor time of this program and its children."""
    used = [resource.getrusage(process) for process in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def compare_models(task: str, rates: str, distil: str, root: Path) -> list[dict[str, Any]]:
    """Sweep over rates, distil the chosen model, export it, measure in turns, and write the page; return the table."""
    from edgevit.jobs.sweep.record import read_sweep

    sweep, runs = root / "sweep", root / "runs.jsonl"
    edgevit(f"sweep {task} --rates {rates} --out {sweep}")
    swept = read_sweep(sweep)
    chosen = swept.chosen() or swept.derived[0]
    distilled = sweep / f"{chosen.folder}-distilled"
    edgevit(f"derive {task} --rate {chosen.rate} {distil} --out {distilled}")
    edgevit(f"export {distilled}")
    smallest = sweep / swept.derived[-1].folder
    edgevit(f"bench {sweep}/base {distilled} {smallest} --repeat 8 --duration 0.5 --output {runs}")
    edgevit(f"show {sweep}")
    edgevit(f"report {sweep} {runs} -o {root}/report.html")
    return table_rows(sweep, distilled, runs)


def write_record(root: Path, rows: list[dict[str, Any]], started: float) -> str:
    """Write demo.json, and return how long the demo took."""
    seconds = {"seconds": round(time.monotonic() - started), "processor_seconds": round(processor_s())}
    (root / "demo.json").write_text(json.dumps({"schema": 2, **seconds, "rows": rows}, indent=1) + "\n")
    return f"{seconds['seconds']} s in all, {seconds['processor_seconds']} s of processor time"


def new_root(description: str | None, default: Path) -> Path:
    """Read --out, and empty the folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default, help="replaced if it is there")
    root: Path = parser.parse_args().out
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    return root


def main() -> None:
    root, started = new_root(__doc__, Path("demo")), time.monotonic()
    from edgevit.cli.console import Console

    data = images.ensure(CACHE, classes=TARGETS, train_per_class=300, val_per_class=150, progress=Console().progress)
    base, outputs = root / "base", root / "classes.txt"
    outputs.write_text("\n".join(images.CLASSES) + "\n")
    opened = " ".join(f"--model-arg {name}={value}" for name, value in RENDERED_ARGS.items())
    opened += f" --base-classes {outputs} --crop-pct 1 --mean 0.5 --std 0.5 --interpolation bicubic"
    checkpoint = BASES / "rendered" / "base.safetensors"
    edgevit(f"base {TIMM_NAME} --checkpoint {checkpoint} {opened} --data {data} --out {base}")
    rows = compare_models(f"{base} --data {data} --classes {','.join(TARGETS)}", RATES, DISTIL, root)
    took = write_record(root, rows, started)
    print_table(rows, f"{', '.join(TARGETS)}: {len(TARGETS)} of {len(images.CLASSES)} classes")
    print(
        f"Everything is in {root}/; a browser shows {root}/report.html. On your images, a folder for each class:\n\n"
        "  edgevit sweep deit_small_patch16_224 --pretrained --data IMAGES --classes a,b,c --out runs/s\n"
        "  edgevit derive ...                          # which the sweep names: the chosen model, distilled\n"
        "  edgevit export runs/s/r0.8-distilled --trt --board jetson@orin-nx\n\n"
        f"{took}"
    )


if __name__ == "__main__":
    main()
