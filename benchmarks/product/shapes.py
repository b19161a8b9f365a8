"""Do fusable shapes cost or save time? DeiT at equal MACs in three shapes, against the dense model.

    python -m benchmarks.product.shapes              # about 40 minutes on 2 cores
    python -m benchmarks.product.shapes --models tiny --rates 0.6 --batch 1 --quick
    python -m benchmarks.product.shapes --runners eager cudagraph --batch 1 8 64 \
        --output benchmarks/records/shapes_cuda.json

`paper` has QK and VO widths of their own, as Vulcan's allocation gives them. `padded` is the same model with heads
zero-padded until NVIDIA's compiler fuses them, so it has more MACs. `fused` has equal widths and the MACs of `paper`.
Weights are random, because time depends on shapes. The four forms run in turns, once per round, so that a busy machine
slows all of them; a ratio is the median over the rounds.

ONNX Runtime measures the processor. On a CUDA GPU torch is measured, too: scaled dot product attention, eager, compiled
and in a CUDA graph, in fp32 and fp16. TensorRT-RTX, where installed, counts fused attention blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import onnxruntime
import timm
import torch
from torch import Tensor

import edgevit
from benchmarks.markdown import RECORDS, load, picked, screen, table
from edgevit.exporting.fusion import compiler_installed, count_fused
from edgevit.exporting.graph import write_onnx
from edgevit.jobs.suite.suite import random_network, shape_dims
from edgevit.network.anatomy import BlockDims
from edgevit.network.network import Network

NAMES = {size: f"deit_{size}_patch16_224" for size in ("tiny", "small", "base")}
RATES = (0.2, 0.4, 0.6, 0.8)
SHAPES = ("paper", "padded", "fused")
INPUT_SIZE = (3, 224, 224)
RESULTS = RECORDS / "shapes.json"
ONNXRUNTIME = "onnxruntime"

# Loads a file in a process of its own, so that peak memory is that of one session; Linux only, like its source.
MEMORY_PROGRAM = """
import sys, numpy, onnxruntime
def status(key):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(key))
before = status("VmRSS")
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
images = numpy.zeros((int(sys.argv[2]), 3, 224, 224), numpy.float32)
for _ in range(2):
    session.run(None, {"images": images})
print(status("VmHWM") - before)
"""


@dataclass(frozen=True)
class Row:
    """One form of one model under one runner."""

    model: str
    rate: float  # asked for: the share of MACs that is gone from `paper` and `fused`; `dense` ran beside these
    shape: str
    batch: int
    runner: str
    latency_ms_median: float
    latency_ms_iqr: float
    latency_ratio: float  # to dense, median over the rounds
    latency_ratio_iqr: float
    macs_ratio: float
    rounds: int
    memory_peak_bytes: int | None  # None: not measured
    params: int
    fused: int | None  # None: not counted
    blocks: int


@dataclass(frozen=True)
class Form:
    """A network in one shape, with what does not depend on the runner."""

    shape: str
    network: Network
    macs: int
    params: int
    fused: int | None


def count_fused_blocks(network: Network, blocks: int) -> int | None:
    if not compiler_installed():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fp16.onnx"
        write_onnx(network, path, input_size=INPUT_SIZE, batch=1, opset=20, metadata={}, precision="fp16")
        return count_fused(path, blocks=blocks, expected=0).fused


def make_form(shape: str, name: str, dims: Sequence[BlockDims] | None) -> Form:
    network = random_network(name, dims)
    blocks = list(network.dims)
    macs = network.geometry.macs(blocks)
    params = sum(p.numel() for p in network.parameters())
    return Form(shape, network, macs, params, count_fused_blocks(network, len(blocks)))


def interleave(runs: Sequence[Callable[[], Any]], rounds: int, min_seconds: float) -> list[list[float]]:
    """Time every run once per round, in an order that changes with the round; milliseconds per run and round."""
    for run in runs:
        run()
        run()
    latencies: list[list[float]] = [[] for _ in runs]
    started = time.perf_counter()
    while len(latencies[0]) < rounds or time.perf_counter() - started < min_seconds:
        first = len(latencies[0]) % len(runs)
        for i in [*range(first, len(runs)), *range(first)]:
            begun = time.perf_counter_ns()
            runs[i]()
            latencies[i].append((time.perf_counter_ns() - begun) / 1e6)
    return latencies


def spread(values: Sequence[float]) -> float:
    low, _, high = quantiles(values, n=4)
    return high - low


def make_rows(
    size: str,
    rate: float,
    batch: int,
    runner: str,
    forms: Sequence[Form],
    latencies: Sequence[Sequence[float]],
    memory: Sequence[int | None],
) -> Iterator[Row]:
    """Make the rows of one comparison; the first form is the dense model."""
    for form, times, peak in zip(forms, latencies, memory, strict=True):
        ratios = [t / dense for t, dense in zip(times, latencies[0], strict=True)]
        yield Row(
            model=NAMES[size],
            rate=rate,
            shape=form.shape,
            batch=batch,
            runner=runner,
            latency_ms_median=median(times),
            latency_ms_iqr=spread(times),
            latency_ratio=median(ratios),
            latency_ratio_iqr=spread(ratios),
            macs_ratio=form.macs / forms[0].macs,
            rounds=len(times),
            memory_peak_bytes=peak,
            params=form.params,
            fused=form.fused,
            blocks=len(form.network.read()),
        )


def onnxruntime_memory(path: Path, batch: int) -> int | None:
    if not Path("/proc/self/status").exists():
        return None
    program = [sys.executable, "-c", MEMORY_PROGRAM, str(path), str(batch)]
    return int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


def measure_onnxruntime(
    size: str, rate: float, forms: Sequence[Form], batches: Sequence[int], rounds: int, min_seconds: float
) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{form.shape}.onnx" for form in forms]
        for form, path in zip(forms, paths, strict=True):
            write_onnx(form.network, path, input_size=INPUT_SIZE, batch="dynamic", opset=20, metadata={})
        sessions = [onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in map(str, paths)]
        for batch in batches:
            images = np.random.default_rng(0).standard_normal((batch, *INPUT_SIZE), dtype=np.float32)
            runs = [partial(session.run, None, {"images": images}) for session in sessions]
            latencies = interleave(runs, rounds, min_seconds)
            memory = [onnxruntime_memory(path, batch) for path in paths]
            yield from make_rows(size, rate, batch, "onnxruntime-cpu-fp32", forms, latencies, memory)


def in_cuda_graph(network: Callable[[Tensor], Tensor], images: Tensor) -> Callable[[], Any]:
    """Record one forward pass and return its replay."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm-up off the default stream, as capturing asks for
        for _ in range(3):
            network(images)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        network(images)
    return graph.replay


CUDA_WAYS: dict[str, Callable[[Network, Tensor], Callable[[], Any]]] = {
    "eager": partial,
    "compile": lambda network, images: partial(torch.compile(network), images),
    "cudagraph": in_cuda_graph,
    "compile-cudagraph": lambda network, images: in_cuda_graph(torch.compile(network), images),
}


def prepare_cuda(way: str, network: Network, images: Tensor) -> tuple[Callable[[], None], int]:
    """Return a run that ends in a synchronisation, so that the host's clock sees all of it, and its peak bytes."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    launch = CUDA_WAYS[way](network, images)

    def run() -> None:
        launch()
        torch.cuda.synchronize()

    run()
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    return run, torch.cuda.max_memory_allocated() - before + weights


def measure_cuda(
    size: str,
    rate: float,
    forms: Sequence[Form],
    batches: Sequence[int],
    rounds: int,
    min_seconds: float,
    ways: Sequence[str] = tuple(CUDA_WAYS),
) -> Iterator[Row]:
    """Measure the same comparison on a GPU."""
    with torch.inference_mode():
        for precision, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
            networks = [form.network.to("cuda", dtype) for form in forms]
            for batch, way in product(batches, ways):
                torch.compiler.reset()  # or every shape of every batch counts against the recompilation limit
                images = torch.randn(batch, *INPUT_SIZE, device="cuda", dtype=dtype)
                runs, memory = zip(*(prepare_cuda(way, network, images) for network in networks), strict=True)
                latencies = interleave(runs, max(rounds, 50), min_seconds)
                yield from make_rows(size, rate, batch, f"torch-cuda-{way}-{precision}", forms, latencies, memory)
            for form in forms:
                form.network.to("cpu", torch.float32)


def environment() -> dict[str, Any]:
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    return {
        "machine": platform.machine(),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "onnxruntime": onnxruntime.__version__,
        "edgevit": edgevit.__version__,
        "load_average": list(os.getloadavg()),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def write_results(rows: Sequence[Row], output: Path, arguments: dict[str, Any]) -> None:
    """Write the rows so far, so that a long benchmark can be stopped."""
    output.parent.mkdir(parents=True, exist_ok=True)
    record = {"schema": 1, "environment": environment(), "arguments": arguments, "rows": [asdict(row) for row in rows]}
    temporary = output.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(output)


SHOWN_RATES = (0.6, 0.8)
SHOWN = {"shapes": (("onnxruntime-cpu-fp32", 1), ("onnxruntime-cpu-fp32", 8)),
         "shapes_cuda": (("torch-cuda-cudagraph-fp16", 1), ("torch-cuda-cudagraph-fp16", 64))}  # fmt: skip


def section() -> str:
    """Format one question of RESULTS.md."""
    records = {name: load(name) for name in SHOWN}
    if None in records.values():
        return ""
    of_runner = {
        (runner, batch): picked(record["rows"], runner=runner, batch=batch)
        for name, record in records.items()
        if record is not None
        for runner, batch in SHOWN[name]
    }
    first = next(iter(of_runner.values()))
    lines = []
    for model, rate in sorted({(row["model"], row["rate"]) for row in first if row["rate"] in SHOWN_RATES}):
        cells = []
        for rows in of_runner.values():
            by_shape = [picked(rows, model=model, rate=rate, shape=shape) for shape in SHAPES]
            cells.append(", ".join(f"{row[0]['latency_ratio']:.2f}" for row in by_shape if row))
        forms = [picked(first, model=model, rate=rate, shape=shape)[0] for shape in SHAPES]
        fused = ", ".join(f"{form['fused']}" for form in forms)
        macs = ", ".join(f"{form['macs_ratio']:.3f}" for form in forms)
        lines.append([f"{model.split('_patch')[0]}, {rate:g}", macs, fused, *cells])
    cpu, gpu = (record["environment"] for record in records.values() if record is not None)
    return screen(
        "Do fusable shapes cost or save time?",
        "Latency as a share of the dense model's for three shapes: `paper` (QK and VO of their own width), `padded` "
        "(the "
        "same, zero-padded until NVIDIA's compiler fuses attention) and `fused` (equal widths, the MACs of `paper`); "
        "the "
        f"cells have them in this order. {cpu['cpu']} and {gpu['gpu']}; random weights, in turns with the dense model. "
        "Fused blocks are those that TensorRT-RTX fuses for SM 8.6, of 12: a proxy for Orin.",
        [
            table(
                ["model, MACs gone", "MACs, of dense", "fused blocks", *(f"{r}, batch {b}" for r, b in of_runner)],
                lines,
            )
        ],
        "python -m benchmarks.product.shapes",
        "a Jetson, where fusion is what counts. Other rates, batches and runners, memory and quartiles, which the "
        "records "
        "have.",
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=sorted(NAMES), default=list(NAMES))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--runners", nargs="+", choices=(ONNXRUNTIME, *CUDA_WAYS), default=[ONNXRUNTIME, *CUDA_WAYS],
                        help="what measures; all but the first are ways of torch on a CUDA GPU")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=15, help="how often each form runs, at least")
    parser.add_argument("--min-seconds", type=float, default=5.0, help="how long one comparison goes on, at least")
    parser.add_argument("--quick", action="store_true", help="3 rounds: to see that it works")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.min_seconds = 3, 0.0
    return arguments


def main() -> None:
    arguments = parse()
    settings = {k: v for k, v in vars(arguments).items() if k != "output"}
    rows: list[Row] = []
    for size in arguments.models:
        dense = make_form("dense", NAMES[size], None)
        base, geometry = list(dense.network.dims), dense.network.geometry
        for rate in arguments.rates:
            derived = [make_form(s, NAMES[size], shape_dims(s, base, geometry, rate)) for s in SHAPES]
            measures: list[Callable[..., Iterator[Row]]] = [measure_onnxruntime] * (ONNXRUNTIME in arguments.runners)
            if ways := [way for way in arguments.runners if way in CUDA_WAYS and torch.cuda.is_available()]:
                measures.append(partial(measure_cuda, ways=ways))
            for measure in measures:
                for row in measure(
                    size, rate, [dense, *derived], arguments.batch, arguments.rounds, arguments.min_seconds
                ):
                    rows.append(row)
                    print(
                        f"{row.model} {row.shape:6} rate {row.rate:.1f} batch {row.batch} {row.runner}: "
                        f"{row.latency_ms_median:.2f} ms, {row.latency_ratio:.3f} of dense with {row.macs_ratio:.3f} "
                        f"of the MACs, {row.fused} of {row.blocks} fused",
                        file=sys.stderr,
                    )
                write_results(rows, arguments.output, settings)


if __name__ == "__main__":
    main()
