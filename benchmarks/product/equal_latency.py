"""What is a budget in milliseconds worth? `--ms` against the `--rate` that gives the same measured latency.

    python -m benchmarks.product.equal_latency --base fashion    # every row that records/equal_latency.json lacks
    python -m benchmarks.product.equal_latency --seeds 1 --shares 0.5
    python -m benchmarks.product.equal_latency --base demo       # a base that trains in minutes

Forge's closed form, one thread. First a budget in milliseconds is met, a share of what the base takes. Then at most six
rates are derived, exported and measured in turns with the base, until one takes the same within 1.5 %; the nearest is
kept. Last, both models are measured in turns with one another. Accuracy is on `val/`, which no derivation sees.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import edgevit
from benchmarks import sources
from benchmarks.derivations import BATCH, SEEDS, SIZES, Place, task_classes
from benchmarks.markdown import RECORDS, Row, load, percent, picked, points, screen, table
from edgevit.board.comparison import compare_within, decisive
from edgevit.latency.target import MeasurementTarget
from edgevit.records.writing import write_whole
from edgevit.train.settings import Training

RESULTS = RECORDS / "equal_latency.json"
SHARES = (0.5, 0.3, 0.15)  # of what the base takes
TRIES, NEAR = 6, 0.015
EQUAL = 0.02  # of the latency: pairs that differ by more are in no mean
LOW, HIGH = 0.02, 0.98  # rates


def nearest_rate(aim: float, first: float, measure: Callable[[float], float]) -> tuple[float, float]:
    """Find the rate whose model is nearest to the aimed latency; return both as shares of the base.

    Latency falls with the rate in steps. The next rate is interpolated between the nearest ones on both sides of the
    aim, away from the ends, and at the middle where the last two lie on one side. `first` is the first rate.
    """
    above, below = (LOW, 1.0), (HIGH, 0.0)  # more than the aim; less
    best: tuple[float, float] | None = None
    sides: list[bool] = []
    for _ in range(TRIES):
        between = (above[1] - aim) / (above[1] - below[1])
        if len(sides) > 1 and sides[-1] == sides[-2]:
            between = max(between, 0.5) if sides[-1] else min(between, 0.5)
        rate = above[0] + min(max(between, 0.1), 0.9) * (below[0] - above[0]) if sides else first
        share = measure(rate)
        if best is None or abs(share - aim) < abs(best[1] - aim):
            best = rate, share
        if abs(share / aim - 1) <= NEAR:
            break
        above, below = ((rate, share), below) if share > aim else (above, (rate, share))
        sides.append(share > aim)
    assert best is not None
    return best


def in_turns(folders: list[Path], rounds: int) -> Any:
    """Measure the ratio of the last model to the first in turns in one process."""
    conditions = edgevit.Conditions(threads=1, samples=100, duration_s=0.5)
    return decisive(compare_within(edgevit.bench_in_turns(folders, conditions, rounds=rounds, alternate=True).runs))[-1]


def top1(derivation: edgevit.Derivation) -> float:
    accuracy = derivation.record.accuracy.derived
    assert accuracy is not None
    return float(accuracy.top1)


def pair(place: Place, base_of: str, task: int, seed: int, share: float, folder: Path) -> Row:
    """Derive and measure both models of one budget."""
    start = dict(place.start)
    name = start.pop("base")
    classes = task_classes(place.classes, task)
    request = {
        **start,
        "data": place.data,
        "classes": classes,
        "training": Training(steps=0, batch_size=BATCH, seed=seed, device="cpu"),
        "cache": place.cache / "shared" / "equal_latency",
    }
    began = time.monotonic()
    dense = edgevit.cost(name, model_args=start.get("model_args", {}), threads=1).in_quantity("ms").base
    edgevit.base(name, **start, data=place.data, classes=classes, out=folder / "base")
    edgevit.export(folder / "base", fp16=False, accuracy=False)
    (by_ms,) = edgevit.meet(name, ms=share * dense, out=folder / "ms", target=MeasurementTarget(threads=1), **request)
    met, of_base = by_ms.record.met, by_ms.record.accuracy.base_restricted
    assert met is not None and of_base is not None
    aim = in_turns([folder / "base", folder / "ms"], 8).ratio
    by_rate: dict[float, Any] = {}

    def measure(rate: float) -> float:
        out = folder / f"rate{len(by_rate)}"
        by_rate[rate] = edgevit.derive(name, rate=rate, out=out, **request)
        edgevit.export(out, fp16=False, accuracy=False)
        return float(in_turns([folder / "base", out], 8).ratio)

    rate, _ = nearest_rate(aim, min(max(by_ms.model.spec.rate, LOW), HIGH), measure)
    both = {"ms": by_ms, "rate": by_rate[rate]}
    comparison = in_turns([folder / "ms", by_rate[rate].folder], 10)
    return {
        "task": task, "seed": seed, "share": share, "rate": rate, "tried": len(by_rate), "outcome": met.outcome,
        "rounds": len(met.rounds), "latency": aim, "apart": [comparison.ratio, comparison.low, comparison.high],
        "figure": comparison.figure,
        "accuracy": {kind: top1(of) for kind, of in both.items()},
        "base_restricted": of_base.top1,
        "macs_share": {kind: 1 - of.model.spec.rate for kind, of in both.items()},
        "embed": {kind: of.model.spec.embed for kind, of in both.items()},
        "seconds": round(time.monotonic() - began, 1), "load_average": os.getloadavg()[0],
        "base_of": base_of, "base_sha256": place.base_sha256, "edgevit": by_ms.record.versions["edgevit"],
    }  # fmt: skip


def gained(row: Row) -> float:
    return float(row["accuracy"]["ms"] - row["accuracy"]["rate"])


def is_equal(row: Row) -> bool:
    """Return whether both models of a row have the same latency."""
    return bool(abs(row["apart"][0] - 1) <= EQUAL)


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("equal_latency")
    if record is None:
        return ""
    rows: list[Row] = record["rows"]
    outcomes = Counter(row["outcome"] for row in rows)
    equal = [row for row in rows if is_equal(row)]
    lines = []
    for base, share, task in sorted({(row["base_of"], -row["share"], row["task"]) for row in rows}):
        group = picked(rows, base_of=base, task=task, share=-share)
        equal_rows = [row for row in group if is_equal(row)]
        lines.append(
            [
                f"{base}, {task} classes, {-share:g} of the base's latency",
                percent([row["base_restricted"] for row in group]),
                percent([row["accuracy"]["ms"] for row in group]),
                percent([row["accuracy"]["rate"] for row in group]),
                f"{points([gained(row) for row in equal_rows])} of {len(equal_rows)}" if equal_rows else "",
            ]
        )
    apart = ", ".join(f"{row['apart'][0] - 1:+.1%}" for row in rows if not is_equal(row))
    return screen(
        "What is a budget in milliseconds worth?",
        f"`--ms` beside the `--rate` whose model takes the same, measured in turns; forge's closed form, one thread, "
        f"`fused`, {outcomes['met']} of {len(rows)} budgets met. In {len(equal)} pairs the latencies differ by at most "
        f"{EQUAL:.0%}: there `--ms` gains {points([gained(row) for row in equal])} points. The others differ by "
        f"{apart}, as "
        "no rate came nearer, and are in no column of points. Top-1 in %; mean and range over seeds.",
        [table(["", "base", "`--ms`", "`--rate`", "points, of equal pairs"], lines)],
        "python -m benchmarks.product.equal_latency --base fashion --shares 0.15",
        "larger shares, where a first look on the demo's base found no difference; a board.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--base", choices=list(SIZES), default="rendered")
    parser.add_argument("--tasks", type=int, nargs="*", help="numbers of classes of the sub-tasks")
    parser.add_argument("--shares", type=float, nargs="*", default=list(SHARES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    from edgevit.cli.console import Console

    place = sources.project_source(options.base, Console().progress).place()
    rows = json.loads(options.out.read_text())["rows"] if options.out.is_file() else []
    complete = {(row["share"], row["seed"], row["task"], row["base_sha256"]) for row in rows}
    for share in options.shares:
        for seed in SEEDS[: options.seeds]:
            for task in options.tasks or SIZES[options.base]:
                if (share, seed, task, place.base_sha256) in complete:
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    rows.append(pair(place, options.base, task, seed, share, Path(scratch)))
                write_whole(options.out, json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
