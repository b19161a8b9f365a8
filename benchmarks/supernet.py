"""What a slice of a super-network costs: seconds and memory, for DeiT shapes with random weights.

    python benchmarks/supernet.py                 # writes results/supernet.json

A super-network that was never trained costs as much to slice as one that was. `derive` is the whole command: read,
hash, slice, write; on a busy machine its processor seconds say what it would take alone. Figures are medians with the
smallest and the largest; what is compared is measured in one process in turns, memory in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from cost import peak_bytes, summary

from edgevit import __version__
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import POLICIES
from edgevit.derivation.methods.skd.piad import make_units
from edgevit.derivation.methods.skd.slices import read_supernet
from edgevit.derivation.session import derive
from edgevit.network.checkpoint import describe, load, save
from edgevit.network.families import vit
from edgevit.records.derivation import DataRecord, ImageCounts, ShapeRecord, TrainingRecord
from edgevit.records.model import ClassLabel
from edgevit.records.model_folder import ModelFolder
from edgevit.records.supernet import SettingsRecord, SlicePoint, SupernetRecord

RESULTS = Path(__file__).parent / "results" / "supernet.json"
MODELS = ("deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224")
RATES = (0.25, 0.5, 0.75)


def write_supernet(folder: Path, name: str) -> None:
    """A random network whose units go in a random order that leaves prefixes."""
    torch.manual_seed(0)
    model = describe(timm.create_model(name), name, {})
    labels = tuple(ClassLabel(f"class {i}", i) for i in range(model.spec.base.outputs))
    model.spec = replace(model.spec, classes=labels)
    units = make_units(model.spec.blocks, vit.geometry(model.network), POLICIES["fused"], 8, 32)
    left = {module: [u for u in units if u.module == module] for module in {u.module for u in units}}
    turns = [u.module for u in units]
    random.Random(0).shuffle(turns)
    order = [left[module].pop(0) for module in turns]
    data = DataRecord("nothing", len(labels), None, 0.1, 0, False, labels, ImageCounts(0, 0, 0), "0" * 64)
    record = SupernetRecord(
        created="2026-01-01T00:00:00+00:00",
        base=name,
        base_top1=0,
        settings=SettingsRecord(ShapeRecord("fused"), TrainingRecord(0, 0)),
        data=data,
        versions={"edgevit": __version__},
        seconds={},
        order=tuple(order),
        curve=(SlicePoint(0, model.spec.macs, model.spec.params, 0),),
    )
    save(model, folder, supernet=record)


def measure(name: str, folder: Path, repeats: int) -> dict[str, Any]:
    net = folder / name
    write_supernet(net, name)
    supernet, spec = read_supernet(net), load(net).spec
    rows = []
    for rate in RATES:
        taken: dict[str, list[float]] = {"load": [], "slice": [], "derive": [], "derive, processor": []}
        for turn in range(repeats + 1):
            begun = time.perf_counter()
            model = load(net)
            loaded = time.perf_counter()
            budget = make_budget(spec.macs, spec.params, rate=rate)
            supernet.slice(model.network, budget, POLICIES["fused"])
            sliced = time.perf_counter()
            del model
            out = folder / "slice"
            start, work = time.perf_counter(), time.process_time()
            derive(method="skd", supernet=net, rate=rate, out=out)
            whole, work = time.perf_counter() - start, time.process_time() - work
            shutil.rmtree(out)
            if turn > 0:  # the first warms up
                for seconds, new in zip(taken.values(), (loaded - begun, sliced - loaded, whole, work), strict=True):
                    seconds.append(new)
        ratios = [s / t for s, t in zip(taken["slice"], taken["load"], strict=True)]
        memory = memory_of(net, rate)
        rows.append(
            {
                "rate": rate,
                "seconds": {what: summary(seconds) for what, seconds in taken.items()},
                "slice_over_load": statistics.median(ratios),
                "memory": memory,
            }
        )
    return {"model": name, "bytes": ModelFolder(net).weights_file.stat().st_size, "rows": rows}


def resident_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])


def memory_of(net: Path, rate: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--memory-of", f"{net}:{rate}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def print_memory(net: str, rate: float) -> None:
    """In a process of its own: how far loading and slicing raise the peak, beside the weights of both models."""
    with tempfile.TemporaryDirectory() as folder:  # what the libraries themselves take is no part of it
        write_supernet(Path(folder) / "net", MODELS[0])
        tiny = load(Path(folder) / "net")
        budget = make_budget(tiny.spec.macs, tiny.spec.params, rate=rate)
        read_supernet(Path(folder) / "net").slice(tiny.network, budget, POLICIES["fused"])
        del tiny
    supernet = read_supernet(net)
    before = resident_bytes()
    model = load(net)
    budget = make_budget(model.spec.macs, model.spec.params, rate=rate)
    slim = supernet.slice(model.network, budget, POLICIES["fused"])
    both = sum(p.numel() * p.element_size() for network in (model.network, slim) for p in network.parameters())
    raised = peak_bytes() - before
    print(json.dumps({"both_models_bytes": both, "peak_bytes": raised, "peak_over_both": raised / both}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        net, _, rate = arguments.memory_of.rpartition(":")
        print_memory(net, float(rate))
        return
    environment = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as folder:
        models = [measure(name, Path(folder), arguments.repeats) for name in arguments.models]
    RESULTS.write_text(json.dumps({"schema": 1, "environment": environment, "models": models}, indent=1) + "\n")
    for model in models:
        for row in model["rows"]:
            seconds = {what: round(taken["median_s"], 3) for what, taken in row["seconds"].items()}
            print(model["model"], row["rate"], seconds, f"memory {row['memory']['peak_over_both']:.2f} of both models")


if __name__ == "__main__":
    main()
