"""A task without images has its classes, and parts of which nothing is read."""

from edgevit.data.no_images import without_images
from edgevit.data.task import open_task
from edgevit.records.model import TargetClass

PREPROCESSING = {"input_size": [3, 8, 8], "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}


def test_a_task_without_images_has_its_classes_and_empty_parts() -> None:
    task = without_images([TargetClass("7", 4), TargetClass("3", 9)], PREPROCESSING)
    assert (task.class_names, task.base_columns, task.has_images) == (["7", "3"], [4, 9], False)
    assert [list(part.batches(4)) for part in (task.train, task.validation, task.test)] == [[], [], []]
    assert task.train.source.references("train", "7") == []
    seen = open_task("digits", "3,7", preprocessing={**PREPROCESSING, "crop_pct": 1.0}, base_outputs=10)
    assert seen.has_images and seen.fingerprint() != task.fingerprint()
