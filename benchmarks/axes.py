"""What a share of the MACs is worth in milliseconds, by what it was taken from: latency beside MACs, axis by axis.

    python benchmarks/axes.py                                     # all that is not in results/axes.json yet
    python benchmarks/axes.py --models deit_tiny --rates 0.8 --axes depth tokens --rounds 4

0.8 and 0.9 of the MACs of DeiT-Tiny and DeiT-Small are gone, each time from one axis alone: the widths of heads and
FFNs, whole blocks, the embedding together with blocks, the tokens. Beside them stands what forge takes when it may take
from all of them, by a budget of MACs, and by as large a share of the milliseconds. Weights are random and nothing is
trained: time depends on shapes. So forge's mix is decided by random weights, and is not what it would be for trained
ones. Each model alternates with its base in ONNX Runtime (docs/decisions/045-alternating.md). Rows are written as they
come.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import timm
from meet import MODELS, Start, start_from
from predictions import write
from tables import Row, grouped, picked, table
from torch import nn

import edgevit
from edgevit.cost.place import Place
from edgevit.derive.allocate.policy import POLICIES
from edgevit.errors import BudgetError
from edgevit.folder.writing import write_whole
from edgevit.models.anatomy import BlockDims
from edgevit.models.cost import Geometry
from edgevit.models.families import family_of
from edgevit.prove.suite import shape_dims
from edgevit.report.runs import compare_within, decisive
from edgevit.train.settings import Training

RESULTS = Path(__file__).parent / "results" / "axes.json"
RATES = (0.8, 0.9)
BATCHES = (1, 8)
FUSED = POLICIES["fused"]
NEAR = 0.1  # what an axis that goes in whole blocks or tokens may differ by from the MACs that are to be left

Plan = tuple[list[BlockDims], int]  # blocks, and the embedding's width


# -- one axis alone ----------------------------------------------------------------------------------------------------


def widths(base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """All heads and neurons narrower, in the first shape that is small enough."""
    for form in ("fused", "fused4", "paper"):
        try:
            return list(shape_dims(form, base, geometry, rate)), geometry.embed
        except BudgetError as error:
            last = error
    raise last


def depth(base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """Fewer blocks, each whole: as many as come nearest."""
    counts = range(1, len(base) + 1)
    return _nearest([(list(base[:n]), geometry.embed) for n in counts], base, geometry, rate)


def embedding_and_depth(base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """Embedding, blocks and heads' widths shrunk alike, by the cube root of what is left; neurons fill the rest.

    A block's MACs grow with the embedding times the widths, and there are as many of them as blocks.
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
    """Tokens leave behind the first block: as many stay as come nearest; two at least, the class token and another."""
    counts = range(2, geometry.tokens)
    plans = [([replace(base[0], tokens=count), *base[1:]], geometry.embed) for count in counts]
    return _nearest(plans, base, geometry, rate)


def _nearest(plans: Sequence[Plan], base: Sequence[BlockDims], geometry: Geometry, rate: float) -> Plan:
    """Raises BudgetError where none is near."""
    aim = (1 - rate) * geometry.macs(base)
    best = min(plans, key=lambda plan: abs(geometry.macs(plan[0]) - aim))
    if abs(geometry.macs(best[0]) / aim - 1) > NEAR:
        left = geometry.macs(best[0]) / geometry.macs(base)
        raise BudgetError(f"nothing between leaves {1 - rate:.3g} of the MACs: the nearest leaves {left:.3f}")
    return best


PLANNED = {"widths": widths, "depth": depth, "embedding and depth": embedding_and_depth, "tokens": tokens}
FORGED = {"forge, by MACs": "rate", "forge, by milliseconds": "ms"}
AXES = (*PLANNED, *FORGED)


# -- models, and what they take ----------------------------------------------------------------------------------------


class Bench:
    """A base, and models cut from it that are measured alternately with it."""

    def __init__(self, model: str, folder: Path, *, threads: int, rounds: int) -> None:
        self.model, self.folder, self.threads, self.rounds = model, folder, threads, rounds
        self.start: Start = start_from(model, folder)
        self.network: nn.Module = timm.create_model(MODELS[model], num_classes=2)  # as many as `start_from` gives it
        family = family_of(self.network)
        self.geometry = family.geometry(self.network)
        self.base = [block.dims for block in family.read(self.network)]
        self.opened: dict[str, Any] = {
            "checkpoint": self.start.checkpoint,
            "model_args": self.start.model_args,
            **self.start.more,
        }
        self.written = write(self.network, self.base, folder / "base.onnx")

    def planned(self, axis: str, rate: float) -> tuple[Path, dict[str, Any]]:
        """Write a model of one axis; the file, and what is told of it."""
        blocks, embed = PLANNED[axis](self.base, self.geometry, rate)
        whole = embed == self.geometry.embed
        macs = self.geometry.with_embed(embed).macs(blocks) / self.geometry.macs(self.base)
        path = write(self.network, blocks, self.folder / f"{rate:g}-{axis}.onnx", None if whole else embed)
        return path, {"macs": macs, "embed": embed, "blocks": [asdict(block) for block in blocks]}

    def forged(self, axis: str, rate: float) -> tuple[Path, dict[str, Any]]:
        """Let forge mix; the folder, and what is told of it."""
        out = self.folder / f"{rate:g}-{FORGED[axis]}"
        given: dict[str, Any] = {
            "data": self.start.data, "accept_weak_base": True, "options": self.start.options, "out": out,
            "training": Training(steps=0, device="cpu", batch_size=16), "cache": self.folder / "cache", **self.opened,
        }  # fmt: skip
        if FORGED[axis] == "rate":
            made = edgevit.derive(self.start.name, rate=rate, **given)
            edgevit.export(out, fp16=False, accuracy=False)
        else:
            measured = edgevit.cost(self.start.name, model_args=self.start.model_args, threads=self.threads)
            budget = (1 - rate) * measured.in_quantity("ms").base
            (made,) = edgevit.meet(self.start.name, ms=budget, place=Place(threads=self.threads), **given)
        spec = made.model.spec
        embed = spec.timm_args.get("embed_dim", self.geometry.embed)  # of a timm name that says it by itself, as whole
        return out, {"macs": 1 - spec.rate, "embed": embed, "blocks": [asdict(block) for block in spec.blocks]}

    def rows(self, axis: str, rate: float) -> Iterator[Row]:
        """One for each batch size; or one that says why there is no such model."""
        known = {"model": self.model, "rate": rate, "axis": axis}
        try:
            path, told = self.planned(axis, rate) if axis in PLANNED else self.forged(axis, rate)
        except BudgetError as error:
            yield {**known, "refused": str(error)}
            return
        load = os.getloadavg()[0]
        how = edgevit.Conditions(batches=BATCHES, threads=self.threads, samples=50, duration_s=1.0)
        labels = ["base", axis]
        runs = edgevit.bench_in_turns([self.written, path], how, rounds=self.rounds, alternate=True, labels=labels).runs
        for seen in decisive(compare_within(runs)):
            yield {
                **known, **told, "batch": seen.batch, "ratio": seen.ratio, "interval": [seen.low, seen.high],
                "figure": seen.figure, "outcome": seen.outcome, "base_ms": seen.before_value, "rounds": seen.rounds,
                "threads": self.threads, "load_average": load,
                "where": f"{runs[0].runner}, {runs[0].environment.get('cpu', 'unknown')}",
            }  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None or not data["rows"]:
        return ""
    parts = []
    for (model,), rows in grouped(data["rows"], "model").items():
        measured = [row for row in rows if "refused" not in row]
        if not measured:
            continue
        first = measured[0]
        head = (
            f"{model}, random weights, {first['threads']} thread, {first['where']}; alternately with the base, "
            f"{first['rounds']} rounds, load average up to {max(row['load_average'] for row in measured):.1f}. Latency "
            "as a share of the base's, with its 95 % interval, and over the share of MACs that is left: 1 is a model "
            "that is as much faster as it is smaller."
        )
        lines = [line for axis in AXES for line in _lines(axis, picked(rows, axis=axis))]
        batches = [cell for batch in BATCHES for cell in (f"batch {batch}", "over MACs")]
        lined = "\n".join(textwrap.wrap(head, 118))
        parts.append(f"### {model}\n\n{lined}\n\n" + table(["MACs gone from", "left", "of what", *batches], lines))
    return "\n".join(["## Latency beside MACs, by axis\n", *parts]) if parts else ""


def _lines(axis: str, rows: Sequence[Row]) -> Iterator[list[str]]:
    for (rate,), group in sorted(grouped(rows, "rate").items()):
        if "refused" in group[0]:
            yield [f"{axis}, {rate:g}", "", group[0]["refused"], *[""] * (2 * len(BATCHES))]
            continue
        cells = []
        for batch in BATCHES:
            found = picked(group, batch=batch)
            cells += _cells(found[0]) if found else ["", ""]
        yield [f"{axis}, {rate:g}", f"{group[0]['macs']:.3f}", made_of(group[0]), *cells]


def _cells(row: Row) -> list[str]:
    low, high = row["interval"]
    interval = "" if None in (low, high) else f" ({low:.3f} to {high:.3f})"
    return [f"{row['ratio']:.3f}{interval}", f"{row['ratio'] / row['macs']:.2f}"]


def made_of(row: Row) -> str:
    """The sizes of a model in a few words: `5 blocks of 96, 120 QK, 768 neurons`, sizes of a block in the mean."""
    blocks = row["blocks"]
    qk = sum(block["heads"] * block["qk"] for block in blocks) / len(blocks)
    neurons = sum(block["ffn"] for block in blocks) / len(blocks)
    passed = [block["tokens"] for block in blocks if block["tokens"]]
    left = f", {min(passed)} tokens at last" if passed else ""
    return f"{len(blocks)} blocks of {row['embed']}, {qk:.0f} QK, {neurons:.0f} neurons{left}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["deit_tiny", "deit_small"])
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows: list[Row] = json.loads(given.out.read_text())["rows"] if given.out.is_file() else []
    known = {(row["model"], row["rate"], row["axis"]) for row in rows}
    for model in given.models:
        due = [(axis, rate) for rate in given.rates for axis in given.axes if (model, rate, axis) not in known]
        if not due:
            continue
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(model, Path(folder), threads=given.threads, rounds=given.rounds)
            for axis, rate in due:
                for row in bench.rows(axis, rate):
                    rows.append(row)
                    print(json.dumps({name: value for name, value in row.items() if name != "blocks"}), flush=True)
                write_whole(given.out, json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
