"""A head reads a narrower embedding itself, and puts out what it did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from detectors import write_detectors
from narrow_heads import write_heads

import edgevit
from edgevit.errors import CheckpointError
from edgevit.network.folder import save
from edgevit.network.model import Model, derived_spec
from edgevit.network.narrow_readers import read_narrower, reading_costs
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.records.model import NarrowedLayer

pytestmark = pytest.mark.usefixtures("own_cache")

NARROW = 16
LAST, NORM = "backbone.blocks.2.restore", ("backbone.norm",)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_heads(tmp_path_factory.mktemp("mine"))


def images_of(network: Network) -> Any:
    return torch.rand(2, *network.input_size, generator=torch.Generator().manual_seed(0))


def opened(base: str) -> Any:
    """A network with norms and biases of all values, that knows what reading a narrower embedding would save."""
    network: Any = open_network(base)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in network.module.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    network.family = replace(network.family, per_channel=reading_costs(network, images_of(network)))
    return network


@torch.no_grad()
def narrowed(network: Network, width: int = NARROW) -> Network:
    """A narrower one, which does not keep the mean of tokens and restores them with an offset."""
    generator = torch.Generator().manual_seed(2)
    sizes = zip(network.geometry.bases, network.geometry.bases_at(width), strict=True)
    slim = network.with_embedding(
        [torch.linalg.qr(torch.randn(size, generator=generator, dtype=torch.float64))[0].mT for size in sizes]
    )
    for block in slim.blocks:
        if block.restore is not None:
            for values in (block.restore.weight, block.restore.bias):
                values += 0.3 * torch.randn(values.shape, generator=generator)
    return slim.eval()


@pytest.mark.parametrize(
    ("function", "layers"),
    [
        ("Linear", [NarrowedLayer(LAST, NORM, ("first",), 24)]),
        ("Convolution", [NarrowedLayer(LAST, NORM, ("first",), 24)]),
        ("Transposed", [NarrowedLayer(LAST, NORM, ("first",), 24)]),
        ("Twice", [NarrowedLayer(LAST, NORM, ("first", "second"), 24)]),
        (
            "Levels",
            [
                NarrowedLayer("backbone.blocks.0.restore", NORM, ("backbone.blocks.1.narrow", "one"), 24),
                NarrowedLayer(LAST, NORM, ("two",), 24),
            ],
        ),
        (
            "Bare",
            [
                NarrowedLayer("backbone.blocks.0.restore", (), ("backbone.blocks.1.narrow", "one"), 24),
                NarrowedLayer(LAST, (), ("two",), 24),
            ],
        ),
    ],
)
def test_a_head_of_linear_layers_and_convolutions_reads_the_embedding_itself(
    file: Path, tmp_path: Path, function: str, layers: list[NarrowedLayer]
) -> None:
    base = opened(f"{file}:{function}")
    slim, images = narrowed(base), images_of(base)
    found = read_narrower(slim, images)
    assert found is not None and list(found.layers) == layers and found.per_channel == base.family.per_channel
    with torch.inference_mode():
        torch.testing.assert_close(found.network(images), slim(images), rtol=1e-4, atol=1e-5)
    assert slim.module.get_submodule(LAST).weight.shape == (64, NARROW)  # type: ignore[union-attr]
    geometry = found.network.geometry
    assert geometry == base.geometry_at(NARROW)
    assert geometry.params(slim.dims) == sum(p.numel() for p in found.network.parameters())
    assert geometry.macs(slim.dims) < 0.98 * slim.geometry.macs(slim.dims)
    spec = replace(derived_spec(base.spec, found.network, "full", ()), output="values", narrow_readers=found.layers)
    save(Model(found.network, spec), tmp_path / "slim")
    loaded = edgevit.load(tmp_path / "slim")
    assert loaded.spec.embedding_text is not None and ", which the head reads itself" in loaded.spec.embedding_text
    with torch.inference_mode():
        torch.testing.assert_close(loaded(images), found.network(images))
    again: Any = open_network(tmp_path / "slim")  # a base that is read so
    save(Model(again, replace(derived_spec(again.spec, again, "full", ()), output="values")), tmp_path / "again")
    with torch.inference_mode():
        torch.testing.assert_close(edgevit.load(tmp_path / "again")(images), found.network(images))


@pytest.mark.parametrize("function", ["build", "Tied", "Skipped", "Bent", "Normed", "Grouped", "Hard"])
def test_a_head_that_reads_otherwise_keeps_the_whole_width(file: Path, function: str) -> None:
    base = opened(f"{file}:{function}")
    assert base.family.per_channel == () and base.geometry.fixed_embed is None
    assert read_narrower(narrowed(base), images_of(base)) is None
    assert base.geometry_at(NARROW) == narrowed(base).geometry


def test_an_embedding_that_is_hardly_narrower_is_restored(file: Path) -> None:
    base = opened(f"{file}:Linear")
    slim = narrowed(base, 62)
    assert read_narrower(slim, images_of(base)) is None and base.geometry_at(62) == slim.geometry


@pytest.mark.parametrize("function", ["build", "masks"])
def test_what_makes_a_pyramid_reads_the_embedding_of_each_stage(tmp_path: Path, function: str) -> None:
    base = opened(f"{write_detectors(tmp_path)}:{function}")
    slim, images = narrowed(base), images_of(base)
    found = read_narrower(slim, images)
    assert found is not None and len(found.layers) == len(base.geometry.stages)
    assert found.network.geometry == base.geometry_at(NARROW)
    with torch.inference_mode():
        torch.testing.assert_close(found.network(images), slim(images), rtol=1e-4, atol=1e-4)


def test_other_layers_than_those_recorded_are_refused(file: Path, tmp_path: Path) -> None:
    base = opened(f"{file}:Linear")
    found = read_narrower(narrowed(base), images_of(base))
    assert found is not None
    wrong = (replace(found.layers[0], readers=("none",)),)
    spec = replace(derived_spec(base.spec, found.network, "full", ()), output="values", narrow_readers=wrong)
    save(Model(found.network, spec), tmp_path / "slim")
    with pytest.raises(CheckpointError, match="no such layers that read its embedding"):
        edgevit.load(tmp_path / "slim")
