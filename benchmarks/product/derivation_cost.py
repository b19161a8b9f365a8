"""How long does a derivation take? Forge's closed form of DeiT-Base, by stage, for a first and for later budgets.

    python -m benchmarks.product.derivation_cost                # writes records/derivation_cost.json
    python -m benchmarks.product.derivation_cost --images 64 --model deit_tiny_patch16_224 --out /tmp/cost.json
    python -m benchmarks.product.derivation_cost --budgets 10   # ten budgets, one command each
    python -m benchmarks.product.derivation_cost --device cuda --out benchmarks/records/derivation_cost_cuda.json

Weights are random; images are rendered and scaled up. Each budget runs in a process of its own, and all share one
cache. On the CPU all seconds are of the processor, because other programs may share it: the clocks that edgevit reads
are replaced. A program that shares a physical core still slows products, so the speed of a product is measured before
each run. On a GPU seconds are by the clock, and up to eight processes decode images.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.markdown import RECORDS, load, screen, table

ROOT = Path(__file__).parents[2]
RESULTS = RECORDS / "derivation_cost.json"
MODEL = "deit_base_patch16_224"
NO_PASSES = ("closed_form", "allocation")  # stages that run no image through a network
# Runs a script whose clocks are the processor's. What waits by a clock is imported first, and keeps its own.
BY_PROCESSOR = """
import concurrent.futures, multiprocessing, queue, runpy, selectors, subprocess, sys, threading, time
time.monotonic = time.perf_counter = time.process_time
runpy.run_module("benchmarks.product.derivation_cost", run_name="__main__")
"""
RATES = (0.6, 0.8, 0.5, 0.7, 0.9, 0.4, 0.75, 0.85, 0.3, 0.65)


@contextmanager
def timed(owner: Any, name: str, stage: str, seconds: dict[str, float]) -> Iterator[None]:
    """Add the time of a function's calls to the seconds of a stage."""
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - started

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, function)


def derive(model: str, folder: Path, data: Path, rate: float, options: dict[str, int], device: str) -> dict[str, Any]:
    """Run one derivation without training in this process; return its record."""
    import torch

    from edgevit import derive as derive_model
    from edgevit.derivation.measure import embedding, sensitivity, statistics
    from edgevit.derivation.solve.least_squares import Regression
    from edgevit.train.settings import Training

    apart: dict[str, float] = {}
    watched: list[tuple[str, Any, str]] = [
        ("sensitivity", sensitivity, "_of_batch"),
        ("statistics", statistics._Sums, "see_hidden"),
        ("statistics", statistics._Sums, "see_input"),
        ("statistics", embedding.TokenMoments, "_see"),
        ("embedding", embedding.TokenMoments, "seen"),
        ("sequential", Regression, "add"),
        ("sequential", Regression, "solve"),
    ]
    with ExitStack() as stack:
        for stage, owner, name in watched if device == "cpu" else ():  # a GPU works on when a call is over
            stack.enter_context(timed(owner, name, stage, apart))
        derivation = derive_model(
            model, checkpoint=folder / "base.safetensors", model_args={"num_classes": 24}, data=data, rate=rate,
            classes=["plain_disc", "plain_ring", "plain_star"], out=folder / f"m{rate}", method="forge",
            options=options, accept_weak_base=True,
            training=Training(steps=0, device=device, batch_size=32, workers=workers(device)),
        )  # fmt: skip
    seconds = derivation.record.seconds
    apart |= {stage: seconds[stage] for stage in NO_PASSES}
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    record = {"seconds": seconds, "beside_passes_s": apart, "peak_bytes": peak_bytes}
    return record if device == "cpu" else {**record, "gpu_peak_bytes": torch.cuda.max_memory_allocated()}


def workers(device: str) -> int:
    """Return the number of processes that decode images: none on the CPU, whose cores compute."""
    return 0 if device == "cpu" else min(os.cpu_count() or 1, 8)


def multiplied_gflops() -> dict[str, float]:
    """Measure GFLOP/s of the products of a DeiT-Base's first FFN layer, of 16 images, by MKL and by oneDNN."""
    import torch

    from edgevit.train.products import exact_products

    tokens, weight, gflops = torch.randn(16 * 197, 768), torch.randn(768, 3072), {}
    for name, wide in (("MKL", False), ("oneDNN", True)):
        with exact_products(tokens.device, wide=wide):
            tokens @ weight
            started = time.process_time()
            for _ in range(10):
                tokens @ weight
            gflops[name] = 10 * 2 * tokens.numel() * weight.shape[1] / (time.process_time() - started) / 1e9
    return gflops


def run(title: str, arguments: list[str], cache: Path, device: str) -> dict[str, Any]:
    """Run one derivation in a process of its own; record its seconds by the clock and of the processor."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    start = ["-c", BY_PROCESSOR] if device == "cpu" else ["-m", "benchmarks.product.derivation_cost"]
    command = [sys.executable, *start, *arguments]
    gflops = {"gflops": multiplied_gflops()} if device == "cpu" else {}
    used, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    wall_s, now = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return {"title": title, "wall_s": wall_s, "cpu_s": cpu_s, **gflops, **json.loads(done.stdout)}


def section() -> str:
    """Format one question of RESULTS.md."""
    cpu, gpu = load("derivation_cost"), load("derivation_cost_cuda")
    if cpu is None or gpu is None:
        return ""
    runs = [*cpu["runs"][:2], *gpu["runs"]]
    stages = dict.fromkeys(name for run in runs for name in run["seconds"])
    lines = [[name, *(f"{run['seconds'].get(name, 0.0):.1f} s" for run in runs)] for name in stages]
    lines.append(["all", *(f"{run['cpu_s' if run in cpu['runs'] else 'wall_s']:.0f} s" for run in runs)])
    lines.append(["peak memory of the host", *(f"{run['peak_bytes'] / 1e9:.1f} GB" for run in runs)])
    lines.append(
        [
            "peak memory of the GPU",
            *(f"{run['gpu_peak_bytes'] / 1e9:.1f} GB" if run in gpu["runs"] else "" for run in runs),
        ]
    )
    heads = [*(f"CPU, {run['title']}" for run in cpu["runs"][:2]), *(f"GPU, {run['title']}" for run in gpu["runs"])]
    times = sum(run["cpu_s"] for run in cpu["runs"]) / runs[0]["cpu_s"]
    return screen(
        "How long does a derivation take?",
        f"Forge's closed form of {cpu['model']}, random weights, {cpu['calibration_images']} calibration images of "
        f"{cpu['pixels']} px, nothing trained. CPU: {cpu['threads']} thread, seconds of the processor. GPU: "
        f"{gpu['gpu']}, "
        f"by the clock, {gpu['workers']} processes decode images. Later budgets find the statistics in the cache: "
        f"{len(cpu['runs'])} budgets take {times:.1f} times the processor time of the first.",
        [table(["stage", *heads], lines)],
        "python -m benchmarks.product.derivation_cost",
        "distillation, whose length the user chooses; other models.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--images", type=int, default=512, help="forge.calibration_images")
    parser.add_argument("--gradients", type=int, help="forge.sensitivity_images")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--budgets", type=int, default=2, help=f"how many of the rates {RATES}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # folder, data, rate: what a process of ours does
    options = parser.parse_args()
    counts = {"calibration_images": options.images, "sensitivity_images": options.gradients}
    forge_options = {name: count for name, count in counts.items() if count is not None}
    if options.one:
        folder, data, rate = options.one
        print(json.dumps(derive(options.model, Path(folder), Path(data), float(rate), forge_options, options.device)))
        return
    import timm
    import torch
    from safetensors.torch import save_file

    from benchmarks import images
    from benchmarks.bases import CACHE
    from edgevit.derivation.methods.forge.config import Config
    from edgevit.records.writing import write_whole

    load_average = os.getloadavg()[0]
    data = images.ensure(CACHE)
    with tempfile.TemporaryDirectory() as temporary:
        network = timm.create_model(options.model, num_classes=24).eval()
        save_file(network.state_dict(), Path(temporary) / "base.safetensors")
        few = torch.randn(16, 3, 224, 224, device=options.device)
        clock, on_gpu = (time.process_time, False) if options.device == "cpu" else (time.monotonic, True)
        network.to(options.device)
        with torch.inference_mode():
            network(few)
            started = clock()
            network(few).sum().item()  # which waits for a GPU
        forward_s = (clock() - started) / len(few) * options.images
        record = {
            "schema": 1, "clock": "wall" if on_gpu else "processor", "model": options.model, "pixels": 224,
            **asdict(Config(**forge_options)),
            "threads": torch.get_num_threads(), "load_average": load_average, "forward_s": forward_s,
            "gpu": torch.cuda.get_device_name() if on_gpu else None, "workers": workers(options.device),
        }  # fmt: skip
        runs: list[dict[str, Any]] = []
        for i, rate in enumerate(RATES[: options.budgets]):
            title = f"{('first budget', 'second')[i] if i < 2 else 'then'}, rate {rate:g}"
            arguments = [*sys.argv[1:], "--one", temporary, str(data), str(rate)]
            runs.append(run(title, arguments, Path(temporary), options.device))
            write_whole(options.out, json.dumps({**record, "runs": runs}, indent=1) + "\n")  # they take hours
    print(options.out.read_text())


if __name__ == "__main__":
    main()
