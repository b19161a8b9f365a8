"""What INT8 costs: linear layers rounded plainly, with rescaled inputs, with corrected weights, and with chosen layers.

    python -m benchmarks.product.int8                  # every case that records/int8.json does not have
    python -m benchmarks.product.int8 --cases real-0   # one case

The cases are the bases of 24 and 48 rendered classes and of photographs of clothes, DINOv2 ViT-S/14 with a fitted head
on drawn pictures (real.py), one for each fold, and models derived from them in closed form. Calibration is on training
images, the choice of layers on validation images and other training images. Counted are test images that one of fp32
and INT8 alone classifies correctly, by ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from benchmarks.bases import (
    CACHE,
    FASHION_ARGS,
    FINE_ARGS,
    RENDERED_ARGS,
    TIMM_NAME,
    ensure_fashion,
    ensure_fine,
    ensure_rendered,
)
from benchmarks.markdown import RECORDS, Row, load, screen, table
from benchmarks.product import real

RESULTS = RECORDS / "int8.json"
RATES = (0.5, 0.8)
SMALL = {
    "rendered": (ensure_rendered, RENDERED_ARGS),
    "finer": (ensure_fine, FINE_ARGS),
    "clothes": (ensure_fashion, FASHION_ARGS),
}
REAL = {"real": "drawings", "photos": "clothes"}  # tasks of real.py
FOLDS = {"real": real.FOLDS, "photos": 2}
CASES = (
    *(f"{name}{rate}" for name in SMALL for rate in ("", *(f"-{rate:g}" for rate in RATES))),
    *(
        f"{name}-{fold}{rate}"
        for name in REAL
        for rate in ("", *(f"-{rate:g}" for rate in RATES))
        for fold in range(FOLDS[name])
    ),
)
IMAGES, STRICT = 128, 0.003  # of calibration; the largest drop by which layers are chosen
DRAWS = 3  # of calibration images
KERNEL, OF_WEIGHT = re.compile(rb"function=\{ name="), "_weight_DequantizeLinear"
VARIANTS = {
    "rounded to the nearest": {"rescaling": False, "correcting": False},
    "+ rescaled inputs": {"rescaling": True, "correcting": False},
    "+ corrected weights": {"rescaling": True, "correcting": True},
}
CHOSEN = "+ chosen layers"
BASES = {
    "rendered": "24 rendered classes",
    "finer": "48 rendered classes",
    "clothes": "Fashion-MNIST",
    "real": "DINOv2 ViT-S/14 on drawn pictures, all five folds",
    "photos": "DINOv2 ViT-S/14 on photographs of clothes, two folds of real.py",
}
HEADS = (*((variant, "max") for variant in VARIANTS), (list(VARIANTS)[-1], "percentile"))
COMPILED = {  # columns of what TensorRT-RTX makes
    "layers in INT8": "{layers} of {linear}",
    "fused attentions": "{int8_fused} and {fp16_fused}",
    "kernels": "{int8_kernels} and {fp16_kernels}",
}


def model_of(case: str, folder: Path, cache: Path) -> tuple[Path, Path]:
    """Write the model folder of a case; return it and its images."""
    from edgevit import base, derive
    from edgevit.train.settings import Training

    kind, *numbers = case.split("-")
    if kind in REAL:
        name, data, rates = real.TIMM_NAME, real.ensure_fold(int(numbers[0]), cache, REAL[kind]), numbers[1:]
        options: dict[str, Any] = {
            "checkpoint": real.ensure_weights(real.SIZE, cache),
            "model_args": {"img_size": real.SIZE},
            "preprocessing": {"crop_pct": 1.0},
        }
    else:
        ensure, arguments = SMALL[kind]
        name, (data, weights), rates = TIMM_NAME, ensure(), numbers
        options = {
            "checkpoint": weights / "base.safetensors",
            "model_args": arguments,
            "preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"},
        }
    if rates:
        training = Training(steps=0)
        derive(
            name, rate=float(rates[0]), training=training, data=data, out=folder, cache=cache / "derivations", **options
        )
    else:
        base(name, data=data, out=folder, **options)
    return folder, data


def counted(reference: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, output: Any) -> Row:
    """How INT8 differs from fp32 on the test images."""
    before, after = (output.score(values, labels).bool() for values in (reference, outputs))
    return {
        "images": len(labels),
        "fp32": int(before.sum()),
        "lost": int((before & ~after).sum()),
        "gained": int((after & ~before).sum()),
        "kl": float(output.divergence(reference, outputs).mean()),
        "expected": expected_loss(reference, outputs),
    }


def expected_loss(reference: torch.Tensor, outputs: torch.Tensor) -> float:
    """The share of right answers that INT8 loses if each answer is right with the probability that fp32 gives it.

    Counts of few images scatter by answers that are nearly ties; this does not.
    """
    probabilities = reference.double().softmax(1)
    answers = [values.argmax(1, keepdim=True) for values in (reference, outputs)]
    before, after = (probabilities.gather(1, answer) for answer in answers)
    return float((before - after).mean())


def rows_of_case(case: str, folder: Path, cache: Path, methods: Sequence[str]) -> tuple[dict[str, Row], list[Path]]:
    """The rows of a case by variant and method, and its files in fp32 and INT8."""
    import onnx_ir as ir

    from edgevit.exporting.halving import halve
    from edgevit.exporting.images import open_judging
    from edgevit.exporting.int8.quantising import quantise
    from edgevit.exporting.int8.write import calibrated, predicted
    from edgevit.exporting.onnx import open_model_source
    from edgevit.exporting.request import Calibration, GateTolerances
    from edgevit.progress import Silent

    path, data = model_of(case, folder, cache)
    source = open_model_source(path)
    judging = open_judging(source.subject, data, progress=Silent(), check=("train", "validation", "test"))
    graph, pairs = source.graph("dynamic", 20), list(judging.split.batches(32))
    images, labels = [batch for batch, _ in pairs], torch.cat([truth for _, truth in pairs])
    reference = predicted(graph, images)
    training = [batch for batch, _ in judging.task.calibration(IMAGES).batches(16)]
    rows: dict[str, Row] = {}

    def add(variant: str, method: str, model: Any, share: float, **more: Any) -> None:
        row = counted(reference, predicted(model, images), labels, judging.output)
        rows[f"{case} {variant} {method}"] = {
            "case": case, "variant": variant, "method": method, "share": share, **row, **more
        }  # fmt: skip
        print(rows[f"{case} {variant} {method}"], flush=True)

    asked = Calibration(method=methods[0], images=IMAGES)
    model, made = calibrated(graph, "dynamic", judging, asked, GateTolerances(drop=STRICT), Silent())
    steps = [[step.floating, step.loss, step.loss_least, step.failure] for step in made.steps]
    add(CHOSEN, methods[0], model, made.share, steps=steps, floating=[x.name for x in made.layers if not x.int8])
    *variants, whole = ((variant, methods[0]) for variant in VARIANTS)
    if made.share == 1:  # all layers were chosen: the same model
        add(*whole, model, 1.0)
    else:
        variants.append(whole)
    for variant, method in [*variants, *((list(VARIANTS)[-1], method) for method in methods[1:])]:
        add(variant, method, quantise(graph.clone(), training, method, **VARIANTS[variant]).model, 1.0)
    train, draws = judging.task.train, range(1, DRAWS if case.split("-")[0] in SMALL else 1)
    kls = [rows[f"{case} {list(VARIANTS)[-1]} {methods[0]}"]["kl"]]
    for draw in draws:
        chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(draw))[:IMAGES].tolist()
        drawn = [batch for batch, _ in train.at(sorted(chosen)).batches(16)]
        outputs = predicted(quantise(graph.clone(), drawn, methods[0]).model, images)
        kls.append(float(judging.output.divergence(reference, outputs).mean()))
    if draws:
        rows[f"{case} {list(VARIANTS)[-1]} {methods[0]}"]["kls"] = kls
    files = [folder.parent / f"{case}.{name}.onnx" for name in ("fp32", "int8")]
    for file, written in zip(files, (graph, model), strict=True):
        ir.save(written, file)
        half = written.clone()
        halve(half.graph)
        ir.save(half, compiled_file(file))
    return rows, files


def compiled_file(file: Path) -> Path:
    """The same model with fp16 in place of fp32, which TensorRT-RTX compiles."""
    return file.with_suffix(".half.onnx")


def compiled(files: Sequence[Path]) -> dict[str, int]:
    """Fused attentions without and with INT8, kernels of both, and linear layers that run in INT8, by TensorRT-RTX.

    A layer runs in INT8 if the step of its weights is applied after its product: then a kernel names that Q/DQ node.
    """
    import onnx

    from edgevit.exporting.fusion import FUSED_KERNEL, build_plan

    plans = {name: bytes(build_plan(compiled_file(file))) for name, file in zip(("fp16", "int8"), files, strict=True)}
    names = [node.name for node in onnx.load(compiled_file(files[1])).graph.node]
    return {
        "linear": sum(name.endswith(OF_WEIGHT) for name in names),
        "layers": len(set(re.findall(rf"ONNX Layer: (\S+{OF_WEIGHT})\]".encode(), plans["int8"]))),
        **{f"{name}_fused": len(FUSED_KERNEL.findall(plan)) for name, plan in plans.items()},
        **{f"{name}_kernels": len(KERNEL.findall(plan)) for name, plan in plans.items()},
    }


def latency(files: Sequence[Path]) -> dict[str, Any]:
    """INT8 against fp32, in turns on one thread."""
    from edgevit import bench_in_turns
    from edgevit.board.comparison import compare_within, decisive
    from edgevit.board.request import Conditions

    conditions = Conditions(threads=1, samples=30, duration_s=1.0, warmup_seconds=0.2)
    runs = bench_in_turns(files, conditions, rounds=8).runs
    (found,) = decisive(compare_within(runs))
    return {"ratio": found.ratio, "low": found.low, "high": found.high, "ms": min(run.p50_ns() for run in runs) / 1e6}


def processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.processor()


def lost_points(rows: Sequence[Row]) -> tuple[float, float]:
    """Points lost on all images of these rows, and half of the 95 % interval of this paired difference."""
    images, lost, gained = (sum(row[name] for row in rows) for name in ("images", "lost", "gained"))
    variance = max(lost + gained - (lost - gained) ** 2 / images, 1.0)
    return 100 * (lost - gained) / images, 196 * sqrt(variance) / images


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("int8")
    if record is None:
        return ""
    rows = list(record["rows"].values())
    kinds = sorted({_kind(row) for row in rows})
    lines = []
    for kind in kinds:
        of_kind = [row for row in rows if _kind(row) == kind]
        columns = [[row for row in of_kind if (row["variant"], row["method"]) == head] for head in HEADS]
        timed = kind.replace("real", "real-0")
        row, plan = record["latency"].get(timed), record["compiled"].get(timed)
        lines.append([
            kind,
            str(max(sum(row["images"] for row in column) for column in columns)),
            *map(_cell, columns),
            *map(_beside, columns[-2:-1]),
            f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})" if row else "",
            *(text.format(**plan) if plan else "" for text in COMPILED.values()),
        ])  # fmt: skip
    shares = [row["share"] for row in rows if row["variant"] == CHOSEN]
    return screen(
        "What does INT8 cost?",
        "Linear layers in INT8 by Q/DQ, all else in fp32, through ONNX Runtime: points of top-1 lost against fp32 "
        "on the same test images with the 95 % interval of the paired difference; beside the corrected weights, which "
        "are what edgevit exports, points lost if each answer is right as often as fp32's probabilities say, which "
        "scatters less than counts of few images, and the KL divergence from the answers in fp32 in nats. Bases: "
        + "; ".join(f"`{name}`, {text}" for name, text in BASES.items() if name in kinds)
        + ". A number is the rate of a model derived in closed form. Ranges of inputs are their largest values or hold "
        f"99.99 % of them (`percentile`). edgevit chooses layers for a sure drop of at most {STRICT:.1%} on other "
        f"images: {min(shares):.0%} of the MACs of linear layers stay in INT8. Latency is INT8's of fp32's, in turns "
        f"on one thread of {record['processor']}. TensorRT-RTX for SM 8.6, a proxy of an Orin, compiles the same model "
        "in fp16; fused attentions and kernels with INT8, and without.",
        [
            table(
                [
                    "model",
                    "test images",
                    *(", ".join(head) for head in HEADS),
                    "corrected weights, max: expected, KL",
                    "latency",
                    *COMPILED,
                ],
                lines,
            )
        ],
        "python -m benchmarks.product.int8",
        "TensorRT's own arithmetic, and any board; models of many classes; other seeds of the bases.",
    )


def _kind(row: Row) -> str:
    """The column of a row: all folds of the real weights are one."""
    kind, *numbers = row["case"].split("-")
    return "-".join([kind, *(numbers[1:] if kind in REAL else numbers)])


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    points, half = lost_points(rows)
    return f"{points + 0.0:.1f} ({points - half:.1f} to {points + half:.1f})"


def _beside(rows: Sequence[Row]) -> str:
    """Expected points lost, where they were measured, and KL."""
    if not rows:
        return ""
    images = sum(row["images"] for row in rows)
    kl = sum(row["kl"] * row["images"] for row in rows) / images
    if not all("expected" in row for row in rows):
        return f"{kl:.4f}"
    return f"{sum(100 * row['expected'] * row['images'] for row in rows) / images:.2f}, {kl:.4f}"


def store(record: Mapping[str, Any]) -> None:
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--methods", nargs="+", default=["max", "percentile"])
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    for case in options.cases:
        record = load("int8") or {"schema": 1, "rows": {}, "latency": {}, "compiled": {}}
        if f"{case} {CHOSEN} {options.methods[0]}" in record["rows"]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            rows, files = rows_of_case(case, Path(scratch) / "model", options.cache, options.methods)
            record["rows"] |= rows
            if case.split("-")[0] in SMALL or case.startswith("real-0"):  # folds differ in the head alone
                record["compiled"][case] = compiled(files)
                record["latency"][case] = latency(files)
        store({**record, "processor": processor()})


if __name__ == "__main__":
    main()
