"""Networks by torchvision's names, with files as torchvision publishes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_progress import RecordedProgress
from small_base import outputs
from torch import Tensor
from torchvision.models import VisionTransformer, ViT_B_16_Weights, ViT_L_16_Weights

from edgevit.errors import CheckpointError, UnknownNameError
from edgevit.network.opening import network_without_weights, open_network
from edgevit.network.torchvision_weights import downloaded, torchvision_network, weights_in, weights_preprocessing

HEADS = {"num_heads": 2}  # which no shape says


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    """torch's cache with a small network of torchvision under the name of a file that torchvision publishes."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(0)
    network = VisionTransformer(32, 8, 2, 2, 64, 256, num_classes=10).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)  # the head starts at zeros
    file = tmp_path / "hub" / "checkpoints" / "vit_b_16-c867db91.pth"
    file.parent.mkdir(parents=True)
    torch.save(network.state_dict(), file)
    return file, network


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["vit_b_16", "vit_b_16.IMAGENET1K_V1", "ViT_B_16_Weights.DEFAULT"])
def test_a_network_is_addressed_as_in_torchvision(published: tuple[Path, Any], name: str) -> None:
    file, network = published
    progress = RecordedProgress()
    fetched = open_network(name, pretrained=True, model_args=HEADS, progress=progress)
    assert progress.notes[0] == f"{name}, of torchvision, is timm's vit_base_patch16_224"
    assert progress.notes[1].startswith(
        "torchvision's weights ViT_B_16_Weights.IMAGENET1K_V1, from torch's cache or ht"
    )
    given = open_network(name, checkpoint=file, model_args=HEADS)
    for base in (fetched, given):
        assert base.spec.timm_name == "vit_base_patch16_224"
        same(outputs(base), outputs(network))
        assert base.preprocessing["interpolation"] == "bilinear" and base.preprocessing["crop_pct"] == 0.875


def test_images_are_prepared_as_for_the_weights_that_are_named_or_whose_file_it_is(
    published: tuple[Path, Any], tmp_path: Path
) -> None:
    file, _ = published
    named = open_network("vit_b_16.IMAGENET1K_SWAG_E2E_V1", checkpoint=file, model_args=HEADS)
    assert (named.preprocessing["interpolation"], named.preprocessing["crop_pct"]) == ("bicubic", 1)
    assert named.release.origin["crop_pct"] == "torchvision"
    renamed = file.rename(tmp_path / "vit_l_16-852ce7e3.pth")
    assert weights_in(renamed) is ViT_L_16_Weights.IMAGENET1K_V1 and weights_in(tmp_path / "mine.pth") is None
    crop = open_network(renamed, model_args=HEADS).preprocessing["crop_pct"]
    assert math.floor(224 / crop) == 242


@pytest.mark.parametrize(
    "name", ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14", "swin_t", "swin_s", "swin_b"]
)
def test_the_preprocessing_is_torchvisions(name: str) -> None:
    found = torchvision_network(name)
    assert found is not None and found[2] is None
    for weights in found[1]:
        transform: Any = weights.transforms()
        settings = weights_preprocessing(weights)
        resized = math.floor(transform.crop_size[0] / settings["crop_pct"])  # as timm's transform computes it
        assert resized == transform.resize_size[0]
        assert settings["interpolation"] == transform.interpolation.value and settings["mean"] == transform.mean


def test_other_names_are_none_of_torchvisions() -> None:
    assert torchvision_network("vit_base_patch16_224.augreg_in21k") is None
    with pytest.raises(UnknownNameError, match=r"torchvision's swin_t has no weights 'IMAGENET1K_V2'; did you mean"):
        torchvision_network("Swin_T_Weights.IMAGENET1K_V2")
    assert network_without_weights("swin_t").geometry.embed == 768


def test_weights_that_cannot_be_downloaded_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    url = r"https://download\.pytorch\.org/models/vit_b_16-c867db91\.pth"
    with pytest.raises(CheckpointError, match=rf"^cannot download {url}: .*give it with --checkpoint$"):
        downloaded(ViT_B_16_Weights.DEFAULT)
    assert not list(tmp_path.rglob("*.pth"))
