"""The base and the pictures of the benchmark on real weights: names of weights, folds, and pictures on white."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image

from benchmarks.product import real


def _transformers_names(network: Any) -> dict[str, torch.Tensor]:
    """The tensors of a timm network by the names that transformers gives them."""
    state = network.state_dict()
    tensors = {
        "backbone.embeddings.cls_token": state["cls_token"],
        "backbone.embeddings.position_embeddings": state["pos_embed"],
        "backbone.layernorm.weight": state["norm.weight"],
        "backbone.layernorm.bias": state["norm.bias"],
    }
    for part in ("weight", "bias"):
        tensors[f"backbone.embeddings.patch_embeddings.projection.{part}"] = state[f"patch_embed.proj.{part}"]
        for i in range(len(network.blocks)):
            block, layer = f"blocks.{i}.", f"backbone.encoder.layer.{i}."
            projections = state[f"{block}attn.qkv.{part}"].chunk(3)
            for name, tensor in zip(("query", "key", "value"), projections, strict=True):
                tensors[f"{layer}attention.attention.{name}.{part}"] = tensor
            tensors[f"{layer}attention.output.dense.{part}"] = state[f"{block}attn.proj.{part}"]
            for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                tensors[f"{layer}{name}.{part}"] = state[f"{block}{name}.{part}"]
            for number in (1, 2):
                tensors[f"{layer}layer_scale{number}.lambda1"] = state[f"{block}ls{number}.gamma"]
    return tensors


def test_weights_by_other_names_make_the_same_network() -> None:
    arguments = {"img_size": 28, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 0}
    network, other = (timm.create_model(real.TIMM_NAME, **arguments).eval() for _ in range(2))
    other.load_state_dict(real.timm_weights(_transformers_names(network), 2))
    images = torch.randn(2, 3, 28, 28)
    torch.testing.assert_close(other(images), network(images))


def test_positions_are_resampled_without_antialias() -> None:
    positions = torch.arange(16.0).view(1, 16, 1).expand(1, 16, 3)
    assert torch.equal(real.resampled(positions, 4), positions)
    smaller = real.resampled(positions, 2)[0, :, 0]
    assert smaller.shape == (4,) and smaller.mean().item() == pytest.approx(7.5, abs=0.1)
    assert smaller.tolist() == sorted(smaller.tolist())


def test_variants_of_a_drawing_are_tested_in_one_fold_and_folds_are_even() -> None:
    names = [f"{animal}{mark}.png" for animal in "abcdefghij" for mark in ("_01", "_02", "_bw")]
    folds = real.folds_of(names)
    assert set(Counter(folds.values()).values()) == {6} and len(set(folds.values())) == real.FOLDS
    assert all(len({folds[f"{animal}{mark}.png"] for mark in ("_01", "_02", "_bw")}) == 1 for animal in "abcdefghij")
    many = real.folds_of([f"dog_{i}.png" for i in range(15)])
    assert set(Counter(many.values()).values()) == {3}, "a drawing of many variants is in every fold"


def test_a_picture_lies_on_white_in_a_square() -> None:
    picture = Image.new("RGBA", (20, 10), (255, 0, 0, 0))
    picture.paste((0, 0, 255, 255), (0, 0, 10, 10))
    square = real.on_white(picture, 40)
    assert square.size == (40, 40) and square.mode == "RGB"
    assert square.getpixel((5, 20)) == (0, 0, 255) and square.getpixel((35, 20)) == (255, 255, 255)
    assert square.getpixel((5, 2)) == (255, 255, 255)


def test_points_below_the_base_are_weighted_by_test_images() -> None:
    rows = [
        {"fold": 0, "seed": 42, "base": 0.5, "derived": 0.4, "test_images": 100},
        {"fold": 1, "seed": 42, "base": 0.6, "derived": 0.6, "test_images": 300},
    ]
    mean, error = real.paired(rows)
    assert mean == pytest.approx(2.5) and error == pytest.approx(5.0)


def test_seeds_of_a_fold_are_averaged_before_its_error_is_taken() -> None:
    rows = [
        {"fold": fold, "seed": seed, "base": 0.6, "derived": derived, "test_images": 100}
        for fold, seed, derived in ((0, 42, 0.6), (0, 43, 0.4), (1, 42, 0.5), (1, 43, 0.5))
    ]
    mean, error = real.paired(rows)
    assert mean == pytest.approx(10.0) and error == pytest.approx(0.0)


def test_equal_pictures_are_dropped(tmp_path: Path) -> None:
    contents = {
        "birds/duck_1": "duck", "birds/duck_2": "duck", "fish/dolphin": "dolphin", "mammals/dolphin": "dolphin",
        "fish/pike": "pike", "unlabelled/pike": "pike", "unlabelled/desk": "desk",
    }  # fmt: skip
    for name in (*real.CLASSES, "unlabelled"):
        (tmp_path / name).mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    real.drop_copies(tmp_path)
    left = {f"{file.parent.name}/{file.name}" for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {"birds/duck_1", "fish/pike", "unlabelled/desk"}
