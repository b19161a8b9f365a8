"""What if two commands meet, or one is killed? Real processes, a small ViT on digits.

    python -m benchmarks.product.hostile                # 20 rounds of each case
    python -m benchmarks.product.hostile --rounds 3     # a trial

Cases: two derivations of one output; --resume beside a running derivation; two derive-many on one plan; SIGTERM at
random moments to a derivation and to a derive-many. Each round counts exit codes, tracebacks, stray processes and
files, and checks that the final weights are those of an undisturbed derivation. Commands are forked from a process that
has imported torch, so that random moments hit their work and not the import.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from benchmarks.markdown import RECORDS, load, screen, table
from edgevit.records.model_folder import ModelFolder

RESULTS = RECORDS / "hostile.json"
ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 2}
TRAINING = {"steps": 40, "batch_size": 32, "evaluations": 8, "device": "cpu"}
PREPROCESSING = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
LIMIT_S = 600  # a command that takes longer hangs
LINGER_S = 60  # in which the processes of a command that ended have to end


@dataclass
class Case:
    """The outcomes of the rounds of one case."""

    exit_codes: Counter[str] = field(default_factory=Counter)  # of the commands of a round, in order: "0 1"
    lines: Counter[str] = field(default_factory=Counter)  # the last line of a command that did not end well
    tracebacks: int = 0
    hangs: int = 0
    processes_left: int = 0
    files_left: int = 0  # beside the model and results, when all is done
    resumed: int = 0  # commands that were given again
    same_weights: int = 0
    rounds: int = 0


class Command:
    """An edgevit command in a session of its own."""

    def __init__(self, arguments: Sequence[object], log: Path) -> None:
        self.log = log
        self.process: ForkProcess = get_context("fork").Process(target=_command, args=([*map(str, arguments)], log))
        self.process.start()

    def end(self, case: Case, folder: Path) -> int:
        """Wait until it has ended; count its output and stray processes, and return its exit code."""
        self.process.join(LIMIT_S)
        pid, code = self.process.pid, self.process.exitcode
        assert pid is not None
        if code is None:
            case.hangs += 1
        until = time.monotonic() + (0 if code is None else LINGER_S)
        while (processes := session(pid)) and time.monotonic() < until:
            time.sleep(0.05)
        case.processes_left += len(processes) if code is not None else 0
        for process in processes:
            os.kill(process, signal.SIGKILL)
        output = self.log.read_text(errors="replace")
        case.tracebacks += "Traceback" in output
        if code:
            case.lines[(output.strip().splitlines() or [""])[-1].replace(str(folder), "DIR")] += 1
        return -signal.SIGKILL if code is None else code


def _command(arguments: list[str], log: Path) -> None:
    os.setsid()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["edgevit", *arguments]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from edgevit.cli.app import main

    main()


def session(pid: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, its = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its) == pid and state not in "ZX":
            processes.append(int(folder.name))
    return processes


@dataclass(frozen=True)
class Setting:
    """What all rounds derive, and how long that takes undisturbed."""

    base: Path
    seconds: float = 0.0  # that an undisturbed derivation takes
    weights: str = ""  # what it ends in
    plan_seconds: float = 0.0

    def derive(self, out: Path) -> list[object]:
        arguments: list[object] = ["derive", "vit_tiny_patch16_224", "--checkpoint", self.base, "--data", "digits"]
        arguments += [part for name, value in ARGS.items() for part in ("--model-arg", f"{name}={value}")]
        arguments += ["--mean", "0.5", "--std", "0.5", "--crop-pct", "1.0", "--classes", "3,7,9", "--rate", "0.5"]
        arguments += [part for name, value in TRAINING.items() for part in (f"--{name.replace('_', '-')}", value)]
        return [*arguments, "--accept-weak-base", "--no-cache", "--out", out]

    def plan(self, folder: Path) -> Path:
        file = folder / "jobs.yaml"
        plan = {
            "base": "vit_tiny_patch16_224", "checkpoint": str(self.base), "data": "digits", "model_args": ARGS,
            "preprocessing": PREPROCESSING, "accept_weak_base": True, "training": TRAINING,
            "out": str(folder / "fleet"),
            "tasks": [{"name": "task", "classes": "3,7,9"}], "budgets": [{"name": "half", "rate": 0.5}],
            "methods": [{"name": "forge"}],
        }  # fmt: skip
        file.write_text(json.dumps(plan))  # which is YAML, too
        return file


def weights(model: Path) -> str:
    return ModelFolder(model).weights_sha256()


def judge(case: Case, setting: Setting, model: Path, allowed: set[str]) -> None:
    """Count what is left beside the model, and whether its weights are those expected."""
    case.same_weights += model.is_dir() and weights(model) == setting.weights
    held = {str(file.relative_to(model.parent)) for file in model.parent.iterdir()}
    case.files_left += len(held - allowed - {model.name})


def two_derivations(case: Case, setting: Setting, folder: Path, moment: float, *, resume: bool) -> None:
    """Start a second derivation of one output beside the first, with or without --resume."""
    out = folder / "runs" / "out"
    first = Command(setting.derive(out), folder / "first.log")
    time.sleep(moment * setting.seconds)
    second = Command([*setting.derive(out), *(["--resume"] if resume else [])], folder / "second.log")
    codes = [command.end(case, folder) for command in (first, second)]
    case.exit_codes[" ".join(map(str, sorted(codes)))] += 1
    judge(case, setting, out, set())


def two_plans(case: Case, setting: Setting, folder: Path, moment: float) -> None:
    """Start two derive-many on one plan, and a third to check what they left."""
    plan = setting.plan(folder)
    first = Command(["derive-many", plan], folder / "first.log")
    time.sleep(moment * setting.plan_seconds)
    second = Command(["derive-many", plan], folder / "second.log")
    codes = [command.end(case, folder) for command in (first, second)]
    case.exit_codes[" ".join(map(str, sorted(codes)))] += 1
    _again(case, plan, folder)
    judge(case, setting, folder / "fleet" / "task-half-forge", {"jobs"})


def _again(case: Case, plan: Path, folder: Path) -> None:
    code = Command(["derive-many", plan], folder / "again.log").end(case, folder)
    if code:
        case.exit_codes[f"{code} when given again"] += 1


def terminated(case: Case, setting: Setting, folder: Path, moment: float) -> None:
    """Send SIGTERM to a derivation; repeat the command with --resume."""
    out = folder / "runs" / "out"
    out.parent.mkdir()
    command = Command(setting.derive(out), folder / "first.log")
    time.sleep(moment * setting.seconds)
    if command.process.pid is not None:
        os.kill(command.process.pid, signal.SIGTERM)
    code = command.end(case, folder)
    case.exit_codes[str(code)] += 1
    if code:
        case.resumed += 1
        code = Command([*setting.derive(out), "--resume"], folder / "again.log").end(case, folder)
        if code:
            case.exit_codes[f"{code} when resumed"] += 1
    judge(case, setting, out, set())


def terminated_plan(case: Case, setting: Setting, folder: Path, moment: float) -> None:
    """Send SIGTERM to a derive-many; repeat the command."""
    plan = setting.plan(folder)
    command = Command(["derive-many", plan], folder / "first.log")
    time.sleep(moment * setting.plan_seconds)
    if command.process.pid is not None:
        os.kill(command.process.pid, signal.SIGTERM)
    case.exit_codes[str(command.end(case, folder))] += 1
    case.resumed += 1
    _again(case, plan, folder)
    judge(case, setting, folder / "fleet" / "task-half-forge", {"jobs"})


CASES: dict[str, Callable[[Case, Setting, Path, float], None]] = {
    "two derivations of one output": lambda *of: two_derivations(*of, resume=False),
    "a --resume beside a running derivation": lambda *of: two_derivations(*of, resume=True),
    "SIGTERM to a derivation": terminated,
    "two derive-many on one plan": two_plans,
    "SIGTERM to a derive-many": terminated_plan,
}


def prepare(folder: Path) -> Setting:
    """Write a base with random weights, and import what commands need."""
    import timm
    import torch
    from safetensors.torch import save_file

    from edgevit.jobs import many  # noqa: F401

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=10, **ARGS)
    save_file(network.state_dict(), folder / "base.safetensors")
    return Setting(folder / "base.safetensors")


def undisturbed(setting: Setting, folder: Path) -> Setting:
    """Measure an undisturbed derivation and plan: their seconds and final weights."""
    folder.mkdir()
    seconds = []
    for arguments in (setting.derive(folder / "out"), ["derive-many", setting.plan(folder)]):
        start = time.monotonic()
        if Command(arguments, folder / "log").end(Case(), folder):
            raise SystemExit(f"{arguments[0]} failed:\n{(folder / 'log').read_text()}")
        seconds.append(time.monotonic() - start)
    sha256 = weights(folder / "out")
    shutil.rmtree(folder)
    return Setting(setting.base, seconds[0], sha256, seconds[1])


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("hostile")
    if record is None:
        return ""
    lines = [
        [
            f"{title}, {case['rounds']} times",
            ", ".join(f"{codes}: {count} times" for codes, count in sorted(case["exit_codes"].items())),
            f"{case['tracebacks']}, {case['hangs']}",
            f"{case['processes_left']}, {case['files_left']}",
            f"{case['same_weights']} of {case['rounds']}",
        ]
        for title, case in record["cases"].items()
    ]
    head = ["", "exit codes", "tracebacks, hangs", "stray processes, files", "weights of an undisturbed run in the end"]
    return screen(
        "What if two commands meet, or one is killed?",
        "Real processes, a small ViT, digits, random moments. Exit codes are of the commands of a round: 0 done, 1 "
        "refused in one line, 130 stopped; a stopped command was repeated and continued.",
        [table(head, lines)],
        "python -m benchmarks.product.hostile",
        "a full disk, SIGKILL, a network file system.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", help="cases whose name holds this text")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1"}
    cases = {name: Case() for name in CASES if (options.only or "") in name}
    record: dict[str, Any] = (
        json.loads(options.out.read_text()) if options.out.is_file() else {"schema": 1, "cases": {}}
    )
    record["environment"] = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = str(Path(name, "cache"))
        setting = prepare(Path(name))
        for title, case in cases.items():
            draw, load_average = random.Random(title), os.getloadavg()[0]
            # A busy machine changes its speed: moments are drawn within the time that the work takes now.
            setting = undisturbed(setting, Path(name, "undisturbed"))
            for number in range(options.rounds):
                folder = Path(name, "round")
                folder.mkdir()
                CASES[title](case, setting, folder, draw.random())
                case.rounds = number + 1
                for leftover in (folder, Path(name, "cache")):
                    shutil.rmtree(leftover, ignore_errors=True)
            print(f"{title}: {json.dumps(vars(case))}", file=sys.stderr, flush=True)
            seconds = {"derive_s": setting.seconds, "derive_many_s": setting.plan_seconds}
            record["cases"][title] = {**vars(case), "load_average": load_average, **seconds}
            options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
