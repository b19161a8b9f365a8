"""What a budget in milliseconds is worth: `--ms` against `--rate` chosen to end at the same measured latency.

    python benchmarks/equal_latency.py              # everything that is not in results/equal_latency.json yet
    python benchmarks/equal_latency.py --seeds 1 --shares 0.5
    python benchmarks/equal_latency.py --base demo  # of whose six classes the sub-tasks are: this base takes minutes
    python benchmarks/equal_latency.py --base fine  # 48 finer classes; or fashion: bases that the repository keeps

Forge's closed form, sub-tasks drawn as accuracy.py does, its seeds, one thread. First a budget in
milliseconds is met, a share of what the base takes. Then at most six rates are tried, each derived, exported and
measured in turns with the base, until one takes the same within 1.5 %; the nearest of them is kept. Last, both are
measured in turns with one another. Accuracy is on `val/`, which no derivation sees; nothing is chosen by it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accuracy import BATCH, OTHER_SIZES, SEEDS, TASK_SIZES, Place, open_places, task_classes
from tables import Row, percent, picked, points, table

import edgevit
from edgevit.board.comparison import compare_within, decisive
from edgevit.latency.target import MeasurementTarget
from edgevit.records.writing import write_whole
from edgevit.train.settings import Training

RESULTS = Path(__file__).parent / "results" / "equal_latency.json"
SIZES = {"rendered": TASK_SIZES, "demo": (2, 3, 4), **OTHER_SIZES}  # of the sub-tasks of each base
TITLES = {
    "rendered": "the rendered data set",
    "demo": "the demo",
    "fine": "48 finer classes",
    "fashion": "photographs of clothes",
}
SMALL = 0.15
SHARES = (0.5, 0.3, SMALL)  # of what the base takes
TRIES, NEAR = 6, 0.015
EQUAL = 0.02  # of the latency: pairs that differ by more are in no mean
LOW, HIGH = 0.02, 0.98  # rates


def nearest_rate(aim: float, first: float, measure: Callable[[float], float]) -> tuple[float, float]:
    """The rate whose model takes nearest to the aim, and what it takes, as shares of the base.

    Latency falls with the rate, in steps: between the nearest on both sides of the aim the next is interpolated, kept
    off the ends, and halfway where the last two lie on one side. `first` is where to begin.
    """
    above, below = (LOW, 1.0), (HIGH, 0.0)  # more than the aim; less
    best: tuple[float, float] | None = None
    sides: list[bool] = []
    for _ in range(TRIES):
        between = (above[1] - aim) / (above[1] - below[1])
        if len(sides) > 1 and sides[-1] == sides[-2]:
            between = max(between, 0.5) if sides[-1] else min(between, 0.5)
        rate = above[0] + min(max(between, 0.1), 0.9) * (below[0] - above[0]) if sides else first
        taken = measure(rate)
        if best is None or abs(taken - aim) < abs(best[1] - aim):
            best = rate, taken
        if abs(taken / aim - 1) <= NEAR:
            break
        above, below = ((rate, taken), below) if taken > aim else (above, (rate, taken))
        sides.append(taken > aim)
    assert best is not None
    return best


def in_turns(folders: list[Path], rounds: int) -> Any:
    """The ratio of the last to the first, of visits by turns in one process."""
    how = edgevit.Conditions(threads=1, samples=100, duration_s=0.5)
    return decisive(compare_within(edgevit.bench_in_turns(folders, how, rounds=rounds, alternate=True).runs))[-1]


def top1(derivation: edgevit.Derivation) -> float:
    seen = derivation.record.accuracy.derived
    assert seen is not None
    return float(seen.top1)


def one(place: Place, base_of: str, task: int, seed: int, share: float, folder: Path) -> Row:
    """Both models of one budget."""
    start = dict(place.start)
    name = start.pop("base")
    classes = task_classes(place.classes, task)
    given = {
        **start,
        "data": place.data,
        "classes": classes,
        "training": Training(steps=0, batch_size=BATCH, seed=seed, device="cpu"),
        "cache": place.cache / "shared" / "equal_latency",
    }
    began = time.monotonic()
    dense = edgevit.cost(name, model_args=start.get("model_args"), threads=1).in_quantity("ms").base
    edgevit.base(name, **start, data=place.data, classes=classes, out=folder / "base")
    edgevit.export(folder / "base", fp16=False, accuracy=False)
    (by_ms,) = edgevit.meet(name, ms=share * dense, out=folder / "ms", target=MeasurementTarget(threads=1), **given)
    met, of_base = by_ms.record.met, by_ms.record.accuracy.base_restricted
    assert met is not None and of_base is not None
    aim = in_turns([folder / "base", folder / "ms"], 8).ratio
    made: dict[float, Any] = {}

    def measure(rate: float) -> float:
        out = folder / f"rate{len(made)}"
        made[rate] = edgevit.derive(name, rate=rate, out=out, **given)
        edgevit.export(out, fp16=False, accuracy=False)
        return float(in_turns([folder / "base", out], 8).ratio)

    rate, _ = nearest_rate(aim, min(max(by_ms.model.spec.rate, LOW), HIGH), measure)
    both = {"ms": by_ms, "rate": made[rate]}
    beside = in_turns([folder / "ms", made[rate].folder], 10)
    return {
        "task": task, "seed": seed, "share": share, "rate": rate, "tried": len(made), "outcome": met.outcome,
        "rounds": len(met.rounds), "latency": aim, "apart": [beside.ratio, beside.low, beside.high],
        "figure": beside.figure,
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
    """Whether both models of a row take the same."""
    return bool(abs(row["apart"][0] - 1) <= EQUAL)


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None or not data["rows"]:
        return ""
    rows: list[Row] = data["rows"]
    ended = Counter(row["outcome"] for row in rows)
    kept = f"{ended['met']} of {len(rows)} met, {ended['under']} below the window, {ended['over']} above the budget"
    bases = " and ".join(TITLES[name] for name in dict.fromkeys(row["base_of"] for row in rows))
    equal, others = [row for row in rows if is_equal(row)], [row for row in rows if not is_equal(row)]
    far = ", ".join(f"{row['apart'][0] - 1:+.1%}" for row in others)
    unequal = f" The others differ by {far}, as no rate came nearer, and are in no column of points." if others else ""
    worth, load = points([gained(row) for row in equal]), max(row["load_average"] for row in rows)
    head = (
        f"Forge's closed form on the base of {bases}, one thread, `fused`. A budget in milliseconds is searched for "
        f"({kept}); beside it the rate whose model takes the same, both measured in turns. In {len(equal)} of "
        f"{len(rows)} pairs the two differ by at most {EQUAL:.0%}: over these, `--ms` is worth {worth} points of top-1 "
        f"beside `--rate`.{unequal} Top-1 in percent on images that no derivation sees; mean and range over seeds. The "
        f"share of {SMALL:g} was chosen after a first look at 0.2 and 0.5 on the demo's base, where nothing told the "
        f"two apart. Load average up to {load:.1f}. No ImageNet result."
    )
    lines = []
    for name, share, task in sorted({(row["base_of"], -row["share"], row["task"]) for row in rows}):
        found = picked(rows, base_of=name, task=task, share=-share)
        same = [row for row in found if is_equal(row)]
        lines.append(
            [
                f"{name}, {task} classes, {-share:g} of the base's latency",
                percent([row["base_restricted"] for row in found]),
                percent([row["accuracy"]["ms"] for row in found]),
                percent([row["accuracy"]["rate"] for row in found]),
                f"{points([gained(row) for row in same])} of {len(same)}" if same else "",
                ", ".join(f"{row['rate']:.3f}" for row in found),
                ", ".join(f"{row['embed']['ms']} and {row['embed']['rate']}" for row in found),
            ]
        )
    lined = "\n".join(textwrap.wrap(head, 118))
    titles = ["", "base", "`--ms`", "`--rate`", "points, of equal pairs", "the rates", "embedding widths"]
    return f"## Accuracy at equal measured latency\n\n{lined}\n\n" + table(titles, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--base", choices=list(SIZES), default="rendered")
    parser.add_argument("--tasks", type=int, nargs="*", help="numbers of classes of the sub-tasks")
    parser.add_argument("--shares", type=float, nargs="*", default=list(SHARES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    from edgevit.cli.console import Console

    place = open_places([given.base], Console().progress)[given.base]
    rows = json.loads(given.out.read_text())["rows"] if given.out.is_file() else []
    known = {(row["share"], row["seed"], row["task"], row["base_sha256"]) for row in rows}
    for share in given.shares:
        for seed in SEEDS[: given.seeds]:
            for task in given.tasks or SIZES[given.base]:
                if (share, seed, task, place.base_sha256) in known:
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    rows.append(one(place, given.base, task, seed, share, Path(scratch)))
                write_whole(given.out, json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
