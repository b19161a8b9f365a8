"""What Vulcan costs beside a plain training step, and what its algebra costs beside plain SVDs.

    python benchmarks/cost.py                     # DeiT-Tiny, -Small and -Base shapes, random weights
    python benchmarks/cost.py --models deit_tiny_patch16_224 --batch 8

Everything that is compared is measured in one process in turns; figures are medians with the smallest and the largest.
A training step of 64 images runs as micro-batches, so that it fits into memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch

from edgevit.derivation.algebra.attention import head_singular_values
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import POLICIES, fit, uniform
from edgevit.derivation.measure.statistics import token_sum
from edgevit.derivation.methods.vulcan.collapse import cluster_neurons, make_clusters
from edgevit.derivation.methods.vulcan.method import Config, Redundancy
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.derivation.realise import realise
from edgevit.network.anatomy import attentions, ffns
from edgevit.network.families import vit
from edgevit.train.compute import open_compute
from edgevit.train.passes import observed
from edgevit.train.settings import Training

RESULTS = Path(__file__).parent / "results" / "cost.json"
MODELS = ("deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224")
RATE = 0.6
PLAIN_SVDS = 6  # measured; a model has 2 * heads * blocks of them


def seconds(work: Callable[[], Any], repeats: int) -> list[float]:
    """Time some work after one run that is not counted."""
    work()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken


def summary(taken: list[float], scale: float = 1.0) -> dict[str, float]:
    return {"median_s": scale * statistics.median(taken), "min_s": scale * min(taken), "max_s": scale * max(taken)}


def make(name: str) -> tuple[Any, Plan]:
    """A random network and a plan at the rate, clustered without k-means, which is timed on its own."""
    torch.manual_seed(0)
    network = timm.create_model(name)
    geometry, blocks = vit.geometry(network), vit.read(network)
    base = [b.dims for b in blocks]
    dims = fit(uniform(base), base, geometry, make_budget(geometry.macs(base), 1, rate=RATE), POLICIES["fused"])
    plans = []
    for i, (b, d) in enumerate(zip(base, dims, strict=True)):
        clusters = make_clusters(torch.arange(b.ffn) % d.ffn, torch.rand(b.ffn))
        attention = AttentionPlan(tuple(range(d.heads)), d.qk, d.vo)
        plans.append(BlockPlan(i, attention, FfnPlan(clusters.anchors, clusters.labels)))
    return network, Plan(tuple(plans))


def regularisers(network: Any, plan: Plan) -> dict[str, Callable[[], None]]:
    """Forward and backward pass of each regulariser, as one training step does them."""
    compute = open_compute(Training(device="cpu"))

    def pulling(config: Config) -> Callable[[], None]:
        constraint = Redundancy(network, plan, config, compute)
        constraint.multipliers += 1.0

        def work() -> None:
            torch.autograd.backward(constraint.penalty()[0])

        return work

    return {
        "collapse": pulling(Config(rank=False)),
        "rank": pulling(Config(collapse="none")),
        "both regularisers": pulling(Config()),
    }


def training_step(network: Any, images: int, micro_batch: int) -> Callable[[], None]:
    """Forward and backward pass of so many images."""
    batch, labels = torch.randn(micro_batch, 3, 224, 224), torch.zeros(micro_batch, dtype=torch.int64)

    def work() -> None:
        for _ in range(images // micro_batch):
            torch.autograd.backward(torch.nn.functional.cross_entropy(network(batch), labels))

    return work


def plain_svds(network: Any) -> Callable[[], None]:
    """A few of the full-matrix SVDs that the factorisation does without."""
    attention = attentions(vit.read(network))[0]
    products = (attention.wq[0].T @ attention.wk[0]).detach()

    def work() -> None:
        for _ in range(PLAIN_SVDS):
            torch.linalg.svd(products, full_matrices=False)

    return work


def activation_pass(network: Any, images: int) -> Callable[[], None]:
    batch = torch.randn(images, 3, 224, 224)

    def see(index: int, inputs: Any, output: torch.Tensor) -> None:
        token_sum(inputs[0])

    def work() -> None:
        with torch.no_grad(), observed(vit.ffn_outputs(network), see):
            network(batch)

    return work


def measure(name: str, batch: int, repeats: int) -> dict[str, Any]:
    network, plan = make(name)
    blocks = vit.read(network)
    svds = sum(2 * b.dims.heads for b in blocks)
    micro = min(16, batch)
    rows: dict[str, dict[str, float]] = {}
    rows[f"training step, {batch} images"] = summary(seconds(training_step(network, batch, micro), 2))
    network.zero_grad()
    for title, work in regularisers(network, plan).items():
        rows[title] = summary(seconds(work, repeats))
        network.zero_grad()
    rows["statistics, 16 images"] = summary(seconds(activation_pass(network, 16), 2))
    first = ffns(blocks)[0]
    width = plan.dims[0].ffn
    rows["clustering, all blocks"] = summary(seconds(lambda: cluster_neurons(first, width, 0), 2), len(blocks))
    # In turns, so that both see the same neighbours on a shared machine.
    ours, values, plain = [], [], []
    for _ in range(repeats):
        ours += seconds(lambda: realise(network, plan), 1)
        values += seconds(lambda: head_singular_values(attentions(blocks)), 1)
        plain += seconds(plain_svds(network), 1)
    rows["surgery, whole model"] = summary(ours)
    rows["effective ranks, whole model"] = summary(values)
    rows[f"{svds} plain SVDs of d x d"] = summary(plain, svds / PLAIN_SVDS)
    all_plain = [p * svds / PLAIN_SVDS for p in plain]
    both, step = rows["both regularisers"]["median_s"], rows[f"training step, {batch} images"]["median_s"]
    ratios = {
        "both regularisers of a training step": both / step,
        "plain SVDs over surgery": statistics.median(p / o for p, o in zip(all_plain, ours, strict=True)),
        "plain SVDs over effective ranks": statistics.median(p / v for p, v in zip(all_plain, values, strict=True)),
    }
    memory = in_a_process("--memory-of", name)
    memory["of_the_weights"] = memory["regularisers_peak_bytes"] / memory["weights_bytes"]
    return {
        "model": name,
        "rows": rows,
        "ratios": ratios,
        "memory": memory,
        "export": in_a_process("--export-of", name),
    }


def peak_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1])


def print_memory(name: str) -> None:
    """In a process of its own: how far both regularisers raise the peak above weights and gradients."""
    network, plan = make(name)
    work = regularisers(network, plan)["both regularisers"]
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = peak_bytes()
    work()
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    print(json.dumps({"weights_bytes": weights, "regularisers_peak_bytes": peak_bytes() - before}))


def print_export(name: str) -> None:
    """In a process of its own: seconds and peak memory of exporting the dense model, all checks but the accuracy."""
    import edgevit
    from edgevit.network.checkpoint import describe, save

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save(describe(timm.create_model(name), name, {}), Path(folder) / "model")
        start = time.perf_counter()
        report = edgevit.export(Path(folder) / "model", accuracy=False)
        taken = time.perf_counter() - start
    fused = f"{report.fusion.fused} of {report.fusion.blocks}" if report.fusion else None
    print(json.dumps({"export_s": taken, "export_peak_bytes": peak_bytes(), "fused": fused}))


def in_a_process(what: str, name: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, what, name], capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--export-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print_memory(arguments.memory_of)
        return
    if arguments.export_of:
        print_export(arguments.export_of)
        return
    results: dict[str, Any] = {
        "schema": 1,
        "rate": RATE,
        "environment": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "load_average": os.getloadavg()[0],
        },
        "models": [],
    }
    for name in arguments.models:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results["models"].append(measure(name, arguments.batch, arguments.repeats))
        print(json.dumps(results["models"][-1]["ratios"], indent=1), file=sys.stderr)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
