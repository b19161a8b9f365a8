"""The bases: images are read in order, training is cached, and the kept bases are those of the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

from benchmarks import bases, images, markdown
from edgevit.data.sources.idx import open_source
from edgevit.network.model import tensors_sha256

SMALL: dict[str, Any] = {"classes": ("dotted_disc", "plain_star"), "train_per_class": 4, "val_per_class": 2, "size": 32}
TINY_ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}


def test_a_folder_is_read_in_order_of_class_name(tmp_path: Path) -> None:
    images.render(tmp_path, **SMALL)
    data = bases.read_folder(tmp_path)
    assert data.classes == SMALL["classes"]
    assert data.train.shape == (8, 3, 32, 32)
    assert data.val_labels.tolist() == [0, 0, 1, 1]
    first = np.asarray(Image.open(tmp_path / "train" / "dotted_disc" / "00001.png"))
    assert np.array_equal(data.train[0].permute(1, 2, 0).numpy(), first)


def test_shifting_moves_whole_images_and_repeats_their_edges() -> None:
    image = torch.arange(36, dtype=torch.uint8).reshape(1, 1, 6, 6).repeat(50, 1, 1, 1)
    moved = bases.shifted(image, 1, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(image[:1].float(), (1,) * 4, mode="replicate").byte()[0, 0]
    crops = [padded[y : y + 6, x : x + 6] for y in range(3) for x in range(3)]
    hits = [sum(torch.equal(m[0], crop) for m in moved) for crop in crops]
    assert sum(hits) == 50
    assert min(hits) > 0


def test_a_base_is_trained_once_and_loads_in_timm(tmp_path: Path) -> None:
    data = bases.read_folder(images.ensure(tmp_path, **SMALL))
    recipe = bases.Recipe(epochs=2, batch_size=5)
    state = torch.get_rng_state()
    folder = bases.ensure_base(data, TINY_ARGS, recipe, cache=tmp_path)
    assert torch.equal(torch.get_rng_state(), state)

    card = json.loads((folder / "base.json").read_text())
    assert card["classes"] == list(SMALL["classes"])
    assert card["recipes"][0]["epochs"] == 2
    model = timm.create_model(card["timm_name"], num_classes=card["num_classes"], **card["model_args"])
    model.load_state_dict(load_file(folder / "base.safetensors"))
    assert bases.top1(bases.predict(model, data.val), data.val_labels) == pytest.approx(card["val_top1"])

    written = (folder / "base.safetensors").stat().st_mtime_ns
    assert bases.ensure_base(data, TINY_ARGS, recipe, cache=tmp_path) == folder
    assert (folder / "base.safetensors").stat().st_mtime_ns == written
    assert bases.ensure_base(data, TINY_ARGS, bases.Recipe(epochs=1), cache=tmp_path) != folder


@pytest.mark.parametrize("name", ["rendered", "fine", "fashion"])
def test_a_kept_base_is_the_one_of_its_records(name: str) -> None:
    folder = bases.BASES / name
    card = json.loads((folder / "base.json").read_text())
    args = {"rendered": bases.RENDERED_ARGS, "fine": bases.FINE_ARGS, "fashion": bases.FASHION_ARGS}
    assert card["model_args"] == args[name]
    rows = markdown.rows_of("accuracy" if name == "rendered" else f"accuracy_{name}")
    assert rows[0]["base_sha256"] == tensors_sha256(load_file(folder / "base.safetensors"))


def test_the_user_of_fashion_mnist_has_other_images_than_the_base(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("t10k", 3)):
        pixels = torch.arange(count * 4, dtype=torch.uint8).reshape(count, 2, 2) + (100 if part == "t10k" else 0)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(bases._idx_bytes(pixels))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(bases._idx_bytes(torch.arange(count, dtype=torch.uint8)))
    source = open_source(str(tmp_path))
    folder = bases.idx_folder(source, 4, tmp_path / "cache")
    user, learnt = open_source(str(folder)), bases.read_idx(source, 4)
    assert learnt.train.shape == (4, 3, 2, 2) and len(learnt.val) == 3
    np.testing.assert_array_equal(user.images["train"], source.images["train"][4:])
    np.testing.assert_array_equal(user.labels["test"], source.labels["test"])
    assert bases.idx_folder(source, 4, tmp_path / "cache") == folder


def test_where_fashion_mnist_is_missing_the_message_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"apt install dataset-fashion-mnist"):
        bases.ensure_fashion(published=tmp_path / "nowhere")
