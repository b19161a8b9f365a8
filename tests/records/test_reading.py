"""How pictures are read, as a part of a model's preprocessing."""

from __future__ import annotations

from typing import Any

from edgevit.errors import CheckpointError
from edgevit.records.documents import Reader
from edgevit.records.model import Preprocessing
from edgevit.records.reading import AS_STORED, Reading, reading_settings, transform_settings

TRANSFORM: dict[str, Any] = {"input_size": [3, 8, 8], "interpolation": "bicubic", "mean": [0, 0, 0], "std": [1, 1, 1],
                             "crop_pct": 1.0, "crop_mode": "center"}  # fmt: skip


def test_a_preprocessing_is_parted_into_reading_and_transform() -> None:
    whole = {**TRANSFORM, "exif": "apply", "value_range": 4095}
    assert Reading.of(whole) == Reading("apply", 4095) and Reading.of(TRANSFORM) == AS_STORED
    assert transform_settings(whole) == TRANSFORM and reading_settings(whole) == {"exif": "apply", "value_range": 4095}
    assert reading_settings({**TRANSFORM, "exif": "ignore", "value_range": None}) == {}


def test_a_record_has_only_what_is_not_the_default() -> None:
    reader = Reader(CheckpointError, "")
    for settings in (TRANSFORM, {**TRANSFORM, "exif": "apply"}):
        plain = reader.checked(settings, Preprocessing, "model.json").plain()
        assert {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()} == settings
