"""Engines of a few bytes in a model folder, and the facts of the board that they are for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from edgevit.board.facts import BoardFacts, read_facts
from edgevit.records.engine import EngineAttempt, EngineBoard, EngineRecord, OnnxSource, key_of, store_engine
from edgevit.records.model_folder import ModelFolder

WEIGHTS = "a" * 64


def facts(**changes: Any) -> BoardFacts:
    found: dict[str, Any] = {
        "module": {
            "part": "p3767-0000",
            "compatible": ["nvidia,p3768-0000+p3767-0000-super", "nvidia,tegra234"],
            "model": "NVIDIA Jetson Orin NX Engineering Reference Developer Kit Super",
            "super": True,
            "memory_bytes": 16_416_497_664,
        },
        "memory": {"total_bytes": 16_416_497_664},
        "l4t": "36.4.3",
        "tensorrt": {"version": "10.3.0"},
        "cuda": {"device": "Orin", "sms": 8},
    }
    return read_facts({**found, **changes}, "orin")


ORIN = "orin-nx-16gb-l4t36.4.3-trt10.3.0-8sm"


def add(model: Path, *, board: str = ORIN, created: str = "2026-01-01", **changes: Any) -> EngineRecord:
    """Store an engine of a few bytes."""
    key = key_of({"board": board, "created": created, **{k: str(v) for k, v in changes.items()}})
    path = ModelFolder(model).export.engine(board, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = key.encode()
    values: dict[str, Any] = {
        "path": path,
        "file": path.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "created": created,
        "key": key,
        "fingerprint": board,
        "board": EngineBoard(power_mode="15W"),
        "weights_sha256": WEIGHTS,
        "onnx": OnnxSource("model.fp16.onnx", "0" * 64),
        "precision": "fp16",
        "precision_level": "fp16",
        "fp32_modules": (),
        "batches": (1, 1, 8),
        "strongly_typed": True,
        "build_seconds": 1.5,
        "workspace_bytes": None,
        "optimization_level": None,
        "timing_cache": None,
        "device_memory_bytes": None,
        "fused": 12,
        "blocks": 12,
        "fused_expected": 12,
        "accuracy": None,
        "attempts": (EngineAttempt("fp16", 2.5, "loses 31% on 'heron'"),),
        "inputs": (),
        "outputs": (),
        "warnings": ("beware",),
        "edgevit": "0.1.0",
    }
    record = EngineRecord(**{**values, **changes})
    fetched = path.with_name("fetched")
    fetched.write_bytes(content)
    store_engine(fetched, record, [{"Name": "layer"}])
    return record
