"""The rendered data set and the bases trained on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import base
import dataset
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

from edgevit.errors import UnknownNameError
from edgevit.progress import Silent

SMALL: dict[str, Any] = {
    "classes": ("dotted_disc", "plain_star", "striped_ring"),
    "train_per_class": 4,
    "val_per_class": 2,
    "size": 32,
}
OF_24 = "ea82b87ad948079a"  # an image of each part, rendered before there were 48 classes
TINY_ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}


def pictures(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): np.asarray(Image.open(f)).tobytes() for f in sorted(folder.rglob("*.png"))}


def test_the_same_seed_gives_the_same_hash_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (
        dataset.render(tmp_path / name, seed=seed, **SMALL) for name, seed in [("a", 1), ("b", 1), ("c", 2)]
    )
    assert first == again != other
    assert pictures(tmp_path / "a") == pictures(tmp_path / "b")


def test_an_image_does_not_depend_on_what_is_rendered_beside_it(tmp_path: Path) -> None:
    dataset.render(tmp_path / "many", **SMALL)
    dataset.render(tmp_path / "few", **{**SMALL, "classes": ["striped_ring"], "train_per_class": 2})
    few, many = pictures(tmp_path / "few"), pictures(tmp_path / "many")
    assert few == {name: many[name] for name in few}


def test_train_and_val_share_no_image(tmp_path: Path) -> None:
    dataset.render(tmp_path / "data", **SMALL)
    train, val = (list(pictures(tmp_path / "data" / part).values()) for part in dataset.PARTS)
    assert len(set(train)) == 12
    assert not set(train) & set(val)


def test_folders_hold_the_classes_and_counts_asked_for(tmp_path: Path) -> None:
    dataset.render(tmp_path, **SMALL)
    for part, count in (("train", 4), ("val", 2)):
        assert sorted(f.name for f in (tmp_path / part).iterdir()) == sorted(SMALL["classes"])
        assert all(len(list(f.iterdir())) == count for f in (tmp_path / part).iterdir())
    assert (tmp_path / "train" / "plain_star" / "00001.png").is_file()


def test_there_are_24_classes_in_order_of_name() -> None:
    assert len(set(dataset.CLASSES)) == 24
    assert list(dataset.CLASSES) == sorted(dataset.CLASSES)
    assert len(set(dataset.FINE_CLASSES)) == 48 and set(dataset.CLASSES) < set(dataset.FINE_CLASSES)


@pytest.mark.parametrize("name", dataset.FINE_CLASSES)
def test_every_class_draws_an_image_of_the_size_asked_for_that_is_not_constant(name: str) -> None:
    picture = dataset.draw(name, np.random.default_rng(0), size=40)
    assert picture.shape == (40, 40, 3)
    assert picture.dtype == np.uint8
    assert picture.std() > 5


def test_more_classes_leave_the_images_of_the_24_as_they_are(tmp_path: Path) -> None:
    """They are what the recorded rows are of."""
    small = {**SMALL, "classes": ("plain_star",), "train_per_class": 1, "val_per_class": 1}
    assert dataset.render(tmp_path / "of 24", **small)[:16] == OF_24
    assert dataset.render(tmp_path / "of 48", vocabulary=dataset.FINE_CLASSES, **small)[:16] != OF_24


def test_the_object_and_not_the_background_tells_the_class() -> None:
    one, other = (dataset.draw(name, np.random.default_rng(3)) for name in ("plain_disc", "plain_square"))
    differs = (one != other).any(axis=2)
    assert 0 < differs.mean() < 0.5


def test_an_unknown_class_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no class 'stripped_disc'; did you mean 'striped_disc'"):
        dataset.render(tmp_path, **{**SMALL, "classes": ["stripped_disc"]})


def test_a_render_is_reused_and_other_parameters_make_another(tmp_path: Path) -> None:
    folder = dataset.ensure(tmp_path, **SMALL)
    (folder / "mark").touch()
    assert dataset.ensure(tmp_path, **SMALL) == folder
    assert (folder / "mark").exists()
    assert dataset.ensure(tmp_path, seed=1, **SMALL) != folder
    assert dataset.ensure(tmp_path, scene=dataset.Scene(noise=0.1), **SMALL) != folder


class Interrupting(Silent):
    """Stops the work it is shown, as Ctrl-C does, at its second update."""

    def __init__(self) -> None:
        self.updates = 0

    def __enter__(self) -> Interrupting:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def stage(self, name: str, total: int | None = None, unit: str = "") -> Interrupting:
        return self

    def update(self, done: int, **figures: float | None) -> None:
        self.updates += 1
        if self.updates == 2:
            raise KeyboardInterrupt


def test_an_interrupted_render_is_not_reused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        dataset.ensure(tmp_path, progress=Interrupting(), **SMALL)
    assert list(tmp_path.iterdir()) == []
    assert len(pictures(dataset.ensure(tmp_path, **SMALL))) == 18


def test_what_a_killed_render_left_behind_is_not_reused(tmp_path: Path) -> None:
    folder = dataset.ensure(tmp_path / "whole", **SMALL)
    left = tmp_path / ".partial-killed" / folder.name
    dataset.render(left, **{**SMALL, "train_per_class": 1})
    assert len(pictures(dataset.ensure(tmp_path, **SMALL))) == 18


def test_a_folder_is_read_in_order_of_class_name(tmp_path: Path) -> None:
    dataset.render(tmp_path, **SMALL)
    images = base.read_folder(tmp_path)
    assert images.classes == SMALL["classes"]
    assert images.train.shape == (12, 3, 32, 32)
    assert images.val_labels.tolist() == [0, 0, 1, 1, 2, 2]
    first = np.asarray(Image.open(tmp_path / "train" / "dotted_disc" / "00001.png"))
    assert np.array_equal(images.train[0].permute(1, 2, 0).numpy(), first)


def test_digits_are_read_by_index_in_three_equal_channels() -> None:
    images = base.read_digits([0, 1, 2], [1796])
    assert images.train.shape == (3, 3, 32, 32)
    assert images.train_labels.tolist() == [0, 1, 2]
    assert images.val_labels.tolist() == [8]
    assert torch.equal(images.train[:, 0], images.train[:, 2])
    assert images.train.dtype == torch.uint8
    assert images.train.max() > 240


def test_shifting_moves_whole_images_and_repeats_their_edges() -> None:
    image = torch.arange(36, dtype=torch.uint8).reshape(1, 1, 6, 6).repeat(50, 1, 1, 1)
    moved = base.shifted(image, 1, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(image[:1].float(), (1,) * 4, mode="replicate").byte()[0, 0]
    crops = [padded[y : y + 6, x : x + 6] for y in range(3) for x in range(3)]
    hits = [sum(torch.equal(m[0], crop) for m in moved) for crop in crops]
    assert sum(hits) == 50
    assert min(hits) > 0


def test_a_base_is_trained_once_and_loads_in_timm(tmp_path: Path) -> None:
    images = base.read_folder(dataset.ensure(tmp_path, **SMALL))
    recipe = base.Recipe(epochs=2, batch_size=5)
    state = torch.get_rng_state()
    folder = base.ensure_base(images, TINY_ARGS, recipe, cache_dir=tmp_path)
    assert torch.equal(torch.get_rng_state(), state)

    card = json.loads((folder / "base.json").read_text())
    assert card["classes"] == list(SMALL["classes"])
    assert card["recipe"]["epochs"] == 2
    model = timm.create_model(card["timm_name"], num_classes=card["num_classes"], **card["model_args"])
    model.load_state_dict(load_file(folder / "base.safetensors"))
    assert base.top1(base.predict(model, images.val), images.val_labels) == pytest.approx(card["val_top1"])

    written = (folder / "base.safetensors").stat().st_mtime_ns
    assert base.ensure_base(images, TINY_ARGS, recipe, cache_dir=tmp_path) == folder
    assert (folder / "base.safetensors").stat().st_mtime_ns == written
    assert base.ensure_base(images, TINY_ARGS, base.Recipe(epochs=1), cache_dir=tmp_path) != folder


def test_training_twice_gives_the_same_weights(tmp_path: Path) -> None:
    dataset.render(tmp_path / "data", **SMALL)
    images = base.read_folder(tmp_path / "data")
    for name in "ab":
        base.train_base(tmp_path / name, images, TINY_ARGS, base.Recipe(epochs=2, batch_size=5))
    first, second = (load_file(tmp_path / name / "base.safetensors") for name in "ab")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_training_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    dataset.render(tmp_path / "data", **SMALL)
    images = base.read_folder(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        base.ensure_base(images, TINY_ARGS, base.Recipe(), cache_dir=tmp_path / "cache", progress=Interrupting())
    assert not list((tmp_path / "cache").glob("*"))
