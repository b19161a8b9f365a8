"""Blocks taken out behind Vulcan, distillation and fp16: accuracy, size and latency (Vulcan's Table 18).

    python -m benchmarks.papers.depth --base demo             # the row of the demo's base in records/depth.json
    python -m benchmarks.papers.depth --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --tasks 25 \
        --steps 5000

Four rows: the base restricted to the sub-task; Vulcan at `--rate`; that model without `--blocks` of its blocks
(`--remove-blocks`), distilled; and the same in fp16. Each block is the one without which accuracy on up to 5000
training images is highest, found anew after each. The teacher is the base, fine-tuned on the sub-task, of both
trainings. Latency is that of ONNX Runtime on this machine, all rows in turns; a processor computes fp16 in fp32 and is
slower with it, which says nothing of a GPU. MB are those of the ONNX file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import edgevit
from benchmarks.derivations import BATCH, LR, SEEDS, STEPS, device_field
from benchmarks.markdown import Row, commits_text, grouped, percent, points, seeds_text, table, wrapped
from benchmarks.sources import Selection, add_source, load_rows, record_file, refusals, select, store_rows  # fmt: skip
from edgevit.board.comparison import make_row
from edgevit.records.model_folder import ModelFolder
from edgevit.train.settings import Training

BASE, PRUNED, SHORTER, HALF = "base, restricted", "vulcan", "without blocks, distilled", "the same in fp16"
PUBLISHED = {  # T1 on an Orin NX: top-1, G MACs, M parameters, MB, ms
    BASE: (None, 17.57, 86.57, 330.23, 45.45), PRUNED: (92.24, 3.49, 18.21, 69.48, 15.04),
    SHORTER: (92.32, 3.06, 15.79, 60.24, 13.16), HALF: (None, 3.06, 15.79, 30.12, 11.35),
}  # fmt: skip


def four_rows(
    selection: Selection, classes: Sequence[str], seed: int, options: argparse.Namespace, folder: Path, progress: Any
) -> list[Row]:
    """Derive, export and measure; one row for each model."""
    place, files = selection.place, dict[str, Path]()
    training = Training(
        steps=options.steps, batch_size=BATCH, lr=LR, seed=seed, device=place.device, evaluations=5, early_stop=False,
        teacher="finetuned",
    )  # fmt: skip
    shared: dict[str, Any] = {
        **place.start, "data": place.data, "classes": list(classes), "rate": options.rate, "method": "vulcan",
        "shape": "paper", "training": training, "cache": place.cache / "shared" / "depth", "progress": progress,
    }  # fmt: skip
    rows: list[Row] = []
    for kind, more in ((PRUNED, {}), (SHORTER, {"remove_blocks": options.blocks})):
        made = edgevit.derive(**shared, **more, out=folder / kind.partition(",")[0])
        edgevit.export(made.folder, fp16=kind == SHORTER, accuracy=False)
        files[kind] = ModelFolder(made.folder).export.onnx("fp32")
        spec, accuracy = made.model.spec, made.record.accuracy
        assert accuracy.derived and accuracy.base_restricted
        if not rows:
            start = {name: value for name, value in place.start.items() if name != "base"}
            edgevit.base(place.start["base"], **start, classes=list(classes), out=folder / "base", data=place.data)
            edgevit.export(folder / "base", accuracy=False)
            files[BASE] = ModelFolder(folder / "base").export.onnx("fp32")
            rows.append({"kind": BASE, "top1": accuracy.base_restricted.top1, "macs": spec.base.macs})
            rows[0] |= {"params": spec.base.params, "images": accuracy.derived.images}
        rows.append({"kind": kind, "top1": accuracy.derived.top1, "macs": spec.macs, "params": spec.params})
        rows[-1] |= {"images": accuracy.derived.images, "versions": made.record.versions}
        if kind == SHORTER:
            rows[-1]["blocks_removed"] = made.record.facts.more["blocks_removed"]
            files[HALF] = ModelFolder(made.folder).export.onnx("fp16")
            half = edgevit.evaluate(files[HALF], data=place.data, seed=seed)
            rows.append({**rows[-1], "kind": HALF, "top1": half.top1})
    of_kind = [row["kind"] for row in rows]
    conditions = edgevit.Conditions(threads=1, samples=50, duration_s=0.5)
    runs = edgevit.bench_in_turns(
        [files[kind] for kind in of_kind], conditions, labels=of_kind, rounds=options.rounds
    ).runs
    for row in rows:
        mine = [make_row(run).p50_ms for run in runs if run.label == row["kind"]]
        row |= {"p50_ms": median(mine), "file_mb": files[row["kind"]].stat().st_size / 2**20}
    return rows


def section(rows: Sequence[Row]) -> str:
    """Format the section of README.md."""
    if not rows:
        return ""
    parts = ["## Blocks taken out behind Vulcan, distillation and fp16 (its Table 18)\n"]
    for (source, task, steps), group in grouped(rows, "source", "task", "steps").items():
        blocks = [row["blocks_removed"] for row in group if row["kind"] == SHORTER]
        lines = []
        for (kind,), of in grouped(group, "kind").items():
            first, published = of[0], PUBLISHED[kind]
            whole = [row["top1"] for row in group if row["kind"] == PRUNED]
            change = [row["top1"] - before for row, before in zip(of, whole, strict=True)] if kind == SHORTER else []
            figures = (f"{first['macs'] / 1e6:.1f}", f"{first['params'] / 1e6:.2f}", f"{first['file_mb']:.2f}")
            of_paper = "; ".join("" if value is None else f"{value:g}" for value in published)
            ms = f"{median(row['p50_ms'] for row in of):.2f}"
            lines.append([kind, percent([row["top1"] for row in of]), points(change), *figures, ms, of_paper])
        parts.append(
            wrapped(
                f"{source}, {task} classes, {group[0]['rate']:g} of the MACs gone by Vulcan, {seeds_text(group)}, "
                f"{steps} steps of {BATCH} images for each training, {group[0]['images']} test images; blocks removed "
                f"by seed: {'; '.join(', '.join(map(str, one)) for one in blocks)}. MB of the ONNX file; ms of ONNX "
                "Runtime, one thread, in turns, on a shared machine. MACs, parameters and MB of the first seed. "
                "Published: top-1, G MACs, M parameters, MB and ms on an Orin NX. "
                f"{commits_text(row for row in group if 'versions' in row)}"
            )
        )
        titles = ["", "top-1, %", "points to Vulcan", "M MACs", "M parameters", "MB", "ms", "published"]
        parts.append(table(titles, lines))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser, ("demo", "fashion", "rendered", "fine"))
    parser.add_argument("--rate", type=float, default=0.8)
    parser.add_argument("--blocks", type=int, default=3, help="how many blocks go; of 12 in the paper")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, file = Console().progress, record_file(options, "depth", ("demo", "fashion", "rendered", "fine"))
    rows = load_rows(file)
    with refusals():
        selection = select(options, progress)
        asked = {"rate": options.rate, "blocks": options.blocks, "steps": options.steps}
        for classes in selection.source.sub_tasks(options.tasks or selection.sizes[:1], options.classes):
            for seed in SEEDS[: options.seeds]:
                of = {"source": selection.source.label, "base_sha256": selection.place.base_sha256, **asked}
                of |= {"task": len(classes), "classes": classes, "seed": seed, **device_field(options.device)}
                if any(of.items() <= row.items() for row in rows):
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    new = four_rows(selection, classes, seed, options, Path(scratch), progress)
                rows += [{**of, **row} for row in new]
                store_rows(file, rows)
    if options.data is not None:
        print(section(rows))


if __name__ == "__main__":
    main()
