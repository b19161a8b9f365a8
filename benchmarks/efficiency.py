"""The papers' tables of latency and memory, measured again: every method's model beside its base, in turns.

    python benchmarks/efficiency.py methods                          # Vulcan's Tables 2 and 10
    python benchmarks/efficiency.py ratios                           # HEART-ViT's Tables 4 and 5
    python benchmarks/efficiency.py methods --model deit_tiny --rates 0.8 --rounds 6
    python benchmarks/efficiency.py methods --provider cuda          # this machine's GPU, in fp32; --precision fp16
    python benchmarks/efficiency.py methods --board jetson@orin-nx   # engines, over SSH

On this machine through ONNX Runtime, on a board as engines; a row says where it ran. Weights are random and nothing is
trained: what a method leaves has the sizes that its rule gives such weights, at equal MACs, and latency follows sizes.
Shape `paper`, as published; forge is `fused`.

Of Vulcan's other tables of latency:
- Table 5 sets INT8, which edgevit has not, and weights set to zero in place beside three dense models. Zeros leave
  every size as it is: that model is its base once more, and the dense ones are the rows `base` of each `--model`.
- Table 7 gives the heads of one block unequal widths. A block of edgevit has one QK and one VO width, and its attention
  is one product over all heads: no plan says it, and no network would run it.
- Table 18 begins with the base and Vulcan at 0.8, which are rows here. Its third row takes three blocks out of the
  latter by their accuracy, one after the other, as no method here does; the fourth is fp16: `--precision`, and then of
  all rows, the base among them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meet import MODELS, Start, start_from
from tables import table

import edgevit
from edgevit.agent.records import Run
from edgevit.agent.runners.onnxruntime import PROVIDERS
from edgevit.engines.options import EngineOptions
from edgevit.folder.writing import write_whole
from edgevit.report.runs import compare_within, decisive, make_row
from edgevit.train.settings import Training

RESULTS = Path(__file__).parent / "results" / "efficiency.json"
RATES = (0.2, 0.4, 0.6, 0.8)
RATIOS = ((0.2, 0.2), (0.4, 0.4), (0.5, 0.5), (0.6, 0.6), (0.8, 0.8), (0.2, 0.8), (0.4, 0.6), (0.6, 0.4), (0.8, 0.2))
ROUNDS = 8
IMAGES = {"calibration_images": 16}
METHODS: dict[
    str, tuple[str, dict[str, Any]]
] = {  # shape and options; few images, as random weights have nothing to lose
    "random": ("paper", {}),
    "nvit": ("paper", IMAGES),
    "xpruner": ("paper", {**IMAGES, "mask_passes": 1}),
    "dcvit": ("paper", IMAGES),
    "mdp": ("paper", IMAGES),
    "vulcan": ("paper", IMAGES),
    "forge": ("fused", {"calibration_images": 48, "sensitivity_images": 16}),
}
# Vulcan's Table 10, Orin NX, batch 1: latency in ms and memory in GB by rate, in the order of METHODS.
_DENSE = (45.45, 0.34)
_OF_METHODS = {
    0.2: ((42.97, 37.49, 37.49, 36.98, 33.78, 36.84), (0.28, 0.27, 0.28, 0.28, 0.25, 0.27)),
    0.4: ((34.24, 29.25, 29.54, 28.62, 26.30, 29.73), (0.21, 0.21, 0.21, 0.21, 0.19, 0.21)),
    0.6: ((26.74, 24.55, 21.79, 20.04, 19.35, 21.81), (0.15, 0.14, 0.15, 0.15, 0.13, 0.15)),
    0.8: ((15.19, 19.13, 19.76, 14.76, 18.30, 15.06), (0.08, 0.08, 0.09, 0.08, 0.08, 0.08)),
}
# HEART-ViT, AGX Orin, DeiT-B/16 before fine-tuning: latency in ms, of the dense model and in the order of RATIOS.
_OF_RATIOS = {
    "Table 4, ImageNet-1k": (23.78, (18.12, 14.86, 16.20, 15.56, 14.76, 18.31, 14.45, 15.22, 15.40)),
    "Table 5, ImageNet-100": (23.05, (18.04, 14.06, 17.02, 15.49, 14.73, 19.38, 14.41, 16.67, 14.84)),
}
# Shares of the dense model's, by part and column: a row of `methods` is (name, rate), one of `ratios` ("heart", t, h).
PUBLISHED: dict[str, dict[str, dict[tuple[str | float, ...], float]]] = {
    "methods": {
        f"Table 10, {what}": {
            (method, rate): value / _DENSE[i]
            for rate, columns in _OF_METHODS.items()
            for method, value in zip(METHODS, columns[i], strict=False)  # forge is not in it
        }
        for i, what in enumerate(("latency", "memory"))
    },
    "ratios": {
        title: {("heart", *pair): ms / dense for pair, ms in zip(RATIOS, figures, strict=True)}
        for title, (dense, figures) in _OF_RATIOS.items()
    },
}


@dataclass(frozen=True)
class Wanted:
    """One row: a model to derive and measure."""

    name: str  # of the method
    of: tuple[float, ...]  # its rate; or its ratios of tokens and heads
    given: dict[str, Any]  # options of `edgevit.derive`


def wanted(part: str, rates: Sequence[float], methods: Sequence[str]) -> Iterator[Wanted]:
    """The rows of a part."""
    if part == "ratios":
        for tokens, heads in RATIOS:
            few = {"calibration_images": 4, "probes": 1, "selection": "percentile"}
            options = {**few, "token_ratio": tokens, "head_ratio": heads}
            yield Wanted("heart", (tokens, heads), {"rate": 0.01, "shape": "paper", "options": options})
        return
    for rate in rates:
        for name in methods:
            shape, options = METHODS[name]
            yield Wanted(name, (rate,), {"rate": rate, "shape": shape, "options": options})


def measured(start: Start, rows: Sequence[Wanted], given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Derive the models, then measure them and their base in one session."""
    opened: dict[str, Any] = {"checkpoint": start.checkpoint, "model_args": start.model_args, **start.more}
    edgevit.base(start.name, out=folder / "base", data=start.data, **opened)
    made: dict[str, Wanted] = {}
    for row in rows:
        out = folder / "-".join([row.name, *map(str, row.of)])
        if out.name in made:
            continue
        try:
            edgevit.derive(
                start.name, out=out, data=start.data, method=row.name, accept_weak_base=True, cache=folder / "cache",
                training=Training(steps=0, device="cpu", batch_size=16), **opened, **row.given,
            )  # fmt: skip
        except edgevit.errors.BudgetError as error:
            print(f"{out.name}: {error}", flush=True)
            continue
        made[out.name] = row
    folders = [folder / name for name in ("base", *made)]
    for model in folders:
        _ready(model, given)
    how = edgevit.Conditions(
        batches=(given.batch,), threads=given.threads, samples=100, duration_s=1.0,
        provider=given.provider, precision=given.precision,
    )  # fmt: skip
    runs = edgevit.bench_in_turns(folders, how, rounds=given.rounds, board=given.board).runs
    # A comparison names a model by its label and precision.
    ratios = {one.after.partition(" ")[0]: one for one in decisive(compare_within(runs))}
    for model in folders:
        spec, own = edgevit.load(model).spec, [make_row(run) for run in runs if run.label == model.name]
        row_of = made.get(model.name)
        ratio = ratios[model.name] if row_of else None
        yield {
            "part": given.part, "model": given.model, "method": row_of.name if row_of else "base",
            "of": list(row_of.of) if row_of else [], "macs": spec.macs, "params": spec.params,
            "file_bytes": min(file.stat().st_size for file in (model / "export").glob("*.onnx")),
            "p50_ms": _middle([one.p50_ms for one in own]), "images_per_s": _middle([one.images_per_s for one in own]),
            "memory_mib": _middle([one.memory_peak_mib for one in own if one.memory_peak_mib is not None]),
            "ratio": 1.0 if ratio is None else ratio.ratio,
            "interval": None if ratio is None else [ratio.low, ratio.high],
            "figure": None if ratio is None else ratio.figure, "batch": given.batch,
            "where": _where(runs[0], given.board),
            "load_average": os.getloadavg()[0],
        }  # fmt: skip


def _where(run: Run, board: str | None) -> str:
    """Which machine, and what of it computed: sessions of one place take one another's place."""
    on_cpu = (run.provider or "").startswith("CPU")
    chip = next((run.environment[n] for n in (("cpu",) if on_cpu else ("module", "gpu")) if n in run.environment), "")
    return ", ".join(filter(None, [f"{board or 'this machine'}: {run.runner}", run.provider, run.precision, chip]))


def _ready(model: Path, given: argparse.Namespace) -> None:
    if given.board is None:
        edgevit.export(model, fp16=given.precision == "fp16", accuracy=False)
        return
    edgevit.export(model, trt=True, board=given.board, engine=EngineOptions(batches=(1, given.batch, given.batch)))


def _middle(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


TITLES = {"methods": "Latency of what each method leaves", "ratios": "Latency by HEART's ratios of tokens and heads"}
SOURCES = {"methods": "Vulcan, Table 10, Orin NX", "ratios": "HEART-ViT, AGX Orin, before fine-tuning"}


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None:
        return ""
    found = []
    for part, title in TITLES.items():
        for model, where in sorted({(row["model"], row["where"]) for row in data["rows"] if row["part"] == part}):
            rows = [r for r in data["rows"] if (r["part"], r["model"], r["where"]) == (part, model, where)]
            head = (
                f"{model}, random weights, batch {rows[0]['batch']}, on {where}; in turns, load average up to "
                f"{max(row['load_average'] for row in rows):.1f}. Latency as a share of the base's with its 95 % "
                f"interval; memory is the process's peak of RAM. Published: {SOURCES[part]}, of a DeiT-Base, whatever "
                "runtime and precision it was, as shares of its dense model."
            )
            lines = [_line(row, rows[0], PUBLISHED[part].values()) for row in rows]
            titles = ["", "MACs", "latency", "interval", "images/s", "memory, MiB", "file", *PUBLISHED[part]]
            found.append(f"## {title}\n\n{chr(10).join(textwrap.wrap(head, 118))}\n\n" + table(titles, lines))
    return "\n".join(found)


def _line(row: dict[str, Any], base: dict[str, Any], published: Iterable[dict[Any, float]]) -> list[str]:
    ends = row["interval"] or [None, None]
    found = [of.get((row["method"], *row["of"])) for of in published]
    return [
        " ".join([row["method"], "/".join(f"{value:g}" for value in row["of"])]).strip(),
        f"{row['macs'] / base['macs']:.3f}",
        f"{row['ratio']:.3f}",
        f"{ends[0]:.3f} to {ends[1]:.3f}" if None not in ends else "",
        f"{row['images_per_s']:.0f}",
        "" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}",
        f"{row['file_bytes'] / base['file_bytes']:.3f}",
        *("" if share is None else f"{share:.3f}" for share in found),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=TITLES)
    parser.add_argument("--model", choices=(*MODELS, "demo"), default="deit_base")
    parser.add_argument("--rates", type=float, nargs="*", default=list(RATES))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--board")
    where.add_argument("--provider", choices=PROVIDERS, help="what ONNX Runtime computes on, on this machine")
    parser.add_argument("--precision", choices=("fp32", "fp16"), help="of ONNX files; fp32, unless given")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.board is None:
        given.precision = given.precision or "fp32"
    elif given.precision is not None:
        parser.error("--precision is of ONNX files; engines are fp16, or what the board's gate asks for")
    results: dict[str, Any] = json.loads(given.out.read_text()) if given.out.is_file() else {"schema": 1, "rows": []}
    rows = list(wanted(given.part, given.rates, given.methods))
    with tempfile.TemporaryDirectory() as scratch:
        new = list(measured(start_from(given.model, Path(scratch)), rows, given, Path(scratch)))
    # One session is one comparison: what was measured of this model there before is replaced.
    same = {(row["part"], row["model"], row["where"], row["batch"]) for row in new}
    kept = [r for r in results["rows"] if (r["part"], r["model"], r["where"], r["batch"]) not in same]
    write_whole(given.out, json.dumps({**results, "rows": [*kept, *new]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
