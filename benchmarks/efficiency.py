"""The papers' tables of latency and memory, measured again: every method's model beside its base, in turns.

    python benchmarks/efficiency.py methods                          # Vulcan's Tables 2 and 10
    python benchmarks/efficiency.py ratios                           # HEART-ViT's Table 4
    python benchmarks/efficiency.py methods --model deit_tiny --rates 0.8 --rounds 6
    python benchmarks/efficiency.py methods --board jetson@orin-nx   # engines, over SSH

On this machine through ONNX Runtime, on a board as engines; a row says where it ran. Weights are random and nothing is
trained: what a method leaves has the sizes that its rule gives such weights, at equal MACs, and latency follows sizes.
Shape `paper`, as published; forge is `fused`.

Not here: Table 5 (quantisation, which edgevit has not), Table 7 (heads of unequal widths, which no plan has), and of
Table 18 the rows that add depth pruning with distillation; its precision is a matter of `edgevit export`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meet import MODELS, Start, start_from
from tables import table

import edgevit
from edgevit.engines.build import build_engine
from edgevit.engines.options import Options
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
# Of the base's latency, batch 1: Vulcan's Table 10 (Orin NX); HEART-ViT's Table 4, before fine-tuning (AGX Orin).
_DENSE_MS, _HEART_MS = 45.45, 23.05
PUBLISHED: dict[tuple[str, float], float] = {
    (method, rate): ms / _DENSE_MS
    for rate, figures in {
        0.2: (42.97, 37.49, 37.49, 36.98, 33.78, 36.84),
        0.4: (34.24, 29.25, 29.54, 28.62, 26.30, 29.73),
        0.6: (26.74, 24.55, 21.79, 20.04, 19.35, 21.81),
        0.8: (15.19, 19.13, 19.76, 14.76, 18.30, 15.06),
    }.items()
    for method, ms in zip(METHODS, figures, strict=False)
}
PUBLISHED_RATIOS = {
    pair: ms / _HEART_MS
    for pair, ms in zip(RATIOS, (18.04, 14.06, 17.02, 15.49, 14.73, 19.38, 14.41, 16.67, 14.84), strict=True)
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
    how = edgevit.Conditions(batches=(given.batch,), threads=given.threads, samples=100, duration_s=1.0)
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
            "where": f"{given.board or 'this machine'}: {runs[0].runner}, {runs[0].environment.get('cpu', 'unknown')}",
            "load_average": os.getloadavg()[0],
        }  # fmt: skip


def _ready(model: Path, given: argparse.Namespace) -> None:
    if given.board is None:
        edgevit.export(model, fp16=False, accuracy=False)
        return
    from edgevit.board.connection import open_board

    with open_board(given.board) as board:
        build_engine(model, board, Options(batches=(1, given.batch, given.batch)), edgevit.progress.Silent())


def _middle(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


TITLES = {"methods": "Latency of what each method leaves", "ratios": "Latency by HEART's ratios of tokens and heads"}
SOURCES = {"methods": "Vulcan, Table 10, Orin NX", "ratios": "HEART-ViT, Table 4, AGX Orin, before fine-tuning"}


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
                f"interval; published: {SOURCES[part]}, of a DeiT-Base, whatever runtime and precision it was."
            )
            lines = [_line(part, row, rows[0]) for row in rows]
            titles = ["", "MACs", "latency", "interval", "images/s", "file", "published"]
            found.append(f"## {title}\n\n{chr(10).join(textwrap.wrap(head, 118))}\n\n" + table(titles, lines))
    return "\n".join(found)


def _line(part: str, row: dict[str, Any], base: dict[str, Any]) -> list[str]:
    of = tuple(row["of"])
    published = PUBLISHED_RATIOS.get(of) if part == "ratios" else PUBLISHED.get((row["method"], *of))
    ends = row["interval"] or [None, None]
    return [
        " ".join([row["method"], "/".join(f"{value:g}" for value in of)]).strip(),
        f"{row['macs'] / base['macs']:.3f}",
        f"{row['ratio']:.3f}",
        f"{ends[0]:.3f} to {ends[1]:.3f}" if None not in ends else "",
        f"{row['images_per_s']:.0f}",
        f"{row['file_bytes'] / base['file_bytes']:.3f}",
        "" if published is None else f"{published:.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=TITLES)
    parser.add_argument("--model", choices=(*MODELS, "demo"), default="deit_base")
    parser.add_argument("--rates", type=float, nargs="*", default=list(RATES))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--board")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
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
