"""What the joint allocation takes, and what its bins cost in loss.

    python benchmarks/allocation.py    # menus as a ViT-Large has them, one thread

24 blocks; attention of 1 to 16 heads at 6 widths, FFN of 512 widths; costs are ViT-Large's MACs, losses are random but
fall as they do in practice: convex on the whole, with steps, and blocks that matter up to a hundred times as much as
others. Gaps are in predicted loss, relative to the finest bins of the same menus.
Seconds are CPU time of one thread, which other work on a shared machine does not lengthen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgevit.derive.knapsack import BlockMenu, Choice, allocate

RESULTS = Path(__file__).parent / "results" / "allocation.json"
DEPTH, TOKENS, EMBED, HEADS, WIDTHS, FFN = 24, 197, 1024, 16, (16, 24, 32, 40, 48, 64), 4096
DROP = 1.0  # loss of a whole block over the sum of its two weights
RATES, BINS, FINEST = (0.4, 0.6, 0.8, 0.9), (1000, 5000, 20_000), 100_000


def falling(random: np.random.Generator, count: int) -> list[float]:
    """Losses of `count` widths, from 1 to 0: the tail of a spectrum that decays, with gaps."""
    energy = np.exp(-np.linspace(0, random.uniform(2, 8), count)) * random.lognormal(0, 1, count)
    tails = np.append(energy[::-1].cumsum()[::-1], 0.0)[1:]
    return [float(tail) for tail in tails / energy.sum()]


def menus(seed: int) -> list[BlockMenu]:
    random = np.random.default_rng(seed)
    per_attention, per_ffn = 2 * (2 * TOKENS * EMBED + TOKENS**2), 2 * TOKENS * EMBED
    made = []
    for _ in range(DEPTH):
        weights = random.lognormal(0, 1, 2)
        of_heads, of_width, of_ffn = (falling(random, n) for n in (HEADS, WIDTHS[-1], FFN // 8))
        attention = [
            Choice(per_attention * h * w, weights[0] * (of_heads[h - 1] + of_width[w - 1]), (h, w))
            for h in range(1, HEADS + 1)
            for w in WIDTHS
        ]
        ffn = [Choice(per_ffn * 8 * (k + 1), weights[1] * loss, 8 * (k + 1)) for k, loss in enumerate(of_ffn)]
        made.append(BlockMenu(attention, ffn, DROP * float(weights.sum())))
    return made


def loss_of(menu: Sequence[BlockMenu], found: Sequence[tuple[Choice, Choice] | None]) -> float:
    losses = [b.dropped if p is None else p[0].loss + p[1].loss for b, p in zip(menu, found, strict=True)]
    return sum(loss for loss in losses if loss is not None)


def cost_of(found: Sequence[tuple[Choice, Choice] | None]) -> float:
    return sum(choice.cost for pair in found if pair is not None for choice in pair)


def measure(rate: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Seconds and gap of each number of bins at one rate, over several random menus."""
    rows: dict[int, list[tuple[float, float, float]]] = {bins: [] for bins in (*BINS, FINEST)}
    dropped = []
    for seed in seeds:
        menu = menus(seed)
        limit = (1 - rate) * sum(max(c.cost for c in b.attention) + max(c.cost for c in b.ffn) for b in menu)
        for bins, taken in rows.items():
            start = time.process_time()
            found = allocate(menu, limit, bins=bins)
            seconds = time.process_time() - start
            taken.append((seconds, loss_of(menu, found), 1 - cost_of(found) / limit))
        dropped.append(sum(pair is None for pair in found))
    finest = [loss for _, loss, _ in rows[FINEST]]
    return {
        "rate": rate,
        "dropped_blocks": dropped,
        "bins": [
            {
                "bins": bins,
                "median_s": statistics.median(s for s, _, _ in taken),
                "max_s": max(s for s, _, _ in taken),
                "largest_gap": max(loss / best - 1 for (_, loss, _), best in zip(taken, finest, strict=True)),
                "largest_unspent": max(unspent for _, _, unspent in taken),
            }
            for bins, taken in rows.items()
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    environment = {
        "machine": platform.machine(), "cores": os.cpu_count(), "numpy": np.__version__,
        "python": platform.python_version(), "load_average": os.getloadavg()[0],
    }  # fmt: skip
    allocate(menus(0), 1e10)  # with the bins it has unless told otherwise, before finer ones raise the peak
    record = {
        "schema": 1,
        "environment": environment,
        "shape": {"depth": DEPTH, "attention": HEADS * len(WIDTHS), "ffn": FFN // 8},
        "memory_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "rates": [measure(rate, range(arguments.seeds)) for rate in RATES],
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1), file=sys.stderr)


if __name__ == "__main__":
    main()
