"""A detector of the user's is cut and compared up to its pyramid, and stays a detector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from detectors import made, opened, write_detectors
from small_models import encoders
from torch.utils.flop_counter import FlopCounterMode

import edgevit
from edgevit.errors import EdgeVitError
from edgevit.network.folder import save
from edgevit.network.model import Model, derived_spec
from edgevit.network.opening import open_network
from edgevit.network.plain_detector import is_detections

pytestmark = pytest.mark.usefixtures("own_cache")

IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_detectors(tmp_path_factory.mktemp("mine"))


@pytest.mark.parametrize("function", ["build", "masks", "retina", "fast", "getter", "listed", "named"])
def test_its_output_is_what_the_backbone_gives_and_it_still_detects(file: Path, function: str) -> None:
    network, detector = opened(file, function), made(file, function)
    with torch.inference_mode():
        levels = detector.backbone(IMAGES)
        torch.testing.assert_close(network(IMAGES), torch.cat([x.flatten(1) for x in levels.values()], 1))
        assert [*network.module.levels(IMAGES)] == [f"level_{name}" for name in levels]
        (answer,), (expected,) = (each([IMAGES[0]]) for each in (network.module.detector, detector))
    assert is_detections([answer]) and ("masks" in answer) == (function not in ("build", "retina", "fast"))
    torch.testing.assert_close(answer, expected, rtol=1e-3, atol=1e-3)
    assert network.spec.output == "boxes" and network.preprocessing["mean"] == [0.485, 0.456, 0.406]


@pytest.mark.parametrize("function", ["masks", "retina", "fast"])
def test_its_losses_are_those_of_the_detector_on_the_images_before_its_transform(file: Path, function: str) -> None:
    network, detector = opened(file, function), made(file, function).train()
    target = {"boxes": torch.tensor([[4.0, 8.0, 40.0, 50.0]]), "labels": torch.tensor([2])}
    if network.module.has_masks:
        target["masks"] = torch.ones(1, 64, 64, dtype=torch.uint8)
    assert network.module.has_masks == (function == "masks")
    mean, std = (torch.tensor(network.preprocessing[name])[:, None, None] for name in ("mean", "std"))
    images = (IMAGES - mean) / std
    torch.manual_seed(0)
    expected = detector([*(images * std + mean)], [target, target])  # rounded alike: proposals are sorted
    torch.manual_seed(0)
    levels, losses = network.train()(images, [target, target])
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(levels, network.eval()(images), rtol=1e-3, atol=1e-4)
    sum(losses.values()).backward()
    parameters = network.module.detector.backbone.body.named_parameters()
    idle = [name for name, p in parameters if p.grad is None]
    assert idle in ([], ["norm.weight", "norm.bias"]), "a pyramid may read tokens before the last norm"


def test_macs_are_of_network_and_pyramid(file: Path) -> None:
    network = opened(file, "build")
    assert network.geometry.head_macs == 16 * 32 * 16 * 4 + 16 * 32 * 16 + 4 * 32 * 16 * 4
    swin = opened(file, "masks")
    inside = swin.family.family.geometry(swin.family.inside(swin.module))
    of_pyramid = 64 * 16 * 16 + 16 * 32 * 16 + 4 * 64 * 16 + (64 + 16 + 4) * 16 * 16 * 9
    assert swin.spec.macs == inside.with_classes(0).macs(swin.dims) + of_pyramid
    for each in (network, swin):
        assert each.geometry.params(each.dims) == each.spec.params == sum(p.numel() for p in each.parameters())


@pytest.mark.parametrize("function", ["build", "masks", "retina", "fast"])
def test_macs_behind_the_pyramid_are_those_of_a_whole_pass_at_all_proposals(file: Path, function: str) -> None:
    network = opened(file, function)
    detector, spec = network.module.detector, network.spec
    proposals = 0 if function == "retina" else 20
    assert spec.rest.proposals == proposals
    if proposals:  # random images give as many
        detector.rpn.nms_thresh = detector.roi_heads.nms_thresh = 1.0
        detector.roi_heads.score_thresh = 0.0
    with FlopCounterMode(display=False) as whole, torch.inference_mode():
        found = detector([IMAGES[0]])[0]
    with FlopCounterMode(display=False) as backbone, torch.inference_mode():
        detector.backbone(IMAGES[:1])
    assert len(found["boxes"]) == 10 or not proposals
    assert spec.rest.macs == (whole.get_total_flops() - backbone.get_total_flops()) // 2
    assert f"{spec.macs / (spec.macs + spec.rest.macs):.0%} of the detector's" in spec.rest_text
    assert ("at 20 proposals" in spec.rest_text) == bool(proposals)


def test_a_cut_swin_in_a_detector_is_written_and_read_again(file: Path, tmp_path: Path) -> None:
    network = opened(file, "masks")
    slim = network.build([replace(b, ffn=b.ffn and b.ffn.keep(slice(24))) for b in network.read()]).eval()
    spec = replace(network.spec, blocks=slim.dims, macs=slim.geometry.macs(slim.dims))
    save(Model(slim, replace(spec, params=sum(p.numel() for p in slim.parameters()))), tmp_path / "slim")
    loaded = edgevit.load(tmp_path / "slim")
    with torch.inference_mode():
        torch.testing.assert_close(loaded(IMAGES), slim(IMAGES))
        assert loaded.output.kind == "boxes" and not torch.allclose(loaded(IMAGES), network(IMAGES))
        tokens, x = [], loaded.first_tokens(IMAGES)
        for block in loaded.blocks:
            x = block.module(block.enter(x))
            tokens.append(x)
        torch.testing.assert_close(loaded.outputs_after(tokens, IMAGES), loaded(IMAGES))


@pytest.mark.parametrize("function", ["getter", "listed"])
def test_a_swin_of_features_only_is_the_same_again_where_nothing_is_cut(
    file: Path, tmp_path: Path, function: str
) -> None:
    network, detector = opened(file, function), made(file, function)
    copied = network.build(network.read()).eval()
    save(Model(copied, derived_spec(network.spec, copied, "full", ())), tmp_path / "copy")
    loaded: Any = edgevit.load(tmp_path / "copy")
    with torch.inference_mode():
        expected = torch.cat([x.flatten(1) for x in detector.backbone(IMAGES).values()], 1)
        torch.testing.assert_close(loaded(IMAGES), expected)
        torch.testing.assert_close(loaded(IMAGES), network(IMAGES), rtol=0, atol=0)
        (found,), (wanted,) = (each([IMAGES[0]]) for each in (loaded.module.detector, detector))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("function", ["masks", "listed"])
def test_a_narrower_swin_gives_back_the_whole_width_to_the_levels_of_a_pyramid(
    file: Path, tmp_path: Path, function: str
) -> None:
    network = opened(file, function)
    assert network.family.read == (1, 2, 3), "the last block of each stage"
    with torch.inference_mode():
        turned = network.with_embedding(encoders(network, 64))
        torch.testing.assert_close(turned(IMAGES), network(IMAGES), rtol=1e-3, atol=1e-4)
    slim = network.with_embedding(encoders(network, 32)).eval()
    geometry = slim.geometry
    assert geometry == network.geometry_at(32) and "give tokens of the whole width" in str(geometry.fixed_embed)
    assert geometry.bases == (8, 8, 16, 32) and [stage.restores for stage in geometry.stages] == [2, 2, 1]
    assert geometry.params(slim.dims) == sum(p.numel() for p in slim.parameters())
    assert geometry.of_base(64).macs(slim.dims) == network.spec.macs
    save(Model(slim, derived_spec(network.spec, slim, "full", ())), tmp_path / "slim")
    loaded = edgevit.load(tmp_path / "slim")
    assert loaded.spec.narrowed == (32, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(IMAGES), slim(IMAGES))
        tokens, x = [], loaded.first_tokens(IMAGES)
        for block in loaded.blocks:
            tokens.append(block.run(block.enter(x)))
            x = tokens[-1]
        torch.testing.assert_close(loaded.outputs_after(tokens, IMAGES), loaded(IMAGES))


def test_the_rest_of_a_detector_reads_levels_of_elsewhere(file: Path) -> None:
    module = opened(file, "build").module
    with torch.inference_mode():
        expected = module.detector([IMAGES[0]])
        with module.reading(module.__class__.forward.__get__(opened(file, "build").module), IMAGES):
            torch.testing.assert_close(module.detector([IMAGES[0]]), expected)
        with module.reading(lambda images: torch.zeros(len(images), 16 * (64 + 16 + 4)), IMAGES):
            assert not torch.equal(module.detector([IMAGES[0]])[0]["scores"], expected[0]["scores"])
        torch.testing.assert_close(module.detector([IMAGES[0]]), expected)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "other_size",
            r"resizes images to fixed_size=\(96, 96\), padded to .* of 16, .* give it fixed_size=\(64, 64\)",
        ),
        ("resnet", "a FasterRCNN must contain one network of bert, swin, vit .* and has none"),
        ("hooked", "reads maps by hooks, which copies do not have; make it with feature_cls='getter'"),
        ("renamed", "has a transform as torchvision's detectors, and no backbone; build it as they are"),
    ],
)
def test_a_detector_that_cannot_be_cut_is_one_line(file: Path, function: str, message: str) -> None:
    with pytest.raises(EdgeVitError, match=message) as caught:
        open_network(f"{file}:{function}")
    assert "\n" not in str(caught.value)


def test_images_of_several_sizes_are_scaled_to_fit_and_padded(file: Path, tmp_path: Path) -> None:
    network = opened(file, "any_size")
    save(network, tmp_path / "model")
    fixed, pictures = made(file, "build"), [torch.rand(3, 40, 80), torch.rand(3, 96, 48)]
    padded = torch.zeros(2, 3, 64, 64)
    for whole, picture, (height, width) in zip(padded, pictures, [(32, 64), (64, 32)], strict=True):
        normal = fixed.transform.normalize(picture)
        whole[:, :height, :width] = F.interpolate(normal[None], (height, width), mode="bilinear")[0]
    for model in (network, edgevit.load(tmp_path / "model")):
        detector = model.module.detector  # type: ignore[operator]
        prepared = detector.transform(pictures)[0]
        torch.testing.assert_close(prepared.tensors, padded, rtol=1e-4, atol=1e-4)
        with torch.inference_mode():
            found = detector(pictures)
        for of_picture, (height, width) in zip(found, [(40, 80), (96, 48)], strict=True):
            assert len(of_picture["boxes"]) and of_picture["boxes"][:, 2].max() <= width + 1e-3
            assert of_picture["boxes"][:, 3].max() <= height + 1e-3
        assert model.preprocessing["crop_mode"] == "corner"
    target = {"boxes": torch.tensor([[8.0, 8.0, 40.0, 24.0]]), "labels": torch.tensor([1])}
    (scaled,) = network.module.detector.transform(pictures[:1], [target])[1]
    assert scaled["boxes"].tolist() == [pytest.approx([6.4, 6.4, 32.0, 19.2])]


def test_a_detector_has_its_own_preprocessing(file: Path) -> None:
    with pytest.raises(EdgeVitError, match="prepares images by its own transform; leave --crop-pct out"):
        open_network(f"{file}:build", preprocessing={"crop_pct": 0.9})


def test_padding_is_found_where_a_detector_pads(file: Path) -> None:
    pyramid = opened(file, "any_size").module
    prepared = pyramid.detector.transform([torch.rand(3, 20, 64)])[0].tensors
    areas = pyramid.areas(prepared)
    assert areas.rows.tolist() == [[True] * 20 + [False] * 44] and areas.columns.all()
    assert opened(file, "build").module.areas(prepared) is None, "it stretches images"
