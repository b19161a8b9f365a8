"""A detector of the user's that is not torchvision's takes prepared images, and is cut like those that are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from detectors import made, opened, write_detectors
from small_models import encoders
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

import edgevit
from edgevit.errors import EdgeVitError, UnsupportedModelError
from edgevit.network.folder import save
from edgevit.network.model import Model, derived_spec
from edgevit.network.opening import open_network
from edgevit.network.plain_detector import run_on

pytestmark = pytest.mark.usefixtures("own_cache")

IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
PLACES = {"Detr": "body", "LearningDetr": "model.backbone", "Tupled": "eyes"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_detectors(tmp_path_factory.mktemp("mine"))


def found_in(module: Any, images: Tensor) -> Any:
    """What a module finds, which may take a list."""
    with torch.inference_mode():
        return module([*images] if type(module).__name__ == "LearningDetr" else images)


def values_of(levels: Any) -> Tensor:
    parts = [levels] if isinstance(levels, Tensor) else levels.values() if isinstance(levels, dict) else levels
    return torch.cat([part.flatten(1) for part in parts], 1)


@pytest.mark.parametrize(("function", "place"), PLACES.items())
def test_its_levels_are_what_a_part_around_its_network_gives(file: Path, function: str, place: str) -> None:
    network, module = opened(file, function), made(file, function)
    with torch.inference_mode():
        torch.testing.assert_close(network(IMAGES), values_of(module.get_submodule(place)(IMAGES)))
        found = network.module.detect(IMAGES)
    torch.testing.assert_close(found, found_in(module, IMAGES), rtol=1e-4, atol=1e-3)
    assert network.spec.output == "boxes" and network.spec.rest is None
    assert {**network.preprocessing, **network.module.preprocessing} == network.preprocessing


@pytest.mark.parametrize("function", PLACES)
def test_boxes_are_in_pixels_of_pictures_that_are_squashed(file: Path, function: str) -> None:
    network = opened(file, function)
    pictures = [torch.rand(3, 40, 96, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    prepared = torch.stack([network.transform(to_pil_image(picture)) for picture in pictures])
    with torch.inference_mode():
        found = network.module.detector(pictures)
    for of_picture, expected in zip(found, found_in(made(file, function), prepared), strict=True):
        torch.testing.assert_close(of_picture["boxes"], expected["boxes"] * torch.tensor([1.5, 0.625, 1.5, 0.625]))
        torch.testing.assert_close(of_picture["scores"], expected["scores"])
        assert torch.equal(of_picture["labels"], expected["labels"])


def test_its_images_are_prepared_as_the_user_says(file: Path, tmp_path: Path) -> None:
    stated = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "interpolation": "bilinear"}
    network = opened(file, "Detr", preprocessing=stated)
    save(network, tmp_path / "model")
    expected = found_in(made(file, "Detr"), (IMAGES - torch.tensor([0.1, 0.2, 0.3])[:, None, None])
                        / torch.tensor([0.5, 0.6, 0.7])[:, None, None])  # fmt: skip
    for model in (network, edgevit.load(tmp_path / "model")):
        assert model.preprocessing["crop_mode"] == "squash" and model.preprocessing["crop_pct"] == 1
        with torch.inference_mode():
            torch.testing.assert_close(model.module.detector([*IMAGES]), expected)  # type: ignore[operator]
    with pytest.raises(EdgeVitError, match="a detector is given whole pictures; leave --crop-pct out"):
        open_network(f"{file}:Detr", preprocessing={"crop_pct": 0.9})


@pytest.mark.parametrize("function", PLACES)
def test_it_is_the_same_again_where_nothing_is_cut_and_read_again_where_something_is(
    file: Path, tmp_path: Path, function: str
) -> None:
    network = opened(file, function)
    for name, blocks in {
        "copy": network.read(), "slim": [replace(b, ffn=b.ffn and b.ffn.keep(slice(24))) for b in network.read()]
    }.items():  # fmt: skip
        cut = network.build(blocks).eval()
        save(Model(cut, derived_spec(network.spec, cut, "full", ())), tmp_path / name)
        loaded: Any = edgevit.load(tmp_path / name)
        with torch.inference_mode():
            assert torch.equal(loaded(IMAGES), cut(IMAGES))
            assert torch.equal(loaded(IMAGES), network(IMAGES)) == (name == "copy")
            found, expected = (each.module.detector([*IMAGES]) for each in (loaded, network))
        assert torch.equal(found[0]["boxes"], expected[0]["boxes"]) == (name == "copy")


@pytest.mark.parametrize("function", PLACES)
def test_a_narrower_network_in_it_is_written_and_read_again(file: Path, tmp_path: Path, function: str) -> None:
    network = opened(file, function)
    slim = network.with_embedding(encoders(network, network.geometry.embed // 2)).eval()
    save(Model(slim, derived_spec(network.spec, slim, "full", ())), tmp_path / "slim")
    with torch.inference_mode():
        torch.testing.assert_close(edgevit.load(tmp_path / "slim")(IMAGES), slim(IMAGES))  # type: ignore[operator]


@pytest.mark.parametrize("function", PLACES)
def test_its_rest_reads_levels_of_elsewhere(file: Path, function: str) -> None:
    network = opened(file, function)
    pyramid = network.module
    with torch.inference_mode():
        values, expected = network(IMAGES), pyramid.detect(IMAGES)
        with pyramid.reading(lambda _: values, IMAGES[:1]):
            torch.testing.assert_close(pyramid.detect(IMAGES), expected, rtol=1e-4, atol=1e-3)
        with pyramid.reading(lambda _: 0 * values, IMAGES[:1]):
            assert not torch.allclose(pyramid.detect(IMAGES)[0]["boxes"], expected[0]["boxes"])
        torch.testing.assert_close(pyramid.detect(IMAGES), expected, rtol=1e-4, atol=1e-3)


def test_its_own_losses_are_read_where_it_has_some(file: Path) -> None:
    network, module = opened(file, "LearningDetr"), made(file, "LearningDetr").train()
    target = {"boxes": torch.tensor([[4.0, 8.0, 40.0, 50.0]]), "labels": torch.tensor([2])}
    assert network.module.loss_fault(network.input_size, 3) is None
    levels, losses = network.train()(IMAGES, [target, target])
    torch.testing.assert_close(losses, module([*IMAGES], [target, target]))
    torch.testing.assert_close(levels, network.eval()(IMAGES))
    assert "(label 4), gives no dict of them (Target 4 is out of" in network.module.loss_fault(network.input_size, 4)
    assert opened(file, "Detr").module.loss_fault((3, 64, 64), 3).startswith("this Detr, called in training mode")


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA is full")])
def test_memory_that_runs_out_in_the_trial_of_its_losses_is_no_fault_of_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    network = opened(file, "LearningDetr")
    monkeypatch.setattr(type(network.module.detector.module), "forward", fail)
    with pytest.raises(type(error)):
        network.module.loss_fault(network.input_size, 3)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("Alone", "none of body in it is called once, with the images alone, and gives features"),
        ("Twice", "none of eyes, eyes.body in it"),
        ("Scaled", "none of body in it"),
        ("Stages", "none of body in it .* make what computes these one module, its backbone"),
        ("Relative", "boxes of this Relative lie within one pixel; give them in pixels of its 64 x 64 images"),
    ],
    ids=["pooled", "read twice", "other images", "not called", "relative boxes"],
)
def test_one_that_cannot_be_cut_is_refused_in_one_line(file: Path, function: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        open_network(f"{file}:{function}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_lack_of_memory_is_no_form_of_input(at_once: bool) -> None:
    class Large(nn.Module):
        def forward(self, images: Any) -> list[Tensor]:
            if isinstance(images, Tensor) is at_once:
                raise MemoryError("of this machine")
            raise TypeError("the other form")

    with pytest.raises(MemoryError):
        run_on(Large(), IMAGES)
