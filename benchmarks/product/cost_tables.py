"""How well does a cost table predict latency? Random plans are predicted, then measured in turns with the base.

    python -m benchmarks.product.cost_tables                 # DeiT-Tiny shapes, on one thread of this machine
    python -m benchmarks.product.cost_tables --model deit_small_patch16_224 --plans 30 --beside table.yaml

Plans keep the base's stem and head around blocks of random sizes of shape `fused`; some blocks are dropped, some lack
their attention or their FFN. The table is measured first, as `edgevit cost` does; no plan is part of it. Errors are of
the share of the base's time. Each plan is also predicted by the table as a search corrects it, from the five other
plans whose predictions are nearest: as many as a search measures.

`--beside` adds another table of the same base. With `--narrower` each plan has a random embedding width, of which the
table measured three. With `--tokens` tokens leave after two blocks. Weights are random, because time depends on shapes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import log
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.markdown import RECORDS, load, screen, table
from edgevit import bench_in_turns
from edgevit.agent.records import Run
from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.derivation.allocate.embedding import candidate_widths
from edgevit.derivation.allocate.menus import widths
from edgevit.derivation.allocate.policy import POLICIES, tile_counts
from edgevit.derivation.allocate.prices import Prices
from edgevit.engines.unjudged import OPSET
from edgevit.exporting.graph import write_onnx
from edgevit.latency.measure import latency_ms
from edgevit.latency.rounds import MOST, MeasuredFigure, Shape, correct
from edgevit.latency.stacks import network_of
from edgevit.latency.table import measured_table
from edgevit.latency.target import MeasurementTarget
from edgevit.network.anatomy import BlockDims
from edgevit.network.network import Network
from edgevit.network.opening import network_without_weights

RESULTS = RECORDS / "cost_tables.json"
DROPPED = 0.15  # of a block, and of each site of one that stays
FUSED = POLICIES["fused"]


def plan(random: Random, base: Sequence[BlockDims]) -> tuple[list[BlockDims], list[int]]:
    """Draw blocks of random sizes; return them with the indices of the base's blocks."""
    blocks, indices = [], []
    for i, dims in enumerate(base):
        width = random.choice(widths(dims.qk, FUSED.head_minimum, FUSED.head_step))
        dims_of_block = BlockDims(random.randint(2, dims.heads), width, width, 8 * random.randint(1, dims.ffn // 8))
        fate = random.random()
        if fate < DROPPED and i > 0:
            continue
        if fate < 2 * DROPPED:
            dims_of_block = replace(dims_of_block, heads=0, qk=0, vo=0)
        elif fate < 3 * DROPPED:
            dims_of_block = replace(dims_of_block, ffn=0)
        blocks.append(dims_of_block)
        indices.append(i)
    return blocks, indices


def passing(random: Random, blocks: Sequence[BlockDims], counts: Sequence[int]) -> list[BlockDims]:
    """Drop tokens after two blocks that have an attention."""
    able = [i for i, dims in enumerate(blocks[:-1]) if dims.has("attention")]
    positions = sorted(random.sample(able, min(2, len(able), len(counts))))
    passed = dict(zip(positions, sorted(random.sample(counts, len(positions)), reverse=True), strict=True))
    return [replace(dims, tokens=passed.get(i, 0)) for i, dims in enumerate(blocks)]


def write(network: Network, blocks: Sequence[BlockDims], path: Path, embed: int | None = None) -> Path:
    size = network.input_size
    write_onnx(network_of(network, blocks, embed), path, input_size=size, batch="dynamic", opset=OPSET, metadata={})
    return path


def shares(runs: Sequence[Run], label: str) -> list[float]:
    """Return the model's time over the base's, round by round."""
    busy = any(run.is_busy() for run in runs)
    times = {(run.round, run.label): latency_ms(run, busy=busy) for run in runs}
    return [times[n, label] / times[n, "base"] for n in sorted({n for n, _ in times if n is not None})]


def error_summary(errors: Sequence[float]) -> dict[str, float]:
    sizes = [abs(error) for error in errors]
    return {"median": statistics.median(sizes), "worst": max(sizes), "mean_signed": statistics.fmean(errors)}


def corrected(plans: Sequence[Shape], measured: Sequence[float], prices: Prices) -> list[float]:
    """Predict each plan's share by the table that the measurements of the nearest other plans correct."""
    by_table = [plan.terms(prices) for plan in plans]
    shares = []
    for i, terms in enumerate(by_table):
        others = sorted((j for j in range(len(plans)) if j != i), key=lambda j: abs(by_table[j].total - terms.total))
        error_summary = [(by_table[j], MeasuredFigure(measured[j] * prices.base, None, None, 1)) for j in others[:MOST]]
        shares.append(terms.times(correct(error_summary)).total / prices.base)
    return shares


WAYS = {
    "measured": "`edgevit cost`: stacks of blocks",
    "corrected": "the same, corrected by the five plans nearest to it",
    "beside": "another table",
}


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("cost_tables")
    if record is None:
        return ""
    shares = [row["share"] for row in record["plans"]]
    lines = [
        [WAYS[name], f"{error['median']:.1%}", f"{error['worst']:.1%}", f"{error['mean_signed']:+.1%}"]
        for name, error in record["errors"].items()
    ]
    return screen(
        "How well does a cost table predict latency?",
        f"{record['model']}, {record['measured_on']}: {len(shares)} random plans of {min(shares):.2f} to "
        f"{max(shares):.2f} of the base's time, predicted by a table of {record['stacks']} stacks, then measured in "
        "turns "
        f"with the base. Standard error of a stack {record['noise']:.1%}; scatter of a plan between two rounds "
        f"{record['scatter']:.1%}. Errors of the share of the base's processor time.",
        [table(["predicted by", "median error", "worst", "mean, with its sign"], lines)],
        "python -m benchmarks.product.cost_tables --plans 30",
        "a GPU or a board; larger bases; embeddings or tokens that differ.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--plans", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--narrower", action="store_true")
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    target, network = MeasurementTarget(threads=1), network_without_weights(options.model)
    base = list(network.dims)
    began = time.monotonic()
    cost_table = measured_table(network, target, tokens=options.tokens)
    table_s = time.monotonic() - began
    random = Random(options.seed)
    plans = [plan(random, base) for _ in range(options.plans)]
    geometry = network.geometry
    if options.tokens:
        plans = [(passing(random, blocks, tile_counts(geometry)), indices) for blocks, indices in plans]
    whole = geometry.embed
    _, *candidates = candidate_widths(whole, FUSED.embed_step)
    embeds = [random.choice(candidates) if options.narrower else whole for _ in plans]
    with tempfile.TemporaryDirectory() as folder:
        files = [write(network, base, Path(folder, "base.onnx"))]
        for i, ((blocks, _), embed) in enumerate(zip(plans, embeds, strict=True)):
            files.append(write(network, blocks, Path(folder, f"plan{i}.onnx"), embed if embed < whole else None))
        conditions = replace(target.conditions(), duration_s=0.5)
        runs = bench_in_turns(files, conditions, rounds=options.rounds).runs
    measured_shares = [statistics.median(shares(runs, f"plan{i}")) for i in range(len(plans))]
    rows: list[dict[str, Any]] = []
    listed = cost_table.in_quantity("ms")
    tables = {"measured": listed}
    if options.beside:
        tables["beside"] = load_cost_table(options.beside).in_quantity("ms")

    def predicted(prices: Prices, blocks: Sequence[BlockDims], embed: int) -> float:
        return prices.at(embed).cost(blocks) / prices.base

    shapes = [
        Shape(tuple(blocks), tuple(indices), embed) for (blocks, indices), embed in zip(plans, embeds, strict=True)
    ]
    by_others = corrected(shapes, measured_shares, tables["measured"])
    for i, ((blocks, indices), embed) in enumerate(zip(plans, embeds, strict=True)):
        share = measured_shares[i]
        shown = {name: predicted(prices, blocks, embed) for name, prices in tables.items()}
        shown["corrected"] = by_others[i]
        block_fields = [asdict(b) for b in blocks]
        rows.append({"kept": indices, "embed": embed, "blocks": block_fields, "share": share, "predicted": shown})
        print(
            f"plan {i}, embedding {embed}: {share:.3f} of the base; "
            + ", ".join(f"{n} {v / share - 1:+.1%}" for n, v in shown.items())
        )
    record = {
        "schema": 1,
        "model": options.model,
        "measured_on": cost_table.measured_on,
        "load_average": os.getloadavg()[0],
        "noise": cost_table.noise,
        "table_s": table_s,
        # Beside sites of each size the base, one thin block and two whole; six stacks at each narrower embedding, and
        # five for each number of tokens.
        "stacks": listed.attentions.costs.size
        + listed.ffns.costs.size
        + 4
        + 6 * (len(listed.embeds) - 1)
        + 5 * (len(listed.token_counts) - 1),
        "depth": len(base),
        "scatter": statistics.median(statistics.stdev(map(log, shares(runs, f"plan{i}"))) for i in range(len(plans))),
        "errors": {
            name: error_summary([row["predicted"][name] / row["share"] - 1 for row in rows])
            for name in rows[0]["predicted"]
        },
        "plans": rows,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({**record, "plans": len(rows)}, indent=1))


if __name__ == "__main__":
    main()
