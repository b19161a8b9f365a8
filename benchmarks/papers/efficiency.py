"""The papers' tables of latency and memory, measured again: every method's model beside its base, in turns.

    python -m benchmarks.papers.efficiency methods                          # Vulcan's Tables 2 and 10
    python -m benchmarks.papers.efficiency ratios                           # HEART-ViT's Tables 4 and 5
    python -m benchmarks.papers.efficiency depth                            # Vulcan's Table 18; --precision fp16
    python -m benchmarks.papers.efficiency compressed                       # its Table 5: weights of zero, and INT8
    python -m benchmarks.papers.efficiency heads                            # its Table 7: heads of unequal widths
    python -m benchmarks.papers.efficiency methods --model deit_tiny --rates 0.8 --rounds 6
    python -m benchmarks.papers.efficiency methods --provider cuda  # this machine's GPU, in fp32; --precision fp16
    python -m benchmarks.papers.efficiency methods --board jetson@orin-nx   # engines, over SSH

On this machine through ONNX Runtime, on a board as engines; a row says where it ran. Memory is the peak of the process;
a board's rows have the GPU's, the engine's own account and the energy of an image, too, as far as the board tells them.
ONNX Runtime tells nothing of a discrete GPU's memory. Weights are random and nothing is
trained: what a method leaves has the sizes that its rule gives such weights, at equal MACs, and latency follows sizes.
Shape `paper`, as published; forge is `fused`.

Of Vulcan's other tables of latency:
- Table 5 is the part `compressed`: the base; the base with `--share` of the weights of every layer set to zero in
  place; and the base in INT8, by ONNX Runtime's dynamic quantisation, on a processor. Where the first two are engines
  or run on a GPU, INT8 has a session of its own on that machine's processor, and no interval; a board needs ONNX
  Runtime for it. No part builds an INT8 engine of TensorRT.
- Table 7 is the part `heads`: the base, whose heads are one product; the same heads one by one; and one by one with
  widths that are drawn for each block (`--seed`), at equal MACs and parameters. No plan of edgevit says the last two:
  they are written by uneven.py, and exported as ONNX files that edgevit did not make.
- Table 18 is the part `depth`: the base, Vulcan at 0.8, and that model without three of its blocks. As in the paper
  they go one after the other, each the block without which the accuracy on training images is highest
  (`--remove-blocks`). With random weights and images of noise the choice is arbitrary, and blocks of one model are not
  of one size: another choice has another latency. The paper distils afterwards, which changes no latency: depth.py does
  so with a trained base. Its fourth row is the third in fp16: `--precision fp16`, and then of all rows, the base among
  them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

import edgevit
from benchmarks.markdown import RECORDS, grouped, picked, table
from benchmarks.papers.compressed import write_int8, zero_least
from benchmarks.papers.uneven import attention_counts, drawn, even, one_by_one
from benchmarks.product.budgets import MODELS, Start, start_from
from edgevit.agent.records import Run
from edgevit.agent.runners.onnxruntime import PROVIDERS
from edgevit.board.comparison import compare_within, decisive, make_row
from edgevit.engines.options import EngineOptions
from edgevit.engines.unjudged import OPSET
from edgevit.errors import BoardError
from edgevit.exporting.graph import write_onnx
from edgevit.network.folder import save
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import write_whole
from edgevit.train.settings import Training

RESULTS = RECORDS / "efficiency.json"
RATES = (0.2, 0.4, 0.6, 0.8)
RATIOS = ((0.2, 0.2), (0.4, 0.4), (0.5, 0.5), (0.6, 0.6), (0.8, 0.8), (0.2, 0.8), (0.4, 0.6), (0.6, 0.4), (0.8, 0.2))
DEPTH_RATE, BLOCKS_OUT = 0.8, 3  # of Table 18
SHARE = 0.5  # of the weights, set to zero; Table 5 does not say its own
ROUNDS = 8
IMAGES = {"calibration_images": 16}
ACCEPTED: dict[str, Any] = {"accept_weak_base": True, "accept_preprocessing": True}  # weights are random
METHODS: dict[
    str, tuple[str, dict[str, Any]]
] = {  # shape and options; few images, as random weights have nothing to lose
    "random": ("paper", {}),
    "nvit": ("paper", IMAGES),
    "xpruner": ("paper", {**IMAGES, "mask_passes": 1}),
    "dcvit": ("paper", IMAGES),
    "mdp": ("paper", IMAGES),
    "vulcan": ("paper", IMAGES),
    "nuwa": ("paper", {**IMAGES, "purification": "none"}),
    "corp": ("paper", IMAGES),
    "wanda": ("paper", IMAGES),
    "taylor": ("paper", IMAGES),
    "magnitude": ("paper", {}),
    "torch_pruning": ("paper", IMAGES),
    "forge": ("fused", {"calibration_images": 48, "sensitivity_images": 16}),
}
OPTIONAL = "torch_pruning"  # a library of its own, which not everybody has
# Vulcan's Table 10, Orin NX, batch 1: latency in ms and memory in GB, of the dense model, and by rate of these methods.
_DENSE = (45.45, 0.34)
_IN_TABLE_10 = ("random", "nvit", "xpruner", "dcvit", "mdp", "vulcan")
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
# Vulcan's Table 18, fp32: latency in ms of the dense model, of Vulcan at 0.8, and of that without three blocks.
_OF_DEPTH = {"Table 18, Orin NX": (45.45, 15.04, 13.16), "Table 18, RTX 4090": (274.27, 99.14, 82.24)}
# Vulcan's Table 5, Orin NX: latency in ms of the dense model, in INT8 on the processor, and with weights of zero.
_OF_COMPRESSED = {
    "deit_base": (45.45, 3429.48, 45.47), "deit_small": (15.58, 1497.11, 15.80), "deit_tiny": (14.52, 666.43, 14.88)
}  # fmt: skip
# Vulcan's Table 7: latency in ms of heads of one width and of uneven ones.
_OF_HEADS: dict[str, dict[str, tuple[float, float]]] = {
    "Orin NX, batch 1": {"deit_base": (45.45, 84.10), "deit_small": (15.58, 50.66), "deit_tiny": (14.52, 31.50)},
    "A40, batch 256": {"deit_base": (600.52, 629.62), "deit_small": (186.30, 200.63), "deit_tiny": (76.45, 82.51)},
}
# Shares of the dense model's, by part and column: a row of `methods` is (name, rate), one of `ratios` ("heart", t, h),
# one of `depth` ("vulcan", rate) or ("vulcan", rate, blocks out), others (model, name) and what is behind the name.
PUBLISHED: dict[str, dict[str, dict[tuple[str | float, ...], float]]] = {
    "methods": {
        f"Table 10, {quantity}": {
            (method, rate): value / _DENSE[i]
            for rate, columns in _OF_METHODS.items()
            for method, value in zip(_IN_TABLE_10, columns[i], strict=True)
        }
        for i, quantity in enumerate(("latency", "memory"))
    },
    "ratios": {
        title: {("heart", *pair): ms / dense for pair, ms in zip(RATIOS, figures, strict=True)}
        for title, (dense, figures) in _OF_RATIOS.items()
    },
    "depth": {
        title: {("vulcan", DEPTH_RATE): whole / dense, ("vulcan", DEPTH_RATE, BLOCKS_OUT): cut / dense}
        for title, (dense, whole, cut) in _OF_DEPTH.items()
    },
    "compressed": {
        "Table 5, Orin NX": {
            **{(model, "int8"): int8 / dense for model, (dense, int8, _) in _OF_COMPRESSED.items()},
            **{(model, "zeroed", SHARE): zeroed / dense for model, (dense, _, zeroed) in _OF_COMPRESSED.items()},
        }
    },
    "heads": {
        f"Table 7, {device}": {(model, "uneven"): uneven / dense for model, (dense, uneven) in figures.items()}
        for device, figures in _OF_HEADS.items()
    },
}


# What rows of a board tell beside the peak of RAM: the title of its column, and where a run has it.
MORE: dict[str, tuple[str, Callable[[Run], float | None]]] = {
    "memory_nvmap_mib": ("GPU memory, MiB", lambda run: run.memory_nvmap_bytes and run.memory_nvmap_bytes / 2**20),
    "memory_engine_mib": ("engine, MiB", lambda run: run.memory_engine_bytes and run.memory_engine_bytes / 2**20),
    "energy_mj": ("mJ/image", Run.energy_per_image_mj),
    "energy_net_mj": ("net mJ/image", Run.net_energy_per_image_mj),
}
# What some rows have besides, and the title of its column.
COLUMNS = {
    **{name: title for name, (title, _) in MORE.items()},
    "attention_nodes": "nodes of an attention",
    "attention_products": "of these products",
    "fused": "attentions fused by TensorRT-RTX",
}


@dataclass(frozen=True)
class ModelRow:
    """One row: a model to derive and measure."""

    name: str  # of the method
    of: tuple[float, ...]  # its rate; or its ratios of tokens and heads; or its rate, and the blocks that go afterwards
    request: dict[str, Any]  # of `edgevit.derive`

    @property
    def folder(self) -> str:
        return label_of(self.name, self.of)


def model_rows(part: str, rates: Sequence[float], methods: Sequence[str]) -> Iterator[ModelRow]:
    """Yield the rows of a part."""
    if part == "ratios":
        for tokens, heads in RATIOS:
            few = {"calibration_images": 4, "probes": 1, "selection": "percentile"}
            options = {**few, "token_ratio": tokens, "head_ratio": heads}
            yield ModelRow("heart", (tokens, heads), {"rate": 0.01, "shape": "paper", "options": options})
        return
    if part == "depth":
        shape, options = METHODS["vulcan"]
        request = {"rate": DEPTH_RATE, "shape": shape, "options": options}
        yield ModelRow("vulcan", (DEPTH_RATE,), request)
        yield ModelRow("vulcan", (DEPTH_RATE, BLOCKS_OUT), {**request, "remove_blocks": BLOCKS_OUT})
        return
    for rate in rates:
        for name in methods:
            shape, options = METHODS[name]
            yield ModelRow(name, (rate,), {"rate": rate, "shape": shape, "options": options})


@dataclass(frozen=True)
class Candidate:
    """A model that is ready to be measured beside its base."""

    method: str
    of: tuple[float, ...]
    path: Path  # a folder with an export, or an ONNX file of the base's MACs and parameters
    fields: dict[str, Any] = field(default_factory=dict)  # of its row, besides
    alone: bool = False  # on the processor, where the others are not

    @property
    def label(self) -> str:
        return label_of(self.method, self.of)

    @property
    def file(self) -> Path:
        return self.path if self.path.is_file() else min((self.path / "export").glob("*.onnx"), key=_size)


def label_of(method: str, of: Sequence[float]) -> str:
    return "-".join([method, *map(str, of)])


def _size(file: Path) -> int:
    return file.stat().st_size


def measured(start: Start, options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Make the models of a part, then measure them and their base in one session."""
    base = Candidate("base", (), folder / "base")
    opened: dict[str, Any] = {"checkpoint": start.checkpoint, "model_args": start.model_args, **start.more}
    edgevit.base(start.name, out=base.path, data=start.data, **ACCEPTED, **opened)
    _ready(base.path, options)
    if options.part == "compressed":
        candidates = make_compressed(base.path, options)
    elif options.part == "heads":
        candidates = make_heads(base.path, options)
        base = replace(base, fields=_head_counts(base))
    else:
        candidates = make_models(start, list(model_rows(options.part, options.rates, options.methods)), options, folder)
    conditions = edgevit.Conditions(
        batches=tuple(options.batch), threads=None if options.board else options.threads, samples=100, duration_s=1.0,
        provider=options.provider, precision=options.precision,
    )  # fmt: skip
    in_turns = [base, *(candidate for candidate in candidates if not candidate.alone)]
    runs = _bench(in_turns, conditions, options)
    on_processor = replace(conditions, runner="onnxruntime", provider="cpu", precision=None, threads=options.threads)
    apart: list[Run] = []
    for candidate in (candidate for candidate in candidates if candidate.alone):
        try:
            apart += _bench([candidate], on_processor, options)
        except BoardError as error:
            print(f"{candidate.label}: {error}", flush=True)
    of_base = edgevit.load(base.path).spec
    for batch in dict.fromkeys(run.batch for run in runs):
        of_batch = [run for run in runs if run.batch == batch]
        # A comparison names a model by its label and precision.
        ratios = {candidate.after.partition(" ")[0]: candidate for candidate in decisive(compare_within(of_batch))}
        dense = median(make_row(run).p50_ms for run in of_batch if run.label == base.label)
        for candidate in (base, *candidates):
            mine = [run for run in (*runs, *apart) if (run.label, run.batch) == (candidate.label, batch)]
            if not mine:
                continue
            spec = edgevit.load(candidate.path).spec if ModelFolder(candidate.path).is_model else of_base
            rows, ratio = [make_row(run) for run in mine], ratios.get(candidate.label)
            p50_ms = median(row.p50_ms for row in rows)
            yield {
                "part": options.part, "model": options.model, "method": candidate.method, "of": list(candidate.of),
                "macs": spec.macs, "params": spec.params, "file_bytes": _size(candidate.file), "p50_ms": p50_ms,
                "images_per_s": median(row.images_per_s for row in rows),
                "memory_mib": _median(row.memory_peak_mib for row in rows),
                **{name: _median(map(of_run, mine)) for name, (_, of_run) in MORE.items()},
                "ratio": p50_ms / dense if ratio is None else ratio.ratio,
                "interval": None if ratio is None else [ratio.low, ratio.high],
                "figure": None if ratio is None else ratio.figure, "batch": batch,
                "where": _place(runs[0], options.board),
                "load_average": os.getloadavg()[0],
                **({"elsewhere": _place(mine[0], options.board)} if candidate.alone else {}),
                **candidate.fields,
            }  # fmt: skip


def _bench(models: Sequence[Candidate], conditions: edgevit.Conditions, options: argparse.Namespace) -> tuple[Run, ...]:
    labels = [candidate.label for candidate in models]
    settings: dict[str, Any] = {"labels": labels, "rounds": options.rounds, "board": options.board}
    return edgevit.bench_in_turns([candidate.path for candidate in models], conditions, **settings).runs


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if there are none."""
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def make_models(start: Start, rows: Sequence[ModelRow], options: argparse.Namespace, folder: Path) -> list[Candidate]:
    """Derive and export the models in parallel processes, without those whose budget cannot be met."""
    due = {row.folder: row for row in rows}  # a budget of two rows is derived once
    make = partial(_derive, start=start, options=options, folder=folder)
    if options.jobs > 1:
        threads = max((os.cpu_count() or 1) // options.jobs, 1)
        with ProcessPoolExecutor(options.jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
            met = list(pool.map(make, due.values()))
    else:
        met = [make(row) for row in due.values()]
    pairs = zip(due.items(), met, strict=True)
    return [Candidate(row.name, row.of, folder / name, fields) for (name, row), fields in pairs if fields is not None]


def _derive(row: ModelRow, *, start: Start, options: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """Derive and export one model; return fields of its row, or None if its budget cannot be met."""
    try:
        made = edgevit.derive(
            start.name, out=folder / row.folder, data=start.data, method=row.name, **ACCEPTED,
            cache=folder / "cache", training=Training(steps=0, device="auto", batch_size=16),
            checkpoint=start.checkpoint, model_args=start.model_args, **start.more, **row.request,
        )  # fmt: skip
    except edgevit.errors.BudgetError as error:
        print(f"{row.folder}: {error}", flush=True)
        return None
    _ready(folder / row.folder, options)
    removed = made.record.facts.more.get("blocks_removed")
    return {} if removed is None else {"blocks_out": sorted(removed)}


# -- forms that edgevit does not derive --------------------------------------------------------------------------------


def make_compressed(base: Path, options: argparse.Namespace) -> list[Candidate]:
    """Make the base with weights of zero, and in INT8."""
    model = edgevit.load(base)
    zero_least(model, options.share)
    zeroed = Candidate("zeroed", (options.share,), base.with_name("zeroed"))
    save(model, zeroed.path)
    _ready(zeroed.path, options)
    int8 = Candidate(
        "int8", (), base.with_name("int8.onnx"), alone=bool(options.board or options.provider not in (None, "cpu"))
    )
    write_int8(ModelFolder(base).export.onnx("fp32"), int8.path)
    return [zeroed, int8]


def make_heads(base: Path, options: argparse.Namespace) -> list[Candidate]:
    """Make the base with its heads one by one, and with heads of unequal widths one by one."""
    spec = edgevit.load(base).spec
    channels, height, width = spec.preprocessing["input_size"]
    prepared = {name: spec.preprocessing[name] for name in ("mean", "std", "crop_pct", "interpolation")}
    candidates = []
    for method, widths in (("separate", even(spec.blocks)), ("uneven", drawn(spec.blocks, options.seed))):
        candidate = Candidate(method, (), base.with_name(method))
        file = candidate.path.with_suffix(".onnx")
        network = one_by_one(edgevit.load(base), widths)
        write_onnx(network, file, input_size=(channels, height, width), batch="dynamic", opset=OPSET, metadata={})
        _ready(file, options, out=candidate.path, preprocessing=prepared)
        draw = {"seed": options.seed, "widths": [str(width) for width in widths]} if method == "uneven" else {}
        candidates.append(replace(candidate, fields={**_head_counts(candidate), **draw}))
    return candidates


def _head_counts(candidate: Candidate) -> dict[str, Any]:
    fusion = ModelFolder(candidate.path).export.record().fusion
    return {**attention_counts(candidate.file), "fused": fusion and fusion.fused}


def _place(run: Run, board: str | None) -> str:
    """Name the machine and its processor; a new session of a place replaces the old one."""
    on_cpu = (run.provider or "").startswith("CPU")
    chip = next((run.environment[n] for n in (("cpu",) if on_cpu else ("module", "gpu")) if n in run.environment), "")
    return ", ".join(filter(None, [f"{board or 'this machine'}: {run.runner}", run.provider, run.precision, chip]))


def _ready(model: Path, options: argparse.Namespace, **export: Any) -> None:
    if options.board is None:
        # TensorRT-RTX counts in the fp16 file which attentions it fuses.
        edgevit.export(model, fp16=options.precision == "fp16" or options.part == "heads", accuracy=False, **export)
        return
    engine = EngineOptions(batches=(1, *options.batch, *options.batch))
    edgevit.export(model, trt=True, board=options.board, engine=engine, **export)


TITLES = {
    "methods": "Latency of what each method leaves",
    "ratios": "Latency by HEART's ratios of tokens and heads",
    "depth": "Latency with blocks taken out behind Vulcan (its Table 18)",
    "compressed": "Latency of weights of zero, and of INT8 (Vulcan's Table 5)",
    "heads": "Latency of heads of unequal widths (Vulcan's Table 7)",
}
SOURCES = {
    "methods": "Vulcan, Table 10, Orin NX, of a DeiT-Base",
    "ratios": "HEART-ViT, AGX Orin, before fine-tuning, of a DeiT-Base",
    "depth": "Vulcan, Table 18, fp32, of a DeiT-Base",
    "compressed": "Vulcan, Table 5, of the same model",
    "heads": "Vulcan, Table 7, of the same model",
}
DEPTH = (
    "Blocks are taken out one after the other, each the one without which the accuracy on the training images is "
    "highest; with random weights and images of noise that choice is arbitrary. The paper's last row is its third in "
    f"fp16: {11.35 / 45.45:.3f} and {28.34 / 274.27:.3f} of its base in fp32; a table in fp16 here is relative to a "
    "base in fp16."
)
COMPRESSED = (
    "`zeroed`: in every linear layer and the patch embedding, that share of the weights of least magnitude is set to "
    "zero in place, as Han et al. do it, whom the paper cites without giving its share. `int8`: ONNX Runtime's dynamic "
    "quantisation of the fp32 file to INT8 weights. It computes on a processor and is no INT8 engine of TensorRT, "
    "which nothing here measures. The paper says that Orin does not support INT8 and measures INT8 on its processor; "
    "NVIDIA publishes INT8 TOPS of Orin's GPU (60 of an Orin NX 16 GB, sparse). Weights are random, so there is no "
    "accuracy."
)
HEADS = (
    "`base`: edgevit's attention, one product over all heads of one width. `separate`: the same heads computed one "
    "after the other. `uneven`: likewise, with widths drawn for each block, QK and VO apart, every partition of the "
    "total as likely as another; the record has them. The projections before and after the heads stay one product "
    "each, so MACs and parameters are those of the base. The paper's two rows are `base` and `uneven`. Nodes are those "
    "of one attention in the exported file, products the `MatMul` among them. TensorRT-RTX fuses a block's attention "
    "in `base` and one head's in the others; a board's TensorRT is another compiler."
)
INTRODUCTION = {"depth": DEPTH, "compressed": COMPRESSED, "heads": HEADS}


def section(data: dict[str, Any] | None) -> str:
    """Format the section of README.md."""
    if data is None:
        return ""
    parts = []
    for part, title in TITLES.items():
        sessions = grouped(picked(data["rows"], part=part), "model", "where", "batch")
        if not sessions:
            continue
        head = (
            "Random weights; models in turns. Latency as a share of the base's with its 95 % interval, where rounds "
            "were enough; memory is the process's peak of RAM. Published: "
            f"{SOURCES[part]}, in its own runtime and precision, as a share of its dense model. images/s is a mean "
            "over each run and latency a median: where they disagree, single inferences were slow. "
            + INTRODUCTION.get(part, "")
        )
        parts.append(f"## {title}\n\n{chr(10).join(textwrap.wrap(head, 118))}\n")
        for (model, place, batch), rows in sorted(sessions.items()):
            load = max(row["load_average"] for row in rows)
            by_processor = any(row["figure"] == "processor" for row in rows)
            busy = "; shares are of processor time, as other programs were busy" if by_processor else ""
            more = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]  # older rows have none
            fields = [COLUMNS[name] for name in more]
            titles = ["", "MACs", "latency", "interval", "images/s", "memory, MiB", *fields, "file", *PUBLISHED[part]]
            lines = [_line(row, rows[0], more, PUBLISHED[part].values()) for row in rows]
            parts += [
                f"### {model}, batch {batch}, on {place}\n",
                f"Load average up to {load:.1f}{busy}.\n",
                table(titles, lines),
            ]
    return "\n".join(parts)


def _line(
    row: dict[str, Any], base: dict[str, Any], more: Sequence[str], published: Iterable[dict[Any, float]]
) -> list[str]:
    ends = row["interval"] or [None, None]
    key = (row["method"], *row["of"])
    shares = [of.get(key, of.get((row["model"], *key))) for of in published]
    out = row.get("blocks_out", [])
    of = "/".join(f"{value:g}" for value in (row["of"][:1] if out else row["of"]))
    suffix = f", without blocks {', '.join(map(str, out))}" if out else ""
    suffix += f", on {row['elsewhere']}" if "elsewhere" in row else ""
    return [
        f"{row['method']} {of}".strip() + suffix,
        f"{row['macs'] / base['macs']:.3f}",
        f"{row['ratio']:.3f}",
        f"{ends[0]:.3f} to {ends[1]:.3f}" if None not in ends else "",
        f"{row['images_per_s']:.0f}",
        *("" if row.get(name) is None else f"{row[name]:.0f}" for name in ("memory_mib", *more)),
        f"{row['file_bytes'] / base['file_bytes']:.3f}",
        *("" if share is None else f"{share:.3f}" for share in shares),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=TITLES)
    parser.add_argument("--model", choices=(*MODELS, "demo"), default="deit_base")
    parser.add_argument("--rates", type=float, nargs="*", default=list(RATES))
    at_hand = [name for name in METHODS if name != OPTIONAL or find_spec(OPTIONAL)]
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=at_hand)
    parser.add_argument("--share", type=float, default=SHARE, help="of the weights that are zero, of `compressed`")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of widths, of `heads`")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--board")
    target.add_argument("--provider", choices=PROVIDERS, help="what ONNX Runtime computes on, on this machine")
    parser.add_argument("--precision", choices=("fp32", "fp16"), help="of ONNX files; fp32, unless given")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=1, help="processes that derive and export; one measures")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.board is None:
        options.precision = options.precision or "fp32"
    elif len(options.batch) > 1:
        parser.error("an engine is tuned for one batch size; with --board give one --batch")
    elif options.precision is not None:
        parser.error("--precision is of ONNX files; engines are fp16, or what the board's gate asks for")
    if not 0 < options.share < 1:
        parser.error(f"--share is {options.share}: it must be between 0 and 1; try {SHARE}")
    results: dict[str, Any] = (
        json.loads(options.out.read_text()) if options.out.is_file() else {"schema": 1, "rows": []}
    )
    with tempfile.TemporaryDirectory() as scratch:
        new = list(measured(start_from(options.model, Path(scratch)), options, Path(scratch)))
    # One session is one comparison: what was measured of this model there before is replaced.
    sessions = {(row["part"], row["model"], row["where"], row["batch"]) for row in new}
    unchanged = [r for r in results["rows"] if (r["part"], r["model"], r["where"], r["batch"]) not in sessions]
    write_whole(options.out, json.dumps({**results, "rows": [*unchanged, *new]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
