"""How many images are called `other`, of the target classes and of all other classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_base import PREPROCESSING

from edgevit.data.rejection import count_rejected, foreign_images
from edgevit.data.task import open_task
from edgevit.errors import DataError
from edgevit.network.prediction import Rejection

CLASSES = ["3", "5", "8"]


def test_a_rejected_image_is_not_called_by_its_name() -> None:
    logits = torch.tensor([[5.0, 0.0], [0.0, 5.0], [0.5, 0.0]])
    seen = count_rejected(
        Rejection("logsumexp", 3.0, 0.1).rejects, logits, [0, 0, 0], torch.tensor([[4.0, 4.0], [0.0, 0.0]])
    )
    assert (seen.images, seen.other, seen.right, seen.foreign_images, seen.foreign_other) == (3, 1, 1, 2, 1)
    assert replace(seen, foreign_images=0).foreign_share is None


def test_foreign_images_are_of_no_known_class_and_of_one_part_only() -> None:
    task = open_task("digits", CLASSES, preprocessing={**PREPROCESSING, "input_size": (3, 32, 32)}, base_outputs=10)
    parts = [foreign_images(task, part, task.class_names) for part in ("validation", "test")]
    labels = [{int(task.test.source.labels[r]) for r in split.references} for split in parts]  # type: ignore[attr-defined]
    assert labels == [{0, 1, 2, 4, 6, 7, 9}] * 2
    whole = open_task("digits", None, preprocessing=task.test.preprocessing, base_outputs=10)
    for split, part in zip(parts, (whole.validation, whole.test), strict=True):
        assert set(split.references) < set(part.references), "what training sees of a class is never in it"


def test_a_foreign_class_too_small_to_split_is_left_out_and_a_bad_image_is_named(
    tmp_path: Path, image_folder: Any
) -> None:
    image_folder(tmp_path, {"cat": 8, "dog": 8, "emu": 8, "few": 2})
    given = {"preprocessing": {**PREPROCESSING, "input_size": (3, 32, 32)}, "base_outputs": 4}
    task = open_task(tmp_path, ["cat", "dog"], **given)
    found = foreign_images(task, "test", task.class_names)
    assert {Path(str(r)).parent.name for r in found.references} == {"emu"}
    Path(str(found.references[0])).write_text("no image")
    with pytest.raises(DataError, match=r"cannot read .*emu"):
        foreign_images(task, "test", task.class_names)
    lenient = open_task(tmp_path, ["cat", "dog"], skip_bad_images=True, **given)
    assert len(foreign_images(lenient, "test", task.class_names)) == len(found) - 1
