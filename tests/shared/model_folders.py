"""Parts of model folders that tests change or make up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from seals import reseal

from edgevit.records.derivation import (
    Accuracies,
    BudgetRecord,
    DataRecord,
    DerivationRecord,
    Facts,
    ShapeRecord,
    TrainingRecord,
)
from edgevit.records.export import ExportedFile, ExportedModel, ExportRecord
from edgevit.records.model import MODEL_KIND, BaseFacts, BlockDims, ModelDocument, ModelSpec, TargetClass
from edgevit.records.supernet import SettingsRecord, SlicePoint, SupernetRecord, Unit


def rewrite_spec(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change model.json as whoever knows how it is sealed could."""
    reseal(folder / "model.json", change)


def derivation_of(data: DataRecord | None, **fields: Any) -> DerivationRecord:
    """How a model came to be that was made of these images; nothing was measured."""
    record = DerivationRecord(
        created="2026-01-01T00:00:00+00:00",
        base="vit_tiny_patch16_224",
        method="nuwa",
        config={},
        training=None,
        budget=BudgetRecord("macs", 1, 2, "rate 0.5"),
        shape=ShapeRecord("fused"),
        head="subset",
        data=data,
        accuracy=Accuracies(None, None, None, None),
        versions={"edgevit": "0.1.0"},
        seconds={},
        facts=Facts(),
    )
    return replace(record, **fields)


def export_of(files: dict[str, ExportedFile]) -> ExportRecord:
    """What export.json says of these files; nothing was checked."""
    return ExportRecord(
        folder=Path(),
        files=files,
        batch="dynamic",
        opset=20,
        inputs=(),
        outputs=(),
        classes=(),
        preprocessing={},
        model=ExportedModel("vit_tiny_patch16_224", "a" * 64),
        padded=None,
        range=None,
        parity={},
        accuracy=None,
        fusion=None,
        warnings=(),
        versions={"edgevit": "0.1.0"},
        seconds={},
    )


def supernet_of(blocks: Sequence[BlockDims], data: DataRecord, widths: Sequence[int]) -> SupernetRecord:
    """A super-network of which neurons are dropped, in steps between these widths, the narrowest first."""
    return SupernetRecord(
        created="2026-01-01T00:00:00+00:00",
        base="vit_tiny_patch16_224",
        base_top1=0.9,
        settings=SettingsRecord(ShapeRecord("fused"), TrainingRecord(1, 2)),
        data=data,
        versions={"edgevit": "0.1.0"},
        seconds={},
        order=tuple(
            Unit(block, "ffn", first, last, 100_000)
            for first, last in reversed(list(pairwise(widths)))
            for block in range(len(blocks))
        ),
        curve=tuple(SlicePoint(rate, 10**6, 10**5, top1) for rate, top1 in ((0.0, 0.9), (0.5, 0.8))),
    )


def spec_text(spec: ModelSpec, weights_sha256: str) -> str:
    """The text of its model.json."""
    return MODEL_KIND.text(ModelDocument.of(spec, weights_sha256, "0.1.0"))


def some_spec(**fields: Any) -> ModelSpec:
    """A model of two blocks, without weights."""
    blocks = (BlockDims(2, 16, 16, 64),) * 2
    preprocessing = {"input_size": [3, 32, 32], "interpolation": "bicubic", "mean": [0.5, 0.5, 0.5],
                     "std": [0.5, 0.5, 0.5], "crop_pct": 0.9, "crop_mode": "center"}  # fmt: skip
    base = BaseFacts("b" * 64, blocks, 2_000_000, 20_000, 10)
    args = {"num_classes": 2, "depth": 2}
    classes = (TargetClass("cat", 3), TargetClass("dog", 5))
    spec = ModelSpec("vit_tiny_patch16_224", args, "vit", blocks, "subset", classes, preprocessing, 10**6, 10**4, base)
    return replace(spec, **fields)
