from __future__ import annotations

import json
from dataclasses import replace

import pytest
from model_folders import some_spec

from edgevit.errors import CheckpointError
from edgevit.records.derivation import DataRecord, ImageCounts, ShapeRecord, TrainingRecord
from edgevit.records.supernet import SUPERNET_KIND, SettingsRecord, SlicePoint, SupernetRecord, Unit

ORDER = (Unit(1, "ffn", 32, 64, 10), Unit(0, "attention", 8, 16, 10), Unit(1, "ffn", 8, 32, 10))
DATA = DataRecord("digits", 10, None, 0.1, 42, False, some_spec().classes, ImageCounts(8, 1, 1), "c" * 64)
RECORD = SupernetRecord(
    created="2026-01-01T00:00:00+00:00",
    base="vit_tiny_patch16_224",
    base_top1=0.9,
    settings=SettingsRecord(ShapeRecord("fused"), TrainingRecord(42, 4, {"lr": 1e-4}), {"rate": 0.5}),
    data=DATA,
    versions={"edgevit": "0.1.0"},
    seconds={},
    order=ORDER,
    curve=(SlicePoint(0, 10**6, 10**4, 0.9), SlicePoint(0.5, 5 * 10**5, 10**4, 0.8)),
)


def test_a_record_reads_back_as_it_was_written() -> None:
    content = json.loads(SUPERNET_KIND.text(RECORD))
    assert SUPERNET_KIND.checked(content, "it") == RECORD
    assert content["settings"]["rate"] == 0.5 and content["settings"]["training"] == {
        "seed": 42,
        "steps": 4,
        "lr": 1e-4,
    }


def test_another_order_of_the_units_is_noticed_by_the_seal_and_by_what_it_says() -> None:
    blocks = some_spec().blocks
    assert RECORD.out_of_order(blocks) is None
    swapped = replace(RECORD, order=ORDER[::-1])
    assert swapped.out_of_order(blocks) == ORDER[2]
    content = SUPERNET_KIND.content(RECORD)
    with pytest.raises(CheckpointError, match=r"it was altered: .*; copy the folder again, or make it again"):
        SUPERNET_KIND.checked({**content, "order": SUPERNET_KIND.content(swapped)["order"]}, "it")
