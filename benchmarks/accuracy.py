"""Accuracy of Vulcan, of NuWa and of each of their open choices, on the project's own rendered data set.

    python benchmarks/accuracy.py                 # everything that is not in results/accuracy.json yet
    python benchmarks/accuracy.py --only main     # one table; untrained, nuwa, schedule, ablation ...
    python benchmarks/accuracy.py --jobs 2        # two derivations side by side, one thread each

Three sub-tasks of 3, 6 and 12 of the 24 classes. Everything is chosen on the validation part, which is held out of the
training images; accuracy is reported on `val/`, which no derivation ever sees. Each result is written as soon as it is
there, so that an interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
TABLES = ("main", "untrained", "schedule", "ablation", "learning-rate", "nuwa")
TASK_SIZES = (3, 6, 12)
RATES = (0.4, 0.6, 0.8)
SEEDS = (42, 43, 44)
STEPS, BATCH, LR = 200, 48, 3e-4
ABLATION_TASK, ABLATION_RATE = 6, 0.6

# Each takes one choice away from the default, or puts another in its place.
ABLATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "no collapse term": {"collapse": "none"},
    "no rank term": {"rank": False},
    "random anchors": {"anchor": "random"},
    "collapse=activation": {"collapse": "activation"},
    "anchor_update=batch": {"anchor_update": "batch"},
    "anchor_update=ema": {"anchor_update": "ema"},
    "multiplier_update=ascent": {"multiplier_update": "ascent"},
    "reduction=paper": {"reduction": "paper"},
    "ascent and paper": {"multiplier_update": "ascent", "reduction": "paper"},
    "rho=0.1": {"rho": 0.1},
    "rho=10": {"rho": 10.0},
    "ffn_normalisation=minmax": {"ffn_normalisation": "minmax"},
    "ffn_normalisation=l2": {"ffn_normalisation": "l2"},
    "ffn_normalisation=uniform": {"ffn_normalisation": "uniform"},
    "head_allocation=uniform": {"head_allocation": "uniform"},
    "factorisation=activations": {"factorisation": "activations"},
}


NUWA_RATES = (0.4, 0.6, 0.8)
AS_PUBLISHED = {"purification": "always", "factorisation": "weights", "widths": "energy", "neurons": "activation"}
NUWA: dict[str, dict[str, Any]] = {
    "nuwa": {},
    "as published": AS_PUBLISHED,
    "as published, no purification": {**AS_PUBLISHED, "purification": "none"},
    "as published, random neurons": {**AS_PUBLISHED, "neurons": "random"},
    "as published, no least squares": {**AS_PUBLISHED, "ffn": "remove"},
    "purification=none": {"purification": "none"},
    "purification=always": {"purification": "always"},
    "neurons=random": {"neurons": "random"},
    "neurons=activation": {"neurons": "activation"},
    "ffn=remove": {"ffn": "remove"},
    "ffn=compensate": {"ffn": "compensate"},
    "factorisation=weights": {"factorisation": "weights"},
    "factorisation=tokens": {"factorisation": "tokens"},
    "widths=uniform": {"widths": "uniform"},
    "widths=energy": {"widths": "energy"},
}


@dataclass(frozen=True)
class Case:
    """One derivation."""

    table: str  # one of TABLES
    task: int  # number of classes
    rate: float
    seed: int
    variant: str = "default"
    options: dict[str, Any] = field(default_factory=dict)
    shape: str = "fused"
    steps: int = STEPS
    batch_size: int = BATCH
    lr: float = LR
    schedule: Literal["constant", "cosine"] = "cosine"
    method: str = "vulcan"

    def key(self, base_sha256: str) -> str:
        """What identifies a result: another base or another setting is another result."""
        told = asdict(self)
        if self.method == "vulcan":
            told.pop("method")  # rows older than the second method
        return hashlib.sha256(json.dumps([told, base_sha256], sort_keys=True).encode()).hexdigest()[:16]


def cases() -> Iterator[Case]:
    """Every derivation, in the order in which a reader would miss it; seeds outermost."""
    for lr in (3e-4, 1e-3, 5e-4):
        yield Case("learning-rate", ABLATION_TASK, ABLATION_RATE, SEEDS[0], f"lr={lr:g}", lr=lr, schedule="constant")
    for task in TASK_SIZES:
        for rate in RATES:
            yield Case("schedule", task, rate, SEEDS[0], "schedule=constant", schedule="constant")
    for task in TASK_SIZES:
        for rate in RATES:
            yield Case("untrained", task, rate, SEEDS[0], "steps=0", steps=0)
    for variant, options in NUWA.items():
        for task in TASK_SIZES:
            for rate in NUWA_RATES:
                yield Case("nuwa", task, rate, SEEDS[0], variant, options, steps=0, method="nuwa")
    for variant in ("nuwa", "as published"):
        for task in TASK_SIZES:
            for rate in NUWA_RATES:
                yield Case("nuwa", task, rate, SEEDS[0], f"{variant}, fine-tuned", NUWA[variant], method="nuwa")
    for seed in SEEDS:
        for task in TASK_SIZES:
            for rate in RATES:
                yield Case("main", task, rate, seed)
        for variant, options in ABLATIONS.items():
            yield Case("ablation", ABLATION_TASK, ABLATION_RATE, seed, variant, options, schedule="constant")
        shape = ("ablation", ABLATION_TASK, ABLATION_RATE, seed, "shape=paper")
        yield Case(*shape, shape="paper", schedule="constant")


def task_classes(names: list[str], size: int) -> list[str]:
    """The sub-task of this size: drawn once, by a seed that is its size."""
    return sorted(random.Random(size).sample(sorted(names), size))


def run(case: Case, base: str, data: str, threads: int) -> dict[str, Any]:
    """Do one derivation and return what is worth keeping of it."""
    import torch

    import edgevit
    from edgevit.derive.train import Training

    torch.set_num_threads(threads)
    os.environ["XDG_CACHE_HOME"] = str(Path(base).parent / "shared")  # the benchmark's own, not the user's
    facts = json.loads((Path(base) / "base.json").read_text())
    folder = Path(tempfile.mkdtemp())
    try:
        derivation = edgevit.derive(
            facts["timm_name"],
            checkpoint=Path(base) / "base.safetensors",
            model_args=facts["model_args"],
            preprocessing={"mean": facts["mean"], "std": facts["std"], "crop_pct": 1.0},
            data=data,
            classes=task_classes(facts["classes"], case.task),
            rate=case.rate,
            out=folder / "model",
            method=case.method,
            options=case.options,
            shape=case.shape,
            training=Training(
                steps=case.steps, batch_size=case.batch_size, lr=case.lr, seed=case.seed, device="cpu", evaluations=5,
                early_stop=False, schedule=case.schedule,
            ),
            # Once per task, seed and schedule: it does not depend on the rate.
            finetune_base=case.table in ("main", "schedule") and case.rate == RATES[0],
        )  # fmt: skip
        history = (folder / "model" / "history.jsonl").read_text().splitlines()
        last = json.loads(history[-1]) if history else {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    record, spec = derivation.record, derivation.model.spec
    accuracy = {name: part and part["top1"] for name, part in record["accuracy"].items()}
    worst = min(record["accuracy"]["derived"]["per_class"].items(), key=lambda pair: pair[1])
    return {
        **asdict(case),
        "base_sha256": spec.base.weights_sha256,
        "accuracy": accuracy,
        "worst_class": worst,
        "validation": {"trained": last.get("accuracy_trained"), "pruned": last.get("accuracy_pruned")},
        "facts": record["facts"],
        "last_losses": {name: last.get(name) for name in ("loss_task", "loss_collapse", "loss_rank", "lambda_1")},
        "test_images": record["accuracy"]["derived"]["images"],
        "train_images": record["data"]["images"]["train"],
        "rate_reached": spec.rate,
        "macs": spec.macs,
        "params": spec.params,
        "blocks": [asdict(b) for b in spec.blocks],
        "seconds": record["seconds"],
        "versions": record["versions"],
    }


def load() -> dict[str, dict[str, Any]]:
    return json.loads(RESULTS.read_text())["rows"] if RESULTS.is_file() else {}


def store(rows: dict[str, dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")
    temporary.rename(RESULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    arguments = parser.parse_args()
    from base import ensure_rendered_base

    from edgevit.cli.console import Console
    from edgevit.models.checkpoint import read_weights, tensors_sha256

    progress = Console().progress
    data, base = ensure_rendered_base(progress=progress)
    sha256 = tensors_sha256(read_weights(base / "base.safetensors"))
    rows = load()
    wanted = [c for c in cases() if c.seed in SEEDS[: arguments.seeds] and arguments.only in (None, c.table)]
    due = [c for c in wanted if c.key(sha256) not in rows]
    print(f"{len(wanted)} cases, {len(due)} to do", file=sys.stderr)
    threads = 1 if arguments.jobs > 1 else 0
    with (
        ProcessPoolExecutor(arguments.jobs) as pool,
        progress.stage("accuracy", len(due), "derivation") as stage,
    ):
        import torch

        running = {pool.submit(run, c, str(base), str(data), threads or torch.get_num_threads()): c for c in due}
        for done, future in enumerate(as_completed(running), 1):
            row = future.result()
            rows[running[future].key(sha256)] = row
            store(rows)
            stage.update(done)
            shown = f"{row['table']} {row['task']} classes, rate {row['rate']}, {row['variant']}, seed {row['seed']}"
            progress.note(f"{shown}: {100 * row['accuracy']['derived']:.2f} %")


if __name__ == "__main__":
    main()
