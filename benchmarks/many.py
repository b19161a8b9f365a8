"""What `edgevit derive-many` saves: tasks x budgets from one jobs file beside as many runs of `edgevit derive`.

    python benchmarks/many.py                                        # 10 tasks x 3 rates, no purification
    python benchmarks/many.py --purification validated --tasks 2     # NuWa's default
    python benchmarks/many.py --data FOLDER --base FOLDER            # instead of the rendered data and its base

Sub-tasks are drawn at random from the classes. A separate run is a process of its own with nothing cached; the plan is
one command, one worker, its cache empty at the start. Both compute on one thread. Beside the wall clock stand the
seconds the CPU worked, which a busy machine changes less. Variants are added to results/many.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from edgevit.records.model_folder import ModelFolder

RESULTS = Path(__file__).parent / "results" / "many.json"
RATES = (0.4, 0.6, 0.8)
CLASSES = 6  # of a task


@dataclass(frozen=True)
class Taken:
    wall_s: float
    cpu_s: float


def edgevit(arguments: Sequence[object], cache: Path) -> Taken:
    """Run the command line on one thread; what it wrote is shown only if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)}
    command = [str(Path(sys.executable).with_name("edgevit")), *map(str, arguments)]
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"edgevit {arguments[0]} failed:\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(time.perf_counter() - start, cpu)


def draw_tasks(classes: Sequence[str], count: int) -> dict[str, list[str]]:
    return {f"task{i}": sorted(random.Random(i).sample(sorted(classes), CLASSES)) for i in range(count)}


def separately(base: Path, data: Path, tasks: dict[str, list[str]], purification: str, folder: Path) -> list[Taken]:
    """One `edgevit derive` after the other."""
    facts = json.loads((base / "base.json").read_text())
    common: list[object] = ["derive", facts["timm_name"], "--checkpoint", base / "base.safetensors", "--data", data]
    common += ["--method", "nuwa", "--set", f"nuwa.purification={purification}", "--device", "cpu", "--no-cache"]
    common += [part for k, v in facts["model_args"].items() for part in ("--model-arg", f"{k}={v}")]
    common += [part for k in ("mean", "std") for part in (f"--{k}", ",".join(map(str, facts[k])))]
    common += ["--crop-pct", facts["crop_pct"], "--interpolation", facts["interpolation"]]
    taken = []
    for name, classes in tasks.items():
        for rate in RATES:
            out = folder / f"{name}-{rate}"
            given = ["--classes", ",".join(classes), "--rate", rate, "--out", out]
            taken.append(edgevit([*common, *given], folder / "none"))
            print(f"{name} {rate}: {taken[-1].wall_s:.1f} s", file=sys.stderr, flush=True)
    return taken


def together(base: Path, data: Path, tasks: dict[str, list[str]], purification: str, folder: Path) -> Taken:
    """The same derivations by one `edgevit derive-many`."""
    facts = json.loads((base / "base.json").read_text())
    plan = {
        "base": facts["timm_name"],
        "checkpoint": str(base / "base.safetensors"),
        "data": str(data),
        "model_args": facts["model_args"],
        "preprocessing": {k: facts[k] for k in ("mean", "std", "crop_pct", "interpolation")},
        "training": {"device": "cpu"},
        "workers": 1,
        "out": str(folder / "fleet"),
        "tasks": [{"name": name, "classes": classes} for name, classes in tasks.items()],
        "budgets": [{"name": f"r{100 * rate:.0f}", "rate": rate} for rate in RATES],
        "methods": [{"name": "nuwa", "options": {"purification": purification}}],
    }
    file = folder / "jobs.yaml"
    file.write_text(yaml.safe_dump(plan))
    return edgevit(["derive-many", file], folder / "cache")


def count_alike(folder: Path, tasks: dict[str, list[str]]) -> int:
    """How many of the models derived separately have the same MACs and accuracy as the plan's."""

    def result(model: Path) -> tuple[Any, Any]:
        record = ModelFolder(model).derivation()
        assert record is not None and record.accuracy.derived is not None
        return record.accuracy.derived.top1, record.budget

    return sum(
        result(folder / f"{name}-{rate}") == result(folder / "fleet" / f"{name}-r{100 * rate:.0f}-nuwa")
        for name in tasks
        for rate in RATES
    )


def measure(base: Path, data: Path, count: int, alone: int, purification: str) -> dict[str, Any]:
    """Time per derivation of both; of the plan's tasks the first `alone` are derived separately, too."""
    tasks = draw_tasks(json.loads((base / "base.json").read_text())["classes"], count)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        many = together(base, data, tasks, purification, folder)
        print(f"derive-many: {many.wall_s:.1f} s", file=sys.stderr, flush=True)
        some = dict(list(tasks.items())[:alone])
        single = separately(base, data, some, purification, folder)
        alike = count_alike(folder, some)
    runs = len(tasks) * len(RATES)
    return {
        "tasks": count, "classes": CLASSES, "rates": RATES, "purification": purification, "load_average": load,
        "derive_many": asdict(many), "separate": [asdict(t) for t in single], "models_alike": alike,
        "wall_ratio": many.wall_s / runs / statistics.mean(t.wall_s for t in single),
        "cpu_ratio": many.cpu_s / runs / statistics.mean(t.cpu_s for t in single),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--separate", type=int, help="tasks that are derived separately, too; all if left out")
    parser.add_argument("--purification", default="none", help="none, always, or validated, the default of NuWa")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--base", type=Path)
    arguments = parser.parse_args()
    data, base = arguments.data, arguments.base
    if data is None or base is None:
        from base import ensure_rendered_base

        from edgevit.progress import Silent

        data, base = ensure_rendered_base(progress=Silent())
    measured = measure(base, data, arguments.tasks, arguments.separate or arguments.tasks, arguments.purification)
    record: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"schema": 1, "variants": {}}
    record["environment"] = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    record["variants"][arguments.purification] = measured
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({k: measured[k] for k in ("wall_ratio", "cpu_ratio", "models_alike")}), file=sys.stderr)


if __name__ == "__main__":
    main()
