"""Parts of model folders that tests change or make up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgevit.folder.model import BaseFacts, BlockDims, ClassLabel, ModelSpec, content_sha256


def rewrite_spec(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change model.json as whoever knows how it is sealed could."""
    file = folder / "model.json"
    spec = json.loads(file.read_text())
    change(spec)
    if "spec_sha256" in spec:
        spec["spec_sha256"] = content_sha256(spec)
    file.write_text(json.dumps(spec))


def derivation_of(data: dict[str, Any] | None) -> dict[str, Any]:
    """What derivation.json says of a model that was made of these images; nothing was measured."""
    return {
        "schema": 1,
        "created": "2026-01-01T00:00:00+00:00",
        "base": "vit_tiny_patch16_224",
        "method": "nuwa",
        "config": {},
        "training": None,
        "budget": {"quantity": "macs", "limit": 1, "base": 2, "asked": "rate 0.5"},
        "shape": {"name": "fused"},
        "data": data,
        "accuracy": dict.fromkeys(("base_full_head", "base_restricted", "base_finetuned", "derived")),
        "versions": {"edgevit": "0.1.0"},
        "seconds": {},
        "facts": {},
    }


def some_spec(**fields: Any) -> ModelSpec:
    """A model of two blocks, without weights."""
    blocks = (BlockDims(2, 16, 16, 64),) * 2
    preprocessing = {"input_size": [3, 32, 32], "interpolation": "bicubic", "mean": [0.5, 0.5, 0.5],
                     "std": [0.5, 0.5, 0.5], "crop_pct": 0.9, "crop_mode": "center"}  # fmt: skip
    base = BaseFacts("b" * 64, blocks, 2_000_000, 20_000, 10)
    args = {"num_classes": 2, "depth": 2}
    classes = (ClassLabel("cat", 3), ClassLabel("dog", 5))
    spec = ModelSpec("vit_tiny_patch16_224", args, "vit", blocks, "subset", classes, preprocessing, 10**6, 10**4, base)
    return replace(spec, **fields)
