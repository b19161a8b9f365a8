"""What does `edgevit fleet` add to its derivations, and how far does it scale?

    python -m benchmarks.product.fleet                          # 500 small derivations, 2 workers
    python -m benchmarks.product.fleet --tasks 6 --budgets 2    # a trial
    python -m benchmarks.product.fleet --planned 10000          # a plan of so many derivations: read and listed
    python -m benchmarks.product.fleet --simulated              # 50 workers with the times of the records
    python -m benchmarks.product.fleet --before CHECKOUT        # 24 by derive-many: this edgevit against another one
    python -m benchmarks.product.fleet --time-left              # of 12 derivations with exports, shown against true

A derivation is of a small random ViT on digits, by NuWa without training, so that what is not derivation is as large a
share as it gets. Exports are left out: each compiles the network for seconds where TensorRT-RTX is. The overhead of a
job is the processor time of the driver, and that of the workers from their first job to their last, less what each job
measures of itself; to start Python, once for each process, is in the processor time of all.
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
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any

import timm
import torch
import yaml
from safetensors.torch import save_file

from benchmarks.markdown import RECORDS, load, screen, table
from edgevit.agent.kernel import read_bytes
from edgevit.jobs.fleet.plan import FleetJob, read_plan
from edgevit.jobs.fleet.request import FleetRequest
from edgevit.jobs.fleet.run import fleet, refuse_impossible
from edgevit.jobs.fleet.stages import carry_out
from edgevit.jobs.fleet.states import JobRecord
from edgevit.jobs.runners import Job, JobQueue, makespan, run_in_processes
from edgevit.progress import Silent
from edgevit.version import written_by

RESULTS = RECORDS / "fleet.json"
NAME, ARGS = "vit_tiny_patch16_224", {"img_size": 16, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}
WORKERS, SIMULATED, JOBS = 2, 50, 500
TIMED = ("published", "published_fashion", "published_fine", "rivals", "rivals_fashion", "ablations")  # records
# Runs a module, and writes the peak memory of its process; getrusage includes that of the process that started it.
PROGRAM = """
import atexit, pathlib, runpy, sys
peak, *sys.argv = sys.argv[1:]
atexit.register(lambda: pathlib.Path(peak).write_text(pathlib.Path("/proc/self/status").read_text()))
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
COMMON = {
    "preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"},
    "data": "digits",
    "accept_weak_base": True,  # it is random
    "accept_preprocessing": True,
    "training": {"steps": 0, "batch_size": 24, "device": "cpu"},
    "methods": [{"name": "nuwa", "options": {"purification": "none"}}],
}


def write_base(file: Path, **args: int) -> dict[str, Any]:
    """Write a base with random weights; return its keys in a plan."""
    torch.manual_seed(0)
    weights = timm.create_model(NAME, num_classes=10, **args).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, file)
    return {"base": NAME, "checkpoint": str(file), "model_args": args}


def write_plan(folder: Path, tasks: int, budgets: int, *, jobs_file: bool = False) -> Path:
    """Write a base and a plan of so many tasks and budgets; or the same as a jobs file of derive-many."""
    subsets = [c for size in range(2, 10) for c in combinations(range(10), size)]
    chosen = random.Random(0).sample(subsets, tasks)
    base = write_base(folder / "base.safetensors", **ARGS)
    plan = {
        **COMMON,
        "out": str(folder / "models"),
        "tasks": [{"name": f"t{i}", "classes": [str(c) for c in classes]} for i, classes in enumerate(chosen)],
        "budgets": [{"name": f"b{i}", "rate": round(0.1 + 0.4 * i / budgets, 3)} for i in range(budgets)],
        "workers": WORKERS,
    }
    if jobs_file:
        plan |= base
    else:
        plan |= {"threads": 1, "bases": [{"name": "tiny", **base, "preprocessing": plan.pop("preprocessing")}]}
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(plan))
    return file


def write_trained_plan(folder: Path) -> Path:
    """Write a plan of 2 bases x 3 tasks x 2 budgets, in which models are trained, too."""
    file = write_plan(folder, 3, 2)
    plan = yaml.safe_load(file.read_text())
    (small,) = plan["bases"]
    for name, depth in (("shallow", 2), ("deep", 4)):
        base = write_base(folder / f"{name}.safetensors", **{**ARGS, "img_size": 32, "depth": depth})
        plan["bases"].append({**small, **base, "name": name})
    plan = {**plan, "bases": plan["bases"][1:], "methods": [{"name": "forge"}]}
    plan["training"] |= {"steps": 40, "evaluations": 2}
    file.write_text(yaml.safe_dump(plan))
    return file


def counted(job: FleetJob, *_: object) -> tuple[int, float, float, JobRecord]:
    """Do a job as `edgevit fleet` does; the process, its processor seconds before and after, and the record."""
    before = time.process_time()
    end = carry_out(job)
    if not isinstance(end, JobRecord):
        raise SystemExit(f"{job.name} is not done: {end}")
    return os.getpid(), before, time.process_time(), end


def derive_all(plan: Path) -> None:
    """Do the derivations of a plan in worker processes, and print what each took and what all took beside that."""
    jobs = [job for job in read_plan(plan).jobs if job.stage == "derive"]
    refuse_impossible(job.derivation for job in jobs)
    before = time.process_time()
    tasks = [Job(job.name, job, counted, job.needs, job.place) for job in jobs]
    ends = [end for _, end in run_in_processes(tasks, {}, workers=WORKERS, threads=1) if isinstance(end, tuple)]
    driver_s, by_worker = time.process_time() - before, defaultdict[int, list[tuple[float, float]]](list)
    for worker, begun, ended, _ in ends:
        by_worker[worker].append((begun, ended))
    # From the begin of a worker's first job to the end of its last.
    workers_s = sum(spans[-1][1] - spans[0][0] for spans in by_worker.values())
    rows = [{"name": end.job, "seconds": end.seconds, "cpu_s": end.cpu_s} for *_, end in ends]
    jobs_s = sum(end.cpu_s for *_, end in ends)
    print(json.dumps({"jobs": rows, "driver_cpu_s": driver_s, "between_cpu_s": workers_s - jobs_s}))


def timed(module: str, *arguments: object, at: Path | None = None) -> tuple[dict[str, float], str]:
    """Run a module in a process; return its seconds, processor seconds and peak memory, and what it prints."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile("w+") as printed:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache}
        if at is not None:
            variables["PYTHONPATH"] = str(at)
        peak = Path(cache) / "peak"
        command = [sys.executable, "-c", PROGRAM, str(peak), module, *map(str, arguments)]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        process = subprocess.Popen(command, env=variables, cwd=at, stdout=printed)
        process.wait()
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        printed.seek(0)
        text = printed.read()
        memory_mib = (read_bytes("/", str(peak), "VmHWM") or 0) / 2**20
    if process.returncode not in (0, 1):
        raise SystemExit(f"edgevit ended with exit code {process.returncode}")
    cpu_s = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    return {"wall_s": wall, "cpu_s": cpu_s, "memory_mib": memory_mib}, text


def derivations(tasks: int, budgets: int) -> dict[str, Any]:
    """Derive all models of a plan by worker processes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plan = write_plan(folder, tasks, budgets)
        used, text = timed("benchmarks.product.fleet", "--plan", plan)
        measured = json.loads(text)
        disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    jobs = measured["jobs"]
    jobs_cpu_s = sum(job["cpu_s"] for job in jobs)
    overhead_s = (measured["driver_cpu_s"] + measured["between_cpu_s"]) / len(jobs)
    return {
        "derivations": len(jobs),
        "workers": WORKERS,
        **used,
        "jobs_cpu_s": jobs_cpu_s,
        "driver_cpu_s": measured["driver_cpu_s"],
        "between_cpu_s": measured["between_cpu_s"],  # of the workers, between jobs and about them
        "overhead_s_per_job": overhead_s,
        "overhead_share": overhead_s * len(jobs) / jobs_cpu_s,
        "disk_mb": disk / 1e6,
        "load": os.getloadavg()[1],
        "edgevit": written_by(),
    }


class Watch(Silent):
    """Takes down which share of the time has passed by what the command shows."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.shown: list[tuple[float, int]] = []  # seconds and per cent

    def stage(self, name: str, total: int | None = None, unit: str = "") -> AbstractContextManager[Watch]:
        self.began = time.monotonic()
        return nullcontext(self)

    def update(self, done: int, **figures: float | None) -> None:
        self.shown.append((time.monotonic() - self.began, done))


def time_left() -> dict[str, Any]:
    """Do a plan of 2 bases x 3 tasks x 2 budgets; compare the time left that was shown with the time it took."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        watch = Watch()
        states = fleet(FleetRequest(plan=write_trained_plan(Path(scratch))), watch)
        if not all(state.passed for state in states):
            raise SystemExit(f"not done: {[state.reason for state in states]}")
    wall_s = watch.shown[-1][0]
    rows = []
    for share in (0.5, 0.75):  # none is shown before a job of each kind has ended
        at, percent = [(at, percent) for at, percent in watch.shown if at <= share * wall_s and percent][-1]
        shown_s = at * 100 / percent - share * wall_s  # counted down since then
        rows.append({"share": share, "left_s": (1 - share) * wall_s, "shown_s": shown_s})
    return {"wall_s": wall_s, "rows": rows, "load": os.getloadavg()[1], "edgevit": written_by()}


def simulated(seconds: Sequence[float], workers: int) -> dict[str, float]:
    """How busy so many workers are with jobs of these seconds in this order, by the queue that the command uses."""
    jobs = [Job(str(number), value, len) for number, value in enumerate(seconds)]  # type: ignore[arg-type]
    wall_s = makespan(JobQueue(jobs, {}, workers), lambda job: job.record)
    return {"wall_s": wall_s, "utilisation": sum(seconds) / (wall_s * workers)}


def simulated_from_records() -> list[dict[str, Any]]:
    """500 jobs on 50 workers, each as long as a derivation of one record at random, the longest first."""
    rows = []
    for name in TIMED:
        measured = [sum(row["seconds"].values()) for row in (load(name) or {"rows": {}})["rows"].values()]
        by_chance = random.Random(0).choices(measured, k=JOBS)
        drawn = sorted(by_chance, reverse=True)
        least_s = max(drawn[0], sum(drawn) / SIMULATED)  # of any order
        unsorted_s = simulated(by_chance, SIMULATED)["wall_s"]
        rows.append({"record": name, "times": len(measured), "longest_s": drawn[0], "mean_s": sum(drawn) / JOBS,
                     "least_s": least_s, "unsorted_s": unsorted_s, **simulated(drawn, SIMULATED)})  # fmt: skip
    return rows


def planned(count: int) -> dict[str, Any]:
    """Read and list a plan of so many derivations."""
    with tempfile.TemporaryDirectory() as scratch:
        plan = write_plan(Path(scratch), count // 20, 10)  # a derivation and its export are two jobs
        used, text = timed("edgevit", "fleet", plan, "--status", "--json")
    return {"jobs": len(json.loads(text)["jobs"]), **used, "edgevit": written_by()}


def against(before: Path, tasks: int, budgets: int, count: int) -> dict[str, Any]:
    """The same jobs file by derive-many of two checkouts, in turns."""
    turns: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    for turn in range(count):
        for name in ("before", "now") if turn % 2 == 0 else ("now", "before"):
            with tempfile.TemporaryDirectory() as scratch:
                file = write_plan(Path(scratch), tasks, budgets, jobs_file=True)
                used, text = timed(
                    "edgevit", "derive-many", file, "--json", at=before if name == "before" else Path.cwd()
                )
                if any(row["state"] != "done" for row in json.loads(text)["rows"]):
                    raise SystemExit(f"a job of {name} failed")
            turns[name].append(used)
    commit = subprocess.run(["git", "-C", before, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"derivations": tasks * budgets, "commit": commit.stdout.strip(), **turns, "edgevit": written_by()}


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("fleet") or {}
    done, listed, pools, many = (record.get(name) for name in ("derivations", "planned", "against", "simulated"))
    if done is None:
        return ""
    lines = [
        ["derivations", f"{done['derivations']}"],
        ["wall time, 2 workers of one thread", f"{done['wall_s']:.0f} s"],
        ["processor time of all; of jobs", f"{done['cpu_s']:.0f} s; {done['jobs_cpu_s']:.0f} s"],
        ["beside each job, by driver and workers", f"{done['overhead_s_per_job']:.3f} s, {done['overhead_share']:.1%}"],
        ["disk", f"{done['disk_mb']:.0f} MB"],
    ]
    if listed is not None:
        figures = f"{listed['wall_s']:.1f} s ({listed['cpu_s']:.1f} of the processor), {listed['memory_mib']:.0f} MiB"
        lines.append([f"a plan of {listed['jobs']} jobs, read and listed", figures])
    tables = [table(["", ""], lines)]
    if many is not None:
        head = [
            "times of",
            "mean, s",
            "longest, s",
            "least possible, s",
            "all, s",
            "in random order, s",
            "busy",
            "at most",
        ]
        columns = ("mean_s", "longest_s", "least_s", "wall_s", "unsorted_s")
        rows = [
            [row["record"], *(f"{row[k]:.0f}" for k in columns), f"{row['utilisation']:.0%}",
             f"{row['utilisation'] * row['wall_s'] / row['least_s']:.0%}"]
            for row in many
        ]  # fmt: skip
        title = f"{JOBS} jobs on {SIMULATED} workers, simulated with the times of derivations in records:"
        tables.append(f"{title}\n\n{table(head, rows)}")
    if pools is not None:
        head = ["", *(f"{unit} {turn + 1}" for turn in range(len(pools["now"])) for unit in ("s", "processor s"))]
        names = {"before": f"the pool before ({pools['commit']})", "now": "now"}
        rows = [
            [text, *(f"{run[k]:.1f}" for run in pools[name] for k in ("wall_s", "cpu_s"))]
            for name, text in names.items()
        ]
        tables.append(f"{pools['derivations']} derivations by derive-many, in turns:\n\n{table(head, rows)}")
    if plans := record.get("time_left"):
        head = ["time left, s: true, shown", *(f"at {row['share']:.0%}" for row in plans[0]["rows"])]
        rows = [
            [f"{plan['wall_s']:.0f} s in all, load {plan['load']:.0f}",
             *(f"{row['left_s']:.0f}, {row['shown_s']:.0f} ({row['shown_s'] / row['left_s'] - 1:+.0%})"
               for row in plan["rows"])]
            for plan in plans
        ]  # fmt: skip
        title = "12 trained derivations of two bases and their exports, 2 workers beside other work, run to their end:"
        tables.append(f"{title}\n\n{table(head, rows)}")
    return screen(
        "What does a fleet cost beside its derivations?",
        f"Small random ViTs on digits, closed form alone. The machine was shared (load {done['load']:.0f} on two "
        "cores): processor time means more than wall time.",
        tables,
        "python -m benchmarks.product.fleet",
        "so many real workers, boards, Ray, GPUs. `busy` is bounded by the longest job: where that is longer than a "
        "worker's share of all, the others have ended before it, in any order.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--budgets", type=int)
    parser.add_argument(
        "--turns", type=int, default=2, help="of each checkout, or plans for the time left  [default: %(default)s]"
    )
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--planned", type=int, metavar="JOBS")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--time-left", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.plan:
        derive_all(asked.plan)
        return
    if asked.planned:
        part: dict[str, Any] = {"planned": planned(asked.planned)}
    elif asked.time_left:
        part = {"time_left": [time_left() for _ in range(asked.turns)]}
    elif asked.simulated:
        part = {"simulated": simulated_from_records()}
    elif asked.before:
        part = {"against": against(asked.before, asked.tasks or 6, asked.budgets or 4, asked.turns)}
    else:
        part = {"derivations": derivations(asked.tasks or 50, asked.budgets or 10)}
    record = json.loads(asked.results.read_text()) if asked.results.is_file() else {"schema": 1}
    asked.results.write_text(json.dumps({**record, **part}, indent=1) + "\n")
    print(json.dumps(part, indent=1))


if __name__ == "__main__":
    main()
