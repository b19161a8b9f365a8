"""What the joint allocation takes, and what its bins cost in loss.

    python benchmarks/allocation.py    # the menus of a ViT-Large, one thread

24 blocks of 16 heads, in every shape that a model may have; costs are ViT-Large's MACs, losses are random but fall as
they do in practice: with the spectrum's tail, and blocks that matter up to a hundred times as much as others. Gaps are
in predicted loss, relative to the finest bins of the same menus in shape `fused`. Seconds are CPU time of one thread,
which other work on a shared machine does not lengthen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgevit.derivation.allocate.knapsack import Allocation, BlockMenu, allocate
from edgevit.derivation.allocate.menus import attention_menu, ffn_menu
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.network.anatomy import BlockDims

RESULTS = Path(__file__).parent / "results" / "allocation.json"
DEPTH, TOKENS, EMBED, HEADS, WIDTH, FFN = 24, 197, 1024, 16, 64, 4096
DROP = 1.0  # loss of a whole block over the sum of its two weights
SHAPES = ("fused", "fused4", "paper", "free")
RATES, BINS, FINEST = (0.4, 0.6, 0.8, 0.9), (1000, 5000, 20_000), 100_000


def falling(random: torch.Generator, *shape: int) -> Tensor:
    """What each direction adds to the loss, the first the most: a spectrum that decays, with gaps; its sum is 1."""
    decay = 2 + 6 * torch.rand((), generator=random, dtype=torch.float64)
    steps = torch.randn(shape, generator=random, dtype=torch.float64).exp()
    energy = torch.exp(-decay * torch.linspace(0, 1, shape[-1], dtype=torch.float64)) * steps
    return energy.sort(descending=True).values / energy.sum()


def menus(seed: int, shape: str = "fused") -> list[BlockMenu]:
    random, policy = torch.Generator().manual_seed(seed), make_policy(shape)
    per_head = 2 * TOKENS * EMBED + TOKENS**2  # of a head's QK or VO, per unit of width
    made = []
    for _ in range(DEPTH):
        weights = torch.randn(2, generator=random, dtype=torch.float64).exp()
        qk, vo, heads = falling(random, HEADS, WIDTH), falling(random, HEADS, WIDTH), falling(random, HEADS)
        alike, metric = torch.ones(TOKENS), torch.eye(1)  # which menus do not look at
        felt = Sensitivity(weights[0] * qk, weights[0] * vo, 2 * weights[0] * heads, alike, alike, metric)
        made.append(
            BlockMenu(
                attention_menu(
                    BlockDims(HEADS, WIDTH, WIDTH, FFN),
                    felt,
                    policy,
                    lambda heads, qk, vo: per_head * heads * (qk + vo),
                    drop_heads=True,
                ),
                ffn_menu(weights[1] * falling(random, FFN).flip(0), policy, lambda width: 2 * TOKENS * EMBED * width),
                DROP * float(weights.sum()),
            )
        )
    return made


def whole_cost(menu: Sequence[BlockMenu]) -> float:
    return sum(max(c.cost for c in b.attention) + max(c.cost for c in b.ffn) for b in menu)


def of_shape(shape: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Seconds of the menus and of the allocation, over rates and several random losses."""
    made, allocated, choices = [], [], []
    for seed in seeds:
        start = time.process_time()
        menu = menus(seed, shape)
        made.append(time.process_time() - start)
        choices.append(max(len(b.attention) for b in menu))
        for rate in RATES:
            start = time.process_time()
            allocate(menu, (1 - rate) * whole_cost(menu))
            allocated.append(time.process_time() - start)
    return {
        "shape": shape,
        "attention_choices": max(choices),
        "ffn_choices": len(menu[0].ffn),
        "menus_max_s": max(made),
        "allocate_max_s": max(allocated),
    }


def loss_of(menu: Sequence[BlockMenu], found: Allocation) -> float:
    losses = [
        b.dropped if p is None else sum(c.loss for c in p if c is not None) for b, p in zip(menu, found, strict=True)
    ]
    return sum(loss for loss in losses if loss is not None)


def cost_of(found: Allocation) -> float:
    return sum(choice.cost for pair in found if pair is not None for choice in pair if choice is not None)


def measure(rate: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Seconds and gap of each number of bins at one rate, over several random menus."""
    rows: dict[int, list[tuple[float, float, float]]] = {bins: [] for bins in (*BINS, FINEST)}
    dropped = []
    for seed in seeds:
        menu = menus(seed)
        limit = (1 - rate) * whole_cost(menu)
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
        "machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__,
        "python": platform.python_version(), "load_average": os.getloadavg()[0],
    }  # fmt: skip
    torch.set_num_threads(1)
    allocate(menus(0), 1e10)  # whatever is loaded at first use is
    record = {
        "schema": 1,
        "environment": environment,
        "depth": DEPTH,
        "shapes": [of_shape(shape, range(arguments.seeds)) for shape in SHAPES],
        "rates": [measure(rate, range(arguments.seeds)) for rate in RATES],
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1), file=sys.stderr)


if __name__ == "__main__":
    main()
