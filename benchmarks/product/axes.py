"""Latency by the axis that MACs were taken from: widths, blocks, embedding with blocks, or tokens.

    python -m benchmarks.product.axes                           # every row that records/axes.json does not have
    python -m benchmarks.product.axes --models deit_tiny --rates 0.8 --axes depth tokens --rounds 4
    python -m benchmarks.product.axes --provider cuda --precision fp16    # ONNX Runtime on a GPU
    python -m benchmarks.product.axes --graphs                  # torch in CUDA graphs on a GPU, fp16

0.8 and 0.9 of the MACs of DeiT-Tiny and DeiT-Small are removed from one axis at a time. Forge removes as much from all
axes, once for a budget of MACs and once for the same share of the milliseconds. Weights are random and nothing is
trained, because time depends on shapes only; forge's choice of axes is therefore not that for trained weights. Each
model alternates with its base.

On a GPU, ONNX Runtime starts every kernel by itself, which takes longer than a small kernel computes. A CUDA graph
starts all kernels at once, as engines do; forge's budget in milliseconds then uses ONNX Runtime's table.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import timm
import torch

import edgevit
from benchmarks.markdown import RECORDS, Row, grouped, load, picked, screen, table
from benchmarks.product.budgets import MODELS, Start, start_from
from benchmarks.product.shapes import in_cuda_graph, interleave
from edgevit.agent.runners.onnxruntime import PROVIDERS
from edgevit.board.comparison import compare_within, decisive
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.engines.unjudged import OPSET
from edgevit.errors import BudgetError
from edgevit.exporting.graph import write_onnx
from edgevit.jobs.suite.suite import shape_dims
from edgevit.latency.stacks import network_of
from edgevit.latency.target import MeasurementTarget
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.network import Network
from edgevit.records.precisions import PRECISIONS
from edgevit.records.writing import write_whole
from edgevit.train.settings import Training

RESULTS = RECORDS / "axes.json"
RATES = (0.8, 0.9)
BATCHES, GRAPHED_BATCHES = (1, 8), (1, 8, 64)
GRAPHED_ROUNDS = 200
FIRST = "onnxruntime, cpu, fp32"  # how the rows were measured that do not say it
FUSED = POLICIES["fused"]
NEAR = 0.1  # what an axis that goes in whole blocks or tokens may differ by from the MACs that are to be left

Plan = tuple[list[BlockDims], int]  # blocks, and the embedding's width


# -- one axis alone ----------------------------------------------------------------------------------------------------


def widths(base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """Narrow all heads and neurons, in the first shape that is small enough."""
    for form in ("fused", "fused4", "paper"):
        try:
            return list(shape_dims(form, base, geometry, rate)), geometry.embed
        except BudgetError as error:
            last = error
    raise last


def depth(base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """Keep the number of whole blocks that comes nearest."""
    counts = range(1, len(base) + 1)
    return _nearest([(list(base[:n]), geometry.embed) for n in counts], base, geometry, rate)


def embedding_and_depth(base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """Shrink embedding, blocks and heads alike, by the cube root of the share; neurons fill the rest.

    A block's MACs grow with the embedding times the widths, times the number of blocks.
    """
    share = (1 - rate) ** (1 / 3)
    embed = FUSED.embed_step * round(share * geometry.embed / FUSED.embed_step)
    at, limit = geometry.with_embed(embed), (1 - rate) * geometry.macs(base)
    width = max(FUSED.head_step * round(share * base[0].qk / FUSED.head_step), FUSED.head_minimum)
    bare = [replace(d, qk=width, vo=width, ffn=FUSED.ffn_step) for d in base[: round(share * len(base))]]
    more = at.macs([replace(d, ffn=2 * d.ffn) for d in bare]) - at.macs(bare)
    steps = 1 + int((limit - at.macs(bare)) // more)
    if steps < 1:
        raise BudgetError(f"{len(bare)} blocks of an embedding of {embed} take more than {1 - rate:g} of the MACs")
    return [replace(d, ffn=min(steps * d.ffn, base[0].ffn)) for d in bare], embed


def tokens(base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """Drop tokens after the first block; at least the class token and another remain."""
    counts = range(2, geometry.tokens)
    plans = [([replace(base[0], tokens=count), *base[1:]], geometry.embed) for count in counts]
    return _nearest(plans, base, geometry, rate)


def _nearest(plans: Sequence[Plan], base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """Choose the plan nearest to the share.

    Raises:
        BudgetError: none is near.
    """
    aim = (1 - rate) * geometry.macs(base)
    best = min(plans, key=lambda plan: abs(geometry.macs(plan[0]) - aim))
    if abs(geometry.macs(best[0]) / aim - 1) > NEAR:
        share = geometry.macs(best[0]) / geometry.macs(base)
        raise BudgetError(f"nothing between leaves {1 - rate:.3g} of the MACs: the nearest leaves {share:.3f}")
    return best


PLANNED = {"widths": widths, "depth": depth, "embedding and depth": embedding_and_depth, "tokens": tokens}
FORGED = {"forge, by MACs": "rate", "forge, by milliseconds": "ms"}
AXES = (*PLANNED, *FORGED)


# -- models, and what they take ----------------------------------------------------------------------------------------


class Bench:
    """A base, and models cut from it that are measured alternately with it."""

    def __init__(self, model: str, folder: Path, *, target: MeasurementTarget, graphs: bool, rounds: int) -> None:
        self.model, self.folder, self.target, self.graphs, self.rounds = model, folder, target, graphs, rounds
        self.start: Start = start_from(model, folder)
        self.network = Network(timm.create_model(MODELS[model], num_classes=2))  # as many as `start_from` gives it
        self.geometry = self.network.geometry
        self.base = list(self.network.dims)
        self.opened: dict[str, Any] = {
            "checkpoint": self.start.checkpoint,
            "model_args": self.start.model_args,
            **self.start.more,
        }

    def planned(self, axis: str, rate: float) -> tuple[Network, dict[str, Any]]:
        """Make a model of one axis; return it with the fields of its row."""
        blocks, embed = PLANNED[axis](self.base, self.geometry, rate)
        whole = embed == self.geometry.embed
        macs = self.geometry.with_embed(embed).macs(blocks) / self.geometry.macs(self.base)
        network = network_of(self.network, blocks, None if whole else embed)
        return network, {"macs": macs, "embed": embed, "blocks": [asdict(block) for block in blocks]}

    def forged(self, axis: str, rate: float) -> tuple[Network, dict[str, Any]]:
        """Let forge choose the axes; return the model with the fields of its row."""
        request: dict[str, Any] = {
            "data": self.start.data, "accept_weak_base": True, "options": self.start.options,
            "out": self.folder / f"{rate:g}-{FORGED[axis]}", "cache": self.folder / "cache",
            "training": Training(steps=0, device="auto", batch_size=16), **self.opened,
        }  # fmt: skip
        if FORGED[axis] == "rate":
            model = edgevit.derive(self.start.name, rate=rate, **request).model
        else:
            settings = {name: getattr(self.target, name) for name in ("provider", "precision", "threads")}
            measured = edgevit.cost(self.start.name, model_args=self.start.model_args, **settings)
            budget = (1 - rate) * measured.in_quantity("ms").base
            model = edgevit.meet(self.start.name, ms=budget, target=self.target, **request)[0].model
        spec = model.spec
        embed = spec.timm_args.get("embed_dim", self.geometry.embed)  # of a timm name that says it by itself, as whole
        fields = {"macs": 1 - spec.rate, "embed": embed, "blocks": [asdict(block) for block in spec.blocks]}
        return model, fields

    def rows(self, axis: str, rate: float) -> Iterator[Row]:
        """Measure one row for each batch size, or return one that says why there is no such model."""
        common = {"model": self.model, "rate": rate, "axis": axis}
        try:
            network, fields = self.planned(axis, rate) if axis in PLANNED else self.forged(axis, rate)
        except BudgetError as error:
            yield {**common, "refused": str(error)}
            return
        load = os.getloadavg()[0]
        for measured in self._graphed(network) if self.graphs else self._alternated(network):
            yield {**common, **fields, **measured, "load_average": load}

    def _alternated(self, network: Network) -> Iterator[Row]:
        """Measure by ONNX Runtime."""
        threads, batches = self.target.threads, BATCHES
        conditions = edgevit.Conditions(
            batches=batches, threads=threads, samples=50, duration_s=1.0, provider=self.target.provider,
            precision=self.target.computes_in,
        )  # fmt: skip
        files = [self._written(self.network, "base"), self._written(network, "model")]
        runs = edgevit.bench_in_turns(files, conditions, rounds=self.rounds, alternate=True).runs
        chip = runs[0].environment.get("cpu" if self.target.provider in (None, "cpu") else "gpu", "unknown")
        of_gpu = [] if self.target.provider in (None, "cpu") else [self.target.provider, self.target.computes_in]
        for comparison in decisive(compare_within(runs)):
            yield {
                "batch": comparison.batch, "ratio": comparison.ratio, "interval": [comparison.low, comparison.high],
                "figure": comparison.figure, "outcome": comparison.outcome, "base_ms": comparison.before_value,
                "rounds": comparison.rounds, "threads": threads, "where": ", ".join([runs[0].runner, *of_gpu, chip]),
            }  # fmt: skip

    def _written(self, network: Network, name: str) -> Path:
        file, size = self.folder / f"{name}.onnx", network.input_size
        options: dict[str, Any] = {"input_size": size, "batch": "dynamic", "opset": OPSET, "metadata": {}}
        write_onnx(network, file, precision=self.target.computes_in, **options)
        return file

    @torch.inference_mode()
    def _graphed(self, network: Network) -> Iterator[Row]:
        """Measure by torch in CUDA graphs; the host's clock sees the whole run."""
        networks = [deepcopy(module).eval().to("cuda", torch.float16) for module in (self.network, network)]
        for batch in GRAPHED_BATCHES:
            images = torch.randn(batch, *network.input_size, device="cuda", dtype=torch.float16)
            replays = [in_cuda_graph(module, images) for module in networks]

            def run(replay: Callable[[], Any]) -> None:
                replay()
                torch.cuda.synchronize()

            times = interleave([partial(run, replay) for replay in replays], GRAPHED_ROUNDS, 0.0)
            ratios = [model_time / base for base, model_time in zip(*times, strict=True)]
            low, middle, high = quantiles(ratios, n=4)
            yield {
                "batch": batch, "ratio": middle, "quartiles": [low, high], "base_ms": median(times[0]),
                "rounds": len(ratios), "where": f"torch CUDA graphs, fp16, {torch.cuda.get_device_name()}",
            }  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------


SHOWN_RATE = 0.8


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("axes")
    if record is None:
        return ""
    rows = [row for row in picked(record["rows"], rate=SHOWN_RATE) if "refused" not in row]
    columns = list(grouped(rows, "model", "where", "batch"))
    lines = []
    for axis in AXES:
        cells = [picked(rows, axis=axis, model=model, where=place, batch=batch) for model, place, batch in columns]
        share = next((f"{row[0]['macs']:.3f}" for row in cells if row), "")
        lines.append([axis, share, *(f"{row[0]['ratio']:.2f}" if row else "" for row in cells)])
    return screen(
        "Which MACs save milliseconds?",
        f"Latency as a share of the base's with {SHOWN_RATE:g} of the MACs gone from one axis alone, and from the axes "
        "that forge chooses. Random weights (time depends on shapes), each model in turns with its base. On a GPU that "
        "one image does not fill, only fewer kernels (blocks) save time; on a CPU latency follows the MACs.",
        [
            table(
                [
                    "MACs gone from",
                    "MACs left",
                    *(f"{model}, {place}, batch {batch}" for model, place, batch in columns),
                ],
                lines,
            )
        ],
        "python -m benchmarks.product.axes",
        "a Jetson. Intervals, 0.9 of the MACs and the sizes of each model, which the record has. Empty: not "
        "measured, or "
        "no model of the axis has these MACs.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["deit_tiny", "deit_small"])
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--provider", choices=PROVIDERS, help="what ONNX Runtime computes on; the CPU, unless given")
    parser.add_argument("--precision", choices=PRECISIONS, help="of ONNX files; fp32 on the CPU, fp16 on a GPU")
    parser.add_argument("--graphs", action="store_true", help="torch in CUDA graphs in place of ONNX Runtime")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    target = MeasurementTarget(threads=options.threads, provider=options.provider, precision=options.precision)
    if options.graphs:
        target = MeasurementTarget(provider="cuda")  # whose table forge's milliseconds are counted by
    setting = f"{'graphs' if options.graphs else 'onnxruntime'}, {target.provider or 'cpu'}, {target.computes_in}"
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.out.is_file() else []
    recorded = {(row.get("asked", FIRST), row["model"], row["rate"], row["axis"]) for row in rows}
    for model in options.models:
        due = [
            (axis, rate)
            for rate in options.rates
            for axis in options.axes
            if (setting, model, rate, axis) not in recorded
        ]
        if not due:
            continue
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(model, Path(folder), target=target, graphs=options.graphs, rounds=options.rounds)
            for axis, rate in due:
                for row in bench.rows(axis, rate):
                    rows.append(row if setting == FIRST else {**row, "asked": setting})
                    print(json.dumps({name: value for name, value in row.items() if name != "blocks"}), flush=True)
                write_whole(options.out, json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
