"""How budgets are met: on emulated boards, and on this machine.

python benchmarks/meet.py emulated --draws 200            # results/meet.json, its part "emulated"
python benchmarks/meet.py here --model deit_tiny --threads 1   # ... its part "here", one entry per budget
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import timm
import torch
from emulated import draw
from safetensors.torch import save_file
from tables import table

import edgevit
from edgevit.cost.place import Place, processor
from edgevit.errors import BudgetError
from edgevit.meet.loop import meet
from edgevit.meet.rounds import WINDOW, Search
from edgevit.train.settings import Training

RESULTS = Path(__file__).parent / "results" / "meet.json"
SHARES = (0.3, 0.5, 0.7)  # of what the base takes
MODELS = {
    "deit_tiny": ("deit_tiny_patch16_224", {}),
    "small": (
        "vit_tiny_patch16_224",
        {"img_size": 64, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3},
    ),
}


def emulated(draws: int) -> dict[str, Any]:
    """Search on so many boards, each at every share; how each ended, in how many rounds, and what is really taken."""
    ended: Counter[str] = Counter()
    rounds: Counter[int] = Counter()
    first, last, missed = [], [], []
    began = time.monotonic()
    for number in range(draws):
        bench, share = draw(number), SHARES[number % len(SHARES)]
        budget = share * bench.board.ms(bench.base)
        try:
            found = meet(Search(budget), bench)
        except BudgetError:
            ended["refused, and out of reach" if bench.least_ms() > budget else "refused, and within reach"] += 1
            continue
        search = found.search
        best = search.best
        assert best is not None
        first.append(abs(search.rounds[0].surprise))
        last.append(abs(search.rounds[-1].surprise))
        outcome = search.outcome(best.measured)
        if outcome == "met":
            rounds[len(search.rounds)] += 1
            really = bench.board.narrowed(best.shape.embed).ms(best.shape.blocks) / budget
            ended["met" if 0.97 <= really <= 1 else "met, and really up to 1 % outside"] += 1
            assert 0.96 <= really <= 1.01
        elif outcome == "over" and bench.least_ms() > budget:
            ended["over, and out of reach"] += 1
        elif not bench.holds_some(WINDOW * budget, budget):
            ended["under, and no plan exists that would meet it"] += 1
        elif found.why is not None and all(dims == bench.base[0] for dims in best.shape.blocks):
            ended["under, with whole blocks: the next width of the embedding takes too much"] += 1
        elif found.why is not None:
            ended["under, as none was found between"] += 1
        else:
            ended["rounds used up"] += 1
            missed.append([round(one.measured.value / budget, 3) for one in search.rounds])
    return {
        "draws": draws,
        "ended": dict(ended),
        "rounds": {str(count): rounds[count] for count in sorted(rounds)},
        "error_of_the_prediction": {"first round": spread(first), "last round": spread(last)},
        "measured_of_the_budget_where_rounds_were_used_up": missed,
        "seconds": round(time.monotonic() - began, 1),
    }


def spread(errors: list[float]) -> dict[str, float]:
    ordered = sorted(errors)
    return {"median": round(ordered[len(ordered) // 2], 4), "worst": round(ordered[-1], 4)}


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None or (seen := data.get("emulated")) is None:
        return ""
    wrong = seen["error_of_the_prediction"]
    rounds = ", ".join(f"{count} in {number}" for number, count in seen["rounds"].items())
    head = (
        f"{seen['draws']} emulated boards and bases (benchmarks/emulated.py: tiles, launches, memory, a cache, noise "
        f"of up to 1.5 % a round), budgets of {', '.join(f'{share:g}' for share in SHARES)} of what the base takes. No "
        "real board behaves like these; they are there to find what the search does wrong. Rounds where the budget was "
        f"met: {rounds}. Error of the prediction: median {wrong['first round']['median']:.1%}, worst "
        f"{wrong['first round']['worst']:.0%} in the first round; {wrong['last round']['median']:.1%} and "
        f"{wrong['last round']['worst']:.0%} in the last."
    )
    lined = "\n".join(textwrap.wrap(head, 118))
    rows = [[how, str(count)] for how, count in sorted(seen["ended"].items(), key=lambda item: -item[1])]
    return f"## Budgets met by measuring, on emulated boards\n\n{lined}\n\n" + table(["ended", "boards"], rows)


def here(model: str, shares: list[float], threads: int, repeats: int) -> list[dict[str, Any]]:
    """Derive for budgets on this machine, and measure each model and its base afterwards, in turns."""
    name, args = MODELS[model]
    torch.manual_seed(0)
    entries = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checkpoint = folder / "base.safetensors"
        save_file(timm.create_model(name, num_classes=10, **args).state_dict(), checkpoint)
        given: dict[str, Any] = {
            "checkpoint": checkpoint,
            "model_args": args,
            "data": "digits",
            "accept_weak_base": True,
        }
        place, how = Place(threads=threads), Training(steps=0, device="cpu", batch_size=64)
        began = time.monotonic()
        table = edgevit.cost(name, model_args=args, threads=threads)
        measuring = time.monotonic() - began
        base = edgevit.base(name, checkpoint=checkpoint, model_args=args, out=folder / "base")
        edgevit.export(folder / "base", fp16=False, accuracy=False)
        dense = table.in_quantity("ms").base
        for repeat in range(repeats):
            for share in shares:
                out, began = folder / f"{share}-{repeat}", time.monotonic()
                (made,) = edgevit.meet(name, ms=share * dense, out=out, place=place, training=how, options={}, **given)
                took, met = time.monotonic() - began, made.record.met
                assert met is not None
                compared = edgevit.bench_in_turns(
                    [folder / "base", out], edgevit.Conditions(threads=threads, samples=100, duration_s=1.0), rounds=10
                ).runs
                from edgevit.report.runs import compare_within, decisive

                (seen,) = decisive(compare_within(compared))
                entries.append(
                    {
                        "model": model,
                        "share": share,
                        "outcome": met.outcome,
                        "rounds": [[r.predicted / met.budget, r.measured.value / met.budget] for r in met.rounds],
                        "verified": met.verified.value / met.budget,
                        "afterwards": seen.ratio / share,
                        "interval": [end and end / share for end in (seen.low, seen.high)],
                        "figure": seen.figure,
                        "seconds": round(took, 1),
                        "table_seconds": round(measuring, 1),
                        "load_average": os.getloadavg()[0],
                    }
                )
                print(json.dumps(entries[-1]), flush=True)
        assert base.spec.macs > 0
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("emulated", "here"))
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--model", choices=sorted(MODELS), default="deit_tiny")
    parser.add_argument("--shares", type=float, nargs="*", default=list(SHARES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = json.loads(given.out.read_text()) if given.out.is_file() else {}
    if given.part == "emulated":
        results["emulated"] = emulated(given.draws)
    else:
        found = here(given.model, given.shares, given.threads, given.repeats)
        results["here"] = [*(e for e in results.get("here", ()) if e["model"] != given.model), *found]
        results["machine"] = f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
