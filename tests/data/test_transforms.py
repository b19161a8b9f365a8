"""How images become tensors: as timm prepares them, and augmented by their seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_tasks import PREPROCESSING, task_of
from timm.data import create_transform

Make = Callable[[Path, dict[str, int]], Path]


def test_preprocessing_is_timms_own(tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path, {"cat": 5, "dog": 5})
    task = task_of(tmp_path, None, 2)
    transform = create_transform(**PREPROCESSING, is_training=False)
    batches = list(task.train.batches(4))
    seen = torch.cat([images for images, _ in batches])
    assert torch.cat([labels for _, labels in batches]).tolist() == list(task.train.labels)
    expected = torch.stack([transform(Image.open(str(r)).convert("RGB")) for r in task.train.references])
    assert seen.dtype == torch.float32 and torch.equal(seen, expected)
    plain = list(task.train.training_batches([[(i, 9) for i in range(len(task.train))]], "none"))
    assert torch.equal(plain[0][0], expected)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")  # on a machine of one core
@pytest.mark.parametrize("augment", ["crop", "flip", "views", "deit"])
def test_augmentation_depends_on_the_seed_and_nothing_else(augment: Any) -> None:
    task = task_of("digits", "3,5")
    order = [[(0, 1), (1, 2)], [(0, 3), (0, 1), (5, 1)]]
    random.seed(1)
    alone = list(task.train.training_batches(order, augment))
    random.seed(2)
    torch.manual_seed(2)
    np.random.seed(2)
    for workers in (0, 2):
        again = list(task.train.training_batches(order, augment, workers))
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(alone, again, strict=True))
    assert torch.equal(alone[0][0][0], alone[1][0][1]), "one image and one seed"
    assert not torch.equal(alone[0][0][0], alone[1][0][0]), "one image and two seeds"


def test_augmentation_leaves_the_generators_as_they_were() -> None:
    task = task_of("digits", "3,5")
    batches = task.train.training_batches([[(0, 1)], [(1, 2)]], "deit")
    next(batches)
    before = (random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist())
    next(batches)
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tolist() == before[2]


def test_only_flip_mirrors(tmp_path: Path) -> None:
    half = np.zeros((32, 32, 3), np.uint8)
    half[:, 16:] = 255
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.fromarray(half).save(tmp_path / name / f"{i}.png")
    task = task_of(tmp_path, None, 2)
    order = [[(0, seed) for seed in range(64)]]
    mirrored = {}
    for augment in ("none", "crop", "flip"):
        ((images, _),) = task.train.training_batches(order, augment)  # type: ignore[arg-type]
        mirrored[augment] = int((images[..., :8].mean((1, 2, 3)) > images[..., -8:].mean((1, 2, 3))).sum())
    assert mirrored["none"] == mirrored["crop"] == 0 and 15 < mirrored["flip"] < 49
