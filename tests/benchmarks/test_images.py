"""The rendered images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import images
from edgevit.errors import UnknownNameError
from edgevit.progress import Silent

SMALL: dict[str, Any] = {
    "classes": ("dotted_disc", "plain_star", "striped_ring"),
    "train_per_class": 4,
    "val_per_class": 2,
    "size": 32,
}
OF_24 = "ea82b87ad948079a"  # an image of each part, rendered before there were 48 classes


def pictures(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): np.asarray(Image.open(f)).tobytes() for f in sorted(folder.rglob("*.png"))}


def test_the_same_seed_gives_the_same_hash_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (
        images.render(tmp_path / name, seed=seed, **SMALL) for name, seed in [("a", 1), ("b", 1), ("c", 2)]
    )
    assert first == again != other
    assert pictures(tmp_path / "a") == pictures(tmp_path / "b")


def test_an_image_does_not_depend_on_what_is_rendered_beside_it(tmp_path: Path) -> None:
    images.render(tmp_path / "many", **SMALL)
    images.render(tmp_path / "few", **{**SMALL, "classes": ["striped_ring"], "train_per_class": 2})
    few, many = pictures(tmp_path / "few"), pictures(tmp_path / "many")
    assert few == {name: many[name] for name in few}


def test_train_and_val_share_no_image(tmp_path: Path) -> None:
    images.render(tmp_path / "data", **SMALL)
    train, val = (list(pictures(tmp_path / "data" / part).values()) for part in images.PARTS)
    assert len(set(train)) == 12
    assert not set(train) & set(val)


def test_folders_hold_the_classes_and_counts_asked_for(tmp_path: Path) -> None:
    images.render(tmp_path, **SMALL)
    for part, count in (("train", 4), ("val", 2)):
        assert sorted(f.name for f in (tmp_path / part).iterdir()) == sorted(SMALL["classes"])
        assert all(len(list(f.iterdir())) == count for f in (tmp_path / part).iterdir())
    assert (tmp_path / "train" / "plain_star" / "00001.png").is_file()


def test_there_are_24_classes_in_order_of_name() -> None:
    assert len(set(images.CLASSES)) == 24
    assert list(images.CLASSES) == sorted(images.CLASSES)
    assert len(set(images.FINE_CLASSES)) == 48 and set(images.CLASSES) < set(images.FINE_CLASSES)


@pytest.mark.parametrize("name", images.FINE_CLASSES)
def test_every_class_draws_an_image_of_the_size_asked_for_that_is_not_constant(name: str) -> None:
    picture = images.draw(name, np.random.default_rng(0), size=40)
    assert picture.shape == (40, 40, 3)
    assert picture.dtype == np.uint8
    assert picture.std() > 5


def test_more_classes_leave_the_images_of_the_24_as_they_are(tmp_path: Path) -> None:
    """They are what the recorded rows are of."""
    small = {**SMALL, "classes": ("plain_star",), "train_per_class": 1, "val_per_class": 1}
    assert images.render(tmp_path / "of 24", **small)[:16] == OF_24
    assert images.render(tmp_path / "of 48", vocabulary=images.FINE_CLASSES, **small)[:16] != OF_24


def test_the_object_and_not_the_background_tells_the_class() -> None:
    one, other = (images.draw(name, np.random.default_rng(3)) for name in ("plain_disc", "plain_square"))
    differs = (one != other).any(axis=2)
    assert 0 < differs.mean() < 0.5


def test_an_unknown_class_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"no class 'stripped_disc'; did you mean 'striped_disc'"):
        images.render(tmp_path, **{**SMALL, "classes": ["stripped_disc"]})


def test_a_render_is_reused_and_other_parameters_make_another(tmp_path: Path) -> None:
    folder = images.ensure(tmp_path, **SMALL)
    (folder / "mark").touch()
    assert images.ensure(tmp_path, **SMALL) == folder
    assert (folder / "mark").exists()
    assert images.ensure(tmp_path, seed=1, **SMALL) != folder
    assert images.ensure(tmp_path, scene=images.Scene(noise=0.1), **SMALL) != folder


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
        images.ensure(tmp_path, progress=Interrupting(), **SMALL)
    assert list(tmp_path.iterdir()) == []
    assert len(pictures(images.ensure(tmp_path, **SMALL))) == 18


def test_what_a_killed_render_left_behind_is_not_reused(tmp_path: Path) -> None:
    folder = images.ensure(tmp_path / "whole", **SMALL)
    left = tmp_path / ".partial-killed" / folder.name
    images.render(left, **{**SMALL, "train_per_class": 1})
    assert len(pictures(images.ensure(tmp_path, **SMALL))) == 18
