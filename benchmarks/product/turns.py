"""Do ratios hold on a busy machine? Models in turns, alternating, or one by one, while other programs compute.

    python -m benchmarks.product.turns            # several minutes

Three ONNX models on one thread: one, the same again, and one of twice its layers. Twice as many processes as cores
compute in bursts of random length. The models are measured in turns, alternating in one process, and each by itself,
with the bursts during all of them or during all but the first. A ratio is right if it is within 5 % of what turns
without bursts gave; for the same model the right ratio is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.markdown import RECORDS, load, screen, table
from edgevit import bench, bench_in_turns
from edgevit.board.comparison import compare_within, decisive
from edgevit.board.request import Conditions

RESULTS = RECORDS / "turns.json"
LAYERS, SIZE = 8, 256
CONDITIONS = Conditions(threads=1, samples=20, duration_s=0.1, warmup_seconds=0.05)
WITHIN = 0.05
BURST_S, PAUSE_S = (0.02, 0.3), (0.02, 0.3)
PER_CORE = 2  # processes that compute in bursts: with one, each model by itself was as right as models in turns


def write_layers(path: Path, count: int) -> Path:
    """Write a model of `count` matrix products of the same size."""
    names = ["x", *(f"h{n}" for n in range(1, count)), "y"]
    weight = np.full(SIZE * SIZE, 1e-3, np.float32)
    weights = [helper.make_tensor(f"w{n}", TensorProto.FLOAT, [SIZE, SIZE], weight) for n in range(count)]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", SIZE, SIZE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def burn(seed: int) -> None:
    """Compute in bursts until killed."""
    drawn = random.Random(seed)
    while True:
        end = time.monotonic() + drawn.uniform(*BURST_S)
        while time.monotonic() < end:
            pass
        time.sleep(drawn.uniform(*PAUSE_S))


@contextmanager
def bursts(seed: int, count: int) -> Iterator[None]:
    """Keep so many processes computing in bursts.

    Each is in a session of its own: Linux may share a core between sessions, and the bench alone would pay for them.
    """
    command = [sys.executable, "-m", "benchmarks.product.turns", "--burn"]
    others = [subprocess.Popen([*command, str(seed * count + i)], start_new_session=True) for i in range(count)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def turns(models: Sequence[Path], rounds: int, *, alternate: bool = False) -> list[float]:
    """Measure in turns; return the ratios to the first model."""
    runs = bench_in_turns(models, CONDITIONS, rounds=rounds, alternate=alternate).runs
    return [comparison.ratio for comparison in decisive(compare_within(runs))]


def alone(models: Sequence[Path], rounds: int, *, quiet_first: bool, seed: int, cores: int) -> list[float]:
    """Measure each model by itself, for as long as in turns; return the ratios to the first model."""
    assert CONDITIONS.duration_s is not None
    conditions = replace(CONDITIONS, duration_s=rounds * CONDITIONS.duration_s)
    latencies = []
    for number, model in enumerate(models):
        with bursts(seed + number, 0 if quiet_first and number == 0 else cores):
            (run,) = bench(model, conditions).runs
        latencies.append(run.p50_ns())
    return [ns / latencies[0] for ns in latencies[1:]]


def trial(models: Sequence[Path], rounds: int, seed: int, cores: int) -> dict[str, list[float]]:
    with bursts(seed, cores):
        in_turns, alternating = turns(models, rounds), turns(models, rounds, alternate=True)
    return {
        "in turns, alternating": alternating,
        "in turns": in_turns,
        "each by itself": alone(models, rounds, quiet_first=False, seed=seed, cores=cores),
        "each by itself, the first quiet": alone(models, rounds, quiet_first=True, seed=seed, cores=cores),
    }


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("turns")
    if record is None:
        return ""
    environment, trials = record["environment"], record["trials"]
    lines = []
    for way in trials[0]:
        cells = [way]
        for number, quiet in enumerate(record["quiet"]):
            expected = 1.0 if number == 0 else quiet
            ratios = [result[way][number] for result in trials]
            within = sum(abs(ratio / expected - 1) <= WITHIN for ratio in ratios)
            cells.append(f"{min(ratios):.3f} to {max(ratios):.3f}, {within} of {len(ratios)}")
        lines.append(cells)
    _, twice = record["quiet"]
    return screen(
        "Do ratios hold on a busy machine?",
        f"One ONNX model, the same model again, and one of twice its layers, on one thread of "
        f"{environment['machine']}, "
        f"{environment['cores']} cores, while {PER_CORE} processes per core compute in bursts. Smallest and largest "
        "ratio "
        f"of {len(trials)} trials of {record['rounds']} rounds, and how many lie within {WITHIN:.0%} of the truth: 1 "
        "for "
        f"the same model, {twice:.3f} for the other (measured without bursts).",
        [table(["", "the same model", "twice the layers"], lines)],
        "python -m benchmarks.product.turns",
        "GPUs, and machines that are busy without bursts.",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--burn", type=int)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.burn is not None:
        burn(options.burn)
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        model = write_layers(Path(folder) / "one.onnx", LAYERS)
        models = [
            model,
            Path(shutil.copy(model, Path(folder) / "same.onnx")),
            write_layers(Path(folder) / "twice.onnx", 2 * LAYERS),
        ]
        load = os.getloadavg()[0]
        quiet = turns(models, options.rounds)
        trials = []
        for seed in range(options.trials):
            trials.append(trial(models, options.rounds, seed, PER_CORE * cores))
            print(seed, {name: [round(r, 3) for r in ratios] for name, ratios in trials[-1].items()}, file=sys.stderr)
    environment = {"machine": platform.processor() or platform.machine(), "cores": cores, "load_average": load}
    record = {"environment": environment, "rounds": options.rounds, "quiet": quiet, "trials": trials}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
