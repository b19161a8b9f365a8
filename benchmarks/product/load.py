"""How long do `compare` and `report` take, and how much memory, with far more runs than a person makes?

    python -m benchmarks.product.load                # up to 2 x 100,000 runs, and runs of 1,000,000 samples
    python -m benchmarks.product.load --share 0.02   # a trial

Each command runs in a process of its own. Wall time, processor time, peak memory and the sizes of its files go into
records/load.json. The files are made up, as those of the tests are, and lie in a temporary folder below --folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "shared"))

from quiet_runs import QUIET
from some_report import accuracy, derived, history, write_folder
from some_runs import MS, S

from benchmarks.markdown import RECORDS, load, screen, table
from edgevit.agent.records import Run
from edgevit.records.names import HISTORY

RESULTS = RECORDS / "load.json"
LINES, MODELS, REPEATS, LONG = 100_000, 500, 100, 1_000_000
PLACE = {
    "cpu": "ARMv8 Processor rev 1 (v8l)", "cores": "6", "threads": "1", "kernel": "Linux 5.15.148-tegra",
    "board": "NVIDIA Jetson Orin Nano", "onnxruntime": "1.20.1", "python": "3.10.12",
}  # fmt: skip


def run_of(label: str, ms: float, samples: int, noise: random.Random, **fields: Any) -> Run:
    """Make a run of a quiet machine: latencies from `ms` on, with a tail."""
    times = [round(ms * MS * (1 + abs(noise.gauss(0, 0.03)))) for _ in range(samples)]
    whole: dict[str, Any] = {
        "label": label, "model_sha256": label.encode().hex().ljust(64, "0")[:64], "batch": 1, "environment": PLACE,
        "latencies_ns": times, "wall_ns": max(sum(times), 2 * S), "cpu_busy_ns": sum(times), "cpu_own_ns": sum(times),
    }  # fmt: skip
    return replace(QUIET, **{**whole, **fields})


def turns(labels: Sequence[str], rounds: int, samples: int, session: str, seed: int) -> Iterator[Run]:
    """Make rounds of one session, in each of which every model has a run."""
    noise = random.Random(seed)
    for number in range(1, rounds + 1):
        slower = 1 + 0.2 * noise.random()
        for i, label in enumerate(labels):
            ms = (2 + i / len(labels)) * slower
            yield run_of(label, ms, samples, noise, session=session, round=number, turn=len(labels) * number + i)


def alone(labels: Sequence[str], repeats: int, samples: int, seed: int) -> Iterator[Run]:
    """Make runs that were measured one by one."""
    noise = random.Random(seed)
    for _ in range(repeats):
        for i, label in enumerate(labels):
            yield run_of(label, (2 + i / len(labels)) * noise.gauss(1, 0.02), samples, noise)


def write_lines(file: Path, runs: Iterator[Run]) -> Path:
    with file.open("w") as opened:
        opened.writelines(run.to_json() + "\n" for run in runs)
    return file


def write_models(root: Path, models: int, repeats: int, steps: int = 300, samples: int = 200) -> None:
    """Write a base, models of it, and their runs; each model has a session with the base."""
    write_folder(root / "base", macs=2_000_000, params=20_000)
    noise = random.Random(1)
    for i in range(models):
        share = (i + 1) / (models + 1)
        record = derived(accuracy(0.5 + share / 2, 100 * share, 100))
        write_folder(root / f"m{i}", derivation=record, macs=round(2e6 * share), params=round(2e4 * share))
        (root / f"m{i}" / HISTORY).write_text(history(steps))
    with (root / "runs.jsonl").open("w") as opened:
        for i in range(models):
            for number in range(1, repeats + 1):
                of = {"session": f"s{i}", "round": number, "turn": number}
                pair = (
                    (("base", 4.0), (f"m{i}", 1 + 3 * i / models)) if number <= 10 else ((f"m{i}", 1 + 3 * i / models),)
                )
                opened.writelines(run_of(label, ms, samples, noise, **of).to_json() + "\n" for label, ms in pair)


def timed(*arguments: object, reads: int, wrote: Path | None = None) -> dict[str, Any]:
    """Run a command; return its times, memory and sizes."""
    started = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "edgevit", *map(str, arguments)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(child, 0)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "wall_s": round(time.perf_counter() - started, 1),
        "processor_s": round(used.ru_utime + used.ru_stime, 1),
        "memory_peak_mib": round(used.ru_maxrss / 1024),
        "reads_mb": round(reads / 1e6, 1),
        "writes_mb": None if wrote is None else round(wrote.stat().st_size / 1e6, 2),
    }


def compared(folder: Path, *sides: Iterator[Run]) -> dict[str, Any]:
    files = [write_lines(folder / f"{name}.jsonl", runs) for name, runs in zip("ab", sides, strict=False)]
    done = timed("compare", *files, reads=sum(file.stat().st_size for file in files))
    for file in files:
        file.unlink()
    return done


def reported(folder: Path, models: int, repeats: int) -> dict[str, Any]:
    write_models(folder, models, repeats)
    page = folder / "report.html"
    return timed("report", folder, "--output", page, reads=(folder / "runs.jsonl").stat().st_size, wrote=page)


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("load")
    if record is None:
        return ""
    lines = [
        [
            command,
            *(f"{case[name]}" for name in ("wall_s", "processor_s", "memory_peak_mib", "reads_mb")),
            f"{case['writes_mb'] or '-'}",
        ]
        for command, case in record.items()
    ]
    return screen(
        "How long do `compare` and `report` take with very many runs?",
        "Runs and models are made up. Each command had a process of its own. The report was measured on a busy "
        "machine, and the comparisons in a run before, on a quiet one.",
        [table(["", "s", "processor s", "peak MiB", "reads MB", "page MB"], lines)],
        "python -m benchmarks.product.load",
        "more models or runs than these.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the full size")
    parser.add_argument("--folder", type=Path, help="where the files lie meanwhile")
    options = parser.parse_args()
    lines, models, long = (max(10, round(options.share * full)) for full in (LINES, MODELS, LONG))
    names = [f"m{i}" for i in range(10)]
    cases: dict[str, Callable[[Path], dict[str, Any]]] = {
        f"report, {models} models x {REPEATS} runs": lambda folder: reported(folder, models, REPEATS),
        f"compare, 2 x {lines} runs of 10 models, measured alone": lambda folder: compared(
            folder, alone(names, lines // 10, 46, 1), alone(names, lines // 10, 46, 2)
        ),
        f"compare, 2 x {lines} runs of 2 models, measured alone": lambda folder: compared(
            folder, alone(names[:2], lines // 2, 46, 1), alone(names[:2], lines // 2, 46, 2)
        ),
        f"compare, {lines} runs in turns": lambda folder: compared(folder, turns(names[:2], lines // 2, 46, "s", 1)),
        f"compare, 2 runs of {long} samples": lambda folder: compared(
            folder, alone(names[:1], 1, long, 1), alone(names[:1], 1, long, 2)
        ),
    }
    record: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name, case in cases.items():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            record[name] = case(Path(folder))
        print(f"{name}: {record[name]}", flush=True)
        if options.share == 1:
            RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
