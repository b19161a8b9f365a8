"""What does `edgevit fleet` add to its derivations, and how far does it scale?

    python -m benchmarks.product.fleet                          # 500 small derivations, 2 workers; then 50 simulated
    python -m benchmarks.product.fleet --tasks 6 --budgets 2    # a trial
    python -m benchmarks.product.fleet --planned 10000          # a plan of so many derivations: read and listed
    python -m benchmarks.product.fleet --before CHECKOUT        # 24 by derive-many: this edgevit against another one

A derivation is of a small random ViT on digits, by NuWa without training, so that what is not derivation is as large a
share as it gets. Exports are left out: each compiles the network for seconds where TensorRT-RTX is. The overhead is the
processor time of all processes of the command less that of the jobs, which each job measures of itself; that of
starting Python, once for each process, is stated apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import timm
import torch
import yaml
from safetensors.torch import save_file

from benchmarks.markdown import RECORDS, load, screen, table
from edgevit.jobs.fleet.plan import read_plan
from edgevit.jobs.fleet.stages import carry_out
from edgevit.jobs.fleet.states import JobRecord
from edgevit.jobs.runners import Job, JobQueue, makespan, run_in_processes
from edgevit.version import written_by

RESULTS = RECORDS / "fleet.json"
NAME, ARGS = "vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 2}
WORKERS, SIMULATED = 2, 50
TURNS = 2  # of each edgevit in --before
COMMON = {
    "preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"},
    "data": "digits",
    "accept_weak_base": True,  # it is random
    "accept_preprocessing": True,
    "training": {"steps": 0, "batch_size": 24, "device": "cpu"},
    "methods": [{"name": "nuwa", "options": {"purification": "none"}}],
}


def write_plan(folder: Path, tasks: int, budgets: int, *, jobs_file: bool = False) -> Path:
    """Write a base and a plan of so many tasks and budgets; or the same as a jobs file of derive-many."""
    torch.manual_seed(0)
    weights = timm.create_model(NAME, num_classes=10, **ARGS).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "base.safetensors")
    subsets = [c for size in range(2, 10) for c in combinations(range(10), size)]
    chosen = random.Random(0).sample(subsets, tasks)
    base = {"base": NAME, "checkpoint": str(folder / "base.safetensors"), "model_args": ARGS}
    plan = {
        **COMMON,
        "out": str(folder / "models"),
        "tasks": [{"name": f"t{i}", "classes": [str(c) for c in classes]} for i, classes in enumerate(chosen)],
        "budgets": [{"name": f"b{i}", "rate": round(0.2 + 0.6 * i / budgets, 3)} for i in range(budgets)],
        "workers": WORKERS,
    }
    if jobs_file:
        plan |= base
    else:
        plan |= {"threads": 1, "bases": [{"name": "tiny", **base, "preprocessing": plan.pop("preprocessing")}]}
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(plan))
    return file


def derive_all(plan: Path) -> None:
    """Do the derivations of a plan as `edgevit fleet` does, and print what each took."""
    jobs = [job for job in read_plan(plan).jobs if job.stage == "derive"]
    tasks = [Job(job.name, job, carry_out, job.needs, job.place) for job in jobs]
    ends = [end for _, end in run_in_processes(tasks, {}, workers=WORKERS, threads=1) if end is not None]
    if failed := [end for end in ends if not isinstance(end, JobRecord)]:
        raise SystemExit(f"{len(failed)} jobs are not done, such as: {failed[0]}")
    print(json.dumps([{"name": end.job, "seconds": end.seconds, "cpu_s": end.cpu_s} for end in ends]))


def timed(module: str, *arguments: object, at: Path | None = None) -> tuple[dict[str, float], str]:
    """Run a module in a process; return its seconds, processor seconds and peak memory, and what it prints."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile("w+") as printed:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache}
        if at is not None:
            variables["PYTHONPATH"] = str(at)
        command = [sys.executable, "-m", module, *map(str, arguments)]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        process = subprocess.Popen(command, env=variables, cwd=at, stdout=printed)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        printed.seek(0)
        text = printed.read()
    if process.returncode not in (0, 1):
        raise SystemExit(f"edgevit ended with exit code {process.returncode}")
    cpu_s = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    return {"wall_s": wall, "cpu_s": cpu_s, "memory_mib": used.ru_maxrss / 1024}, text


def derivations(tasks: int, budgets: int) -> dict[str, Any]:
    """Derive all models of a plan by worker processes; then simulate more workers with these times."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plan = write_plan(folder, tasks, budgets)
        idle, _ = timed("edgevit.jobs.fleet.stages")
        used, text = timed("benchmarks.product.fleet", "--plan", plan)
        jobs = json.loads(text)
        disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    jobs_cpu_s, starts_cpu_s = sum(job["cpu_s"] for job in jobs), idle["cpu_s"] * (1 + WORKERS)
    overhead_s = (used["cpu_s"] - jobs_cpu_s - starts_cpu_s) / len(jobs)
    return {
        "derivations": len(jobs),
        "workers": WORKERS,
        **used,
        "jobs_cpu_s": jobs_cpu_s,
        "start_cpu_s": idle["cpu_s"],  # of a process that does no job
        "overhead_s_per_job": overhead_s,
        "overhead_share": overhead_s * len(jobs) / jobs_cpu_s,
        "disk_mb": disk / 1e6,
        "load": os.getloadavg()[1],
        "simulated": simulated({job["name"]: job["seconds"] for job in jobs}, SIMULATED),
        "edgevit": written_by(),
    }


def simulated(seconds: dict[str, float], workers: int) -> dict[str, float]:
    """How busy so many workers are with jobs of these seconds, by the queue that the command uses."""
    queue = JobQueue([Job(name, name, len) for name in seconds], {}, workers)  # type: ignore[arg-type]
    wall_s = makespan(queue, lambda job: seconds[job.name])
    return {"workers": workers, "wall_s": wall_s, "utilisation": sum(seconds.values()) / (wall_s * workers)}


def planned(count: int) -> dict[str, Any]:
    """Read and list a plan of so many derivations."""
    with tempfile.TemporaryDirectory() as scratch:
        plan = write_plan(Path(scratch), count // 20, 10)  # a derivation and its export are two jobs
        used, text = timed("edgevit.cli", "fleet", plan, "--status", "--json")
    return {"jobs": len(json.loads(text)["jobs"]), **used, "edgevit": written_by()}


def against(before: Path, tasks: int, budgets: int) -> dict[str, Any]:
    """The same jobs file by derive-many of two checkouts, in turns."""
    turns: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    for turn in range(TURNS):
        for name in ("before", "now") if turn % 2 == 0 else ("now", "before"):
            with tempfile.TemporaryDirectory() as scratch:
                file = write_plan(Path(scratch), tasks, budgets, jobs_file=True)
                used, text = timed(
                    "edgevit.cli", "derive-many", file, "--json", at=before if name == "before" else Path.cwd()
                )
                if any(row["state"] != "done" for row in json.loads(text)["rows"]):
                    raise SystemExit(f"a job of {name} failed")
            turns[name].append(used)
    commit = subprocess.run(["git", "-C", before, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"derivations": tasks * budgets, "commit": commit.stdout.strip(), **turns, "edgevit": written_by()}


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("fleet") or {}
    done, listed, pools = (record.get(name) for name in ("derivations", "planned", "against"))
    if done is None:
        return ""
    many = done["simulated"]
    lines = [
        ["derivations", f"{done['derivations']}"],
        ["wall time, 2 workers of one thread", f"{done['wall_s']:.0f} s"],
        ["processor time of all", f"{done['cpu_s']:.0f} s"],
        ["of these in jobs", f"{done['jobs_cpu_s']:.0f} s"],
        ["to start one process", f"{done['start_cpu_s']:.1f} s"],
        ["the rest, of each job", f"{done['overhead_s_per_job']:.3f} s, {done['overhead_share']:.1%}"],
        ["disk", f"{done['disk_mb']:.0f} MB"],
        [f"{many['workers']} workers, simulated with these jobs' times", f"{many['utilisation']:.0%} busy"],
    ]
    if listed is not None:
        figures = f"{listed['wall_s']:.1f} s ({listed['cpu_s']:.1f} of the processor), {listed['memory_mib']:.0f} MiB"
        lines.append([f"a plan of {listed['jobs']} jobs, read and listed", figures])
    tables = [table(["", ""], lines)]
    if pools is not None:
        head = ["", *(f"{unit} {turn + 1}" for turn in range(TURNS) for unit in ("s", "processor s"))]
        names = {"before": f"the pool before ({pools['commit']})", "now": "now"}
        rows = [
            [text, *(f"{run[k]:.1f}" for run in pools[name] for k in ("wall_s", "cpu_s"))]
            for name, text in names.items()
        ]
        tables.append(f"{pools['derivations']} derivations by derive-many, in turns:\n\n{table(head, rows)}")
    return screen(
        "What does a fleet cost beside its derivations?",
        f"Small random ViTs on digits, closed form alone. The machine was shared (load {done['load']:.0f} on two "
        "cores): processor time means more than wall time.",
        tables,
        "python -m benchmarks.product.fleet",
        "real boards, Ray, GPUs.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--planned", type=int, metavar="JOBS")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.plan:
        derive_all(asked.plan)
        return
    if asked.planned:
        part = {"planned": planned(asked.planned)}
    elif asked.before:
        part = {"against": against(asked.before, 6, 4)}
    else:
        part = {"derivations": derivations(asked.tasks, asked.budgets)}
    record = json.loads(asked.results.read_text()) if asked.results.is_file() else {"schema": 1}
    asked.results.write_text(json.dumps({**record, **part}, indent=1) + "\n")
    print(json.dumps(part, indent=1))


if __name__ == "__main__":
    main()
