"""Everything that a report may find, as files: a base and two models of it, runs on two boards, what is broken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from model_folders import derivation_of, export_of, some_spec, spec_text
from some_engines import add
from some_layers import PROFILE
from some_runs import DENSE, MS, ON_A_BOARD, watts

from edgevit.agent.records import Run
from edgevit.board.layers import line_of
from edgevit.records.derivation import (
    DERIVATION_KIND,
    Accuracies,
    AccuracyRecord,
    DataRecord,
    Facts,
    ImageCounts,
    TrainingRecord,
)
from edgevit.records.engine import EngineAccuracy, EngineClassAccuracy
from edgevit.records.export import EXPORT_KIND, AccuracyCheck, ExportedFile, FileAccuracy, Parity
from edgevit.records.model import BlockDims, TargetClass
from edgevit.reporting.choice import Entry, Panel

CLASSES = (TargetClass("cat", 3), TargetClass("dog", 5))
DATA = DataRecord(
    "/data/pets", 10, None, 0.1, 42, False, CLASSES, ImageCounts(800, 100, 200), "f" * 64
)  # fmt: skip
WEIGHTS = "a" * 64
NANO, NX = (
    {"board": name, "power_mode": mode, "tensorrt": "10.3.0", "cores": "6"}
    for name, mode in (("Nano", "25W"), ("NX", "15W"))
)


def accuracy(top1: float, cat: float, dog: float) -> AccuracyRecord:
    """On 100 images of each class."""
    confused = {a: {b: n} for a, b, n in (("cat", "dog", 100 - round(cat)), ("dog", "cat", 100 - round(dog))) if n}
    per_class = {"cat": cat / 100, "dog": dog / 100}
    return AccuracyRecord(top1, 200, per_class, None, {"cat": 100, "dog": 100}, confused)


BASE = accuracy(0.96, 95, 97)
GOOD, POOR = accuracy(0.95, 92, 98), accuracy(0.7, 50, 90)


def accuracies(derived: AccuracyRecord) -> Accuracies:
    return Accuracies(AccuracyRecord(0.9, 200), BASE, None, derived)


def write_folder(folder: Path, *, derivation: Any = None, label: str = "", **spec: Any) -> str:
    """A model folder with an exported file; returns the file's sha256, which is made of the folder's name."""
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(spec_text(some_spec(**{"classes": CLASSES, **spec}), WEIGHTS))
    (folder / "model.safetensors").write_bytes(b"w" * 3000)
    if derivation is not None:
        (folder / "derivation.json").write_text(DERIVATION_KIND.text(derivation))
    sha = (label or folder.name).encode().hex().ljust(64, "0")[:64]
    top1 = derivation.accuracy.derived.top1 if derivation is not None else 1.0
    files = {"fp32": FileAccuracy(top1, 1.0, 0.999, {}), "fp16": FileAccuracy(top1 - 0.005, 0.995, 0.99, {})}
    record = replace(
        export_of({f"model.{p}.onnx": ExportedFile(sha if p == "fp16" else "9" * 64, 2000, {}) for p in files}),
        parity={p: Parity(1e-4, 0.02, 0.1, 1.0, 4, "random") for p in files},
        accuracy=AccuracyCheck("/data/pets", "test", 200, top1, files) if derivation is not None else None,
    )
    (folder / "export").mkdir()
    (folder / "export" / "export.json").write_text(EXPORT_KIND.text(record))
    return sha


def derived(top1: AccuracyRecord, **fields: Any) -> Any:
    facts = Facts(steps=20, kept_step=20, accuracy_validation_before=0.8, accuracy_validation_trained=0.9)
    told = {"data": DATA, "accuracy": accuracies(top1), "facts": facts, "training": TrainingRecord(42, 20)}
    return replace(derivation_of(None), **{**told, **fields})


def history(steps: int = 20) -> str:
    lines = [
        {"schema": 1, "edgevit": "0.1.0", "stage": "distil", "step": i, "loss_task": 1 / (i + 1), "lr": 1e-4}
        | ({"accuracy_trained": 0.5 + i / 50} if i % 5 == 0 else {})
        for i in range(steps)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def turns(sha: str, label: str, ms: float, environment: dict[str, str], session: str, **fields: Any) -> list[Run]:
    """Six rounds of one model."""
    times = tuple(round(ms * MS) + 1000 * (n % 20) for n in range(200))
    run = replace(
        ON_A_BOARD, label=label, model_sha256=sha, latencies_ns=times, gpu_ns=None, wall_ns=sum(times),
        power=watts(*(3.0 + ms, 3.2 + ms) * 30, 3.0 + ms), environment=environment, session=session, **fields,
    )  # fmt: skip
    return [replace(run, round=i, turn=i) for i in range(1, 7)]


def write_everything(root: Path) -> Path:
    """A base, t1 as good as it and t2 not, measured on two boards in turns; an engine, a profile; broken files."""
    runs = root / "runs"
    small = (BlockDims(2, 12, 12, 32, tokens=9, merged=True), BlockDims(1, 12, 12, 8))
    whole = {"base": replace(some_spec().base, embed=32)}
    narrow = {**whole, "timm_args": {"num_classes": 2, "depth": 2, "embed_dim": 24}}
    base = write_folder(runs / "base", macs=2_000_000, params=20_000, **whole)
    t1 = write_folder(runs / "t1", derivation=derived(GOOD), blocks=small, macs=500_000, params=5_000, **narrow)
    t2 = write_folder(
        runs / "t2", derivation=derived(POOR, method="vulcan"), blocks=small, macs=300_000, params=3_000, **whole
    )
    (runs / "t1" / "history.jsonl").write_text(history() + '{"stage": "dis')
    seen = EngineAccuracy("/data/pets", "test", 200, "0" * 64, 0.95, 0.94, 0.99, "cat",
                          {"cat": EngineClassAccuracy(100, 0.92, 0.9)})  # fmt: skip
    engine = add(runs / "t1", accuracy=seen)
    measured = [
        *turns(base, "base", 8, NANO, "s1"), *turns(t1, "t1", 3, NANO, "s1"), *turns(t2, "t2", 2, NANO, "s1"),
        *turns(base, "base", 5, NX, "s2"), *turns(engine.sha256, "t1", 2, NX, "s2", precision="fp16"),
        replace(DENSE, label="lost", environment=NX),
    ]  # fmt: skip
    profile = line_of(replace(PROFILE, model_sha256=engine.sha256))
    (root / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in measured) + profile + '{"schema": 5, "la')
    (root / "other.jsonl").write_text('{"schema": 99}\n')
    (runs / "spoilt").mkdir()
    (runs / "spoilt" / "model.json").write_text("{")
    return root


def by_title(panel: Panel) -> dict[str, Entry]:
    """The rows of a panel by their titles."""
    return {entry.title: entry for entry in panel.entries}
