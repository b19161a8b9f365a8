"""Trainings that are interrupted and go on, and Fashion-MNIST, whose base is trained so."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import base
import dataset
import fashion
import fine
import numpy as np
import pytest
import timm
import torch
from long_training import LongRecipe, ensure_long_base
from safetensors.torch import load_file

from edgevit.data.sources.idx import open_source
from edgevit.progress import Silent

TINY_ARGS = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
RECIPE = LongRecipe(epochs=3, batch_size=5, shift_px=1)


class Interrupting(Silent):
    """Stops the work it is shown, as Ctrl-C does, at the update with this number."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __enter__(self) -> Interrupting:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def stage(self, name: str, total: int | None = None, unit: str = "") -> Interrupting:
        return self

    def update(self, done: int, **figures: float | None) -> None:
        if done == self.last:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def images() -> base.Images:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(256, (18, 3, 16, 16), generator=generator, dtype=torch.uint8)
    labels = torch.arange(18) % 3
    return base.Images(pictures[:12], labels[:12], pictures[12:], labels[12:], ("a", "b", "c"))


@pytest.mark.parametrize("bf16", [False, True])
def test_a_training_that_was_interrupted_ends_in_the_same_weights(
    tmp_path: Path, images: base.Images, bf16: bool
) -> None:
    recipe = LongRecipe(epochs=3, batch_size=5, shift_px=1, bf16=bf16)
    state = torch.get_rng_state()
    courses = recipe, LongRecipe(epochs=1, batch_size=5, bf16=bf16, mirrored=True, seed=1)
    whole = ensure_long_base(images, TINY_ARGS, *courses, cache_dir=tmp_path / "whole")
    assert torch.equal(torch.get_rng_state(), state)
    # In the third epoch of three steps each, from which the second attempt goes on; twice.
    for last in (8, 8):
        with pytest.raises(KeyboardInterrupt):
            ensure_long_base(images, TINY_ARGS, *courses, cache_dir=tmp_path / "parts", progress=Interrupting(last))
        assert [f.suffix for f in (tmp_path / "parts").glob(".training-*")] == [".pt"]
    seen: Any = Interrupting(4)  # the second epoch's first step, which is not done again
    parts = ensure_long_base(images, TINY_ARGS, *courses, cache_dir=tmp_path / "parts", progress=seen)
    assert parts.name == whole.name and not list((tmp_path / "parts").glob(".*"))
    first, second = (load_file(folder / "base.safetensors") for folder in (whole, parts))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_the_card_says_how_it_was_trained_and_what_it_reached(tmp_path: Path, images: base.Images) -> None:
    folder = ensure_long_base(images, TINY_ARGS, RECIPE, cache_dir=tmp_path)
    card = json.loads((folder / "base.json").read_text())
    (recipe,) = card["recipes"]
    assert (recipe["epochs"], recipe["bf16"], card["train_images"]) == (3, True, 12)
    assert card["classes"] == ["a", "b", "c"] and card["cpu_seconds"] >= 0
    model = timm.create_model(card["timm_name"], num_classes=3, **card["model_args"])
    model.load_state_dict(load_file(folder / "base.safetensors"))
    assert base.top1(base.predict(model, images.val), images.val_labels) == pytest.approx(card["val_top1"])
    assert ensure_long_base(images, TINY_ARGS, RECIPE, cache_dir=tmp_path) == folder
    assert ensure_long_base(images, TINY_ARGS, LongRecipe(epochs=1), cache_dir=tmp_path) != folder


def test_a_base_that_the_repository_keeps_is_not_trained_again(
    tmp_path: Path, images: base.Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "KEPT", tmp_path / "bases")
    kept = ensure_long_base(images, TINY_ARGS, RECIPE, cache_dir=base.KEPT)
    (kept / "base.json").write_text("{}")  # told apart from one that is trained now
    for _ in range(2):
        base.bring_kept(tmp_path / "cache")
    found = ensure_long_base(images, TINY_ARGS, RECIPE, cache_dir=tmp_path / "cache", progress=Interrupting(1))
    assert found == tmp_path / "cache" / kept.name and (found / "base.json").read_text() == "{}"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [kept.name]


FINE = (fine.FINE_COURSES, fine.FINE_ARGS, len(dataset.FINE_CLASSES) * fine.FINE_PER_CLASS, dataset.FINE_CLASSES)
FASHION = (fashion.FASHION_COURSES, fashion.FASHION_ARGS, fashion.LEARNT, None)
RENDERED = ((base.RENDERED_RECIPE,), base.RENDERED_ARGS, None, dataset.CLASSES)


@pytest.mark.parametrize("asked", [FINE, FASHION, RENDERED], ids=["fine", "fashion", "rendered"])
def test_a_base_that_is_kept_is_what_its_benchmark_asks_for(asked: tuple[Any, ...]) -> None:
    courses, arguments, learnt, classes = asked
    cards = {folder: json.loads((folder / "base.json").read_text()) for folder in base.KEPT.iterdir()}
    recipes = {folder: card.get("recipes") or [card["recipe"]] for folder, card in cards.items()}
    (folder,) = (folder for folder, of in recipes.items() if of == [asdict(one) for one in courses])
    card = cards[folder]
    assert (card["model_args"], card.get("train_images")) == (arguments, learnt)
    assert classes is None or card["classes"] == list(classes)
    model = timm.create_model(card["timm_name"], num_classes=len(card["classes"]), **card["model_args"])
    model.load_state_dict(load_file(folder / "base.safetensors"))


def test_the_base_and_its_user_share_no_image(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 10)):
        pictures = torch.from_numpy(random.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(fashion._idx(pictures))
        labels = torch.arange(count, dtype=torch.uint8) % 10
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(fashion._idx(labels))
    published = open_source(str(tmp_path))
    images = fashion.read_fashion(published, 20)
    users = open_source(str(fashion.ensure_folder(published, 20, tmp_path / "cache")))
    assert images.train.shape == (20, 3, 28, 28) and len(images.val) == 10
    np.testing.assert_array_equal(users.images["train"], published.images["train"][20:])
    np.testing.assert_array_equal(users.labels["test"], published.labels["test"])
    learnt = {picture.tobytes() for picture in images.train[:, 0].numpy()}
    assert not learnt & {picture.tobytes() for part in ("train", "test") for picture in users.images[part]}
    assert fashion.ensure_folder(published, 20, tmp_path / "cache").name.startswith("fashion-")


def test_where_fashion_mnist_is_missing_it_is_said_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"apt install dataset-fashion-mnist, or --data DIR"):
        fashion.ensure_fashion_base(tmp_path / "nowhere")
