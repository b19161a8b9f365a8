"""A module of the user's gets weights by its own names, or the network in it by those of other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from detectors import DETECTORS, write_detectors
from foreign_names import hugging_face_swin, microsoft_swin, mmdetection_swin, torchvision
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformer

from edgevit.errors import CheckpointError, UnsupportedModelError
from edgevit.network.filling import fill_module, network_in
from edgevit.network.opening import open_network
from edgevit.progress import Silent

NAMES: dict[str, Any] = {}
exec(DETECTORS, NAMES)
IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
SPELLINGS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "timm": dict,
    "Microsoft": microsoft_swin,
    "transformers": hugging_face_swin,
    "mmdetection": mmdetection_swin,
    "list": lambda state: {name.replace("layers.", "layers_"): value for name, value in state.items()},
}


def trained_swin(**options: Any) -> Any:
    """A Swin like those of the detectors, with other weights."""
    swin = NAMES["swin"](**options).eval()
    with torch.no_grad():
        for parameter in swin.parameters():
            parameter.normal_(0, 0.1)
    return swin


def filled(module: nn.Module, state: dict[str, Tensor], folder: Path) -> tuple[Any, bool, list[str]]:
    notes: list[str] = []
    torch.save(state, folder / "weights.pth")
    return *fill_module(module.eval(), folder / "weights.pth", "my.py:build", notes.append), notes


def maps(detector: Any) -> list[Tensor]:
    """The maps [B, d, H, W] that the pyramid of a detector reads."""
    read: list[Any] = []
    hook = detector.backbone.fpn.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    with torch.inference_mode():
        detector.backbone(IMAGES)
    hook.remove()
    return [*read[0].values()]


@pytest.mark.parametrize("prefix", ["", "net."])
def test_weights_of_all_are_found_among_those_of_a_training(prefix: str, tmp_path: Path) -> None:
    made, other = (nn.Sequential(NAMES["swin"](), nn.Conv2d(3, 2, 1)) for _ in range(2))
    state = {f"{prefix}{name}": value for name, value in other.state_dict().items()}
    module, alone, notes = filled(made, {**state, "loss.weight": torch.ones(2)}, tmp_path)
    assert not alone and notes == ["left out of the weights, as my.py:build does not use them: loss.weight"]
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in module.state_dict().items())
    twice = {f"{student}{name}": value for student in ("ema.", "net.") for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"has such weights 2 times, behind 'ema\.', 'net\.'; save one set alone"):
        filled(made, twice, tmp_path)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("function", ["masks", "getter", "listed"])
def test_a_backbone_is_known_by_the_names_that_others_give_it(function: str, spelling: str, tmp_path: Path) -> None:
    made, swin = NAMES[function](), trained_swin(num_classes=0 if spelling == "mmdetection" else 5)
    of_rest = {name: value.clone() for name, value in made.state_dict().items() if ".body." not in name}
    detector, alone, notes = filled(made, SPELLINGS[spelling](swin.state_dict()), tmp_path)
    assert alone and any("left out of the weights" in note for note in notes)
    with torch.inference_mode():
        expected = swin.forward_intermediates(IMAGES, intermediates_only=True)
    torch.testing.assert_close(maps(detector), expected, rtol=1e-4, atol=1e-4)
    assert of_rest and all(torch.equal(detector.state_dict()[name], value) for name, value in of_rest.items())


def test_a_backbone_of_torchvision_gives_the_same_maps(tmp_path: Path) -> None:
    torch.manual_seed(1)
    swin = SwinTransformer([8, 8], 16, [2, 1, 1], [2, 2, 4], [4, 4], num_classes=5).eval()
    state = {f"backbone.{name}": value for name, value in swin.state_dict().items()}
    pyramid = NAMES["FeaturesPyramid"]((0, 1), feature_cls="getter")
    detector, alone, notes = filled(NAMES["detector"](NAMES["FasterRCNN"], pyramid, levels=2), state, tmp_path)
    assert alone and "the weights have torchvision's names, and are read as timm's" in notes
    assert "layers.2.blocks.0.attn.proj.bias" in notes[-1], "stages that the network ends before"
    with torch.inference_mode():
        expected = [swin.features[:end](IMAGES).permute(0, 3, 1, 2) for end in (2, 4)]
    torch.testing.assert_close(maps(detector), expected, rtol=1e-4, atol=1e-4)


def test_a_vit_without_its_last_blocks_leaves_their_weights_out(tmp_path: Path) -> None:
    args: dict[str, Any] = {"embed_dim": 32, "num_heads": 2, "patch_size": 16, "depth": 3}
    torch.manual_seed(1)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=5, **args).eval()
    body = timm.create_model("vit_tiny_patch16_224", img_size=64, features_only=True, out_indices=(0, 1), **args)
    held = nn.ModuleDict({"body": body, "last": nn.Conv2d(32, 1, 1)})
    given = {f"backbone.{name}": value for name, value in torchvision(vit.state_dict()).items()}
    module, alone, notes = filled(held, {**given, "neck.weight": torch.zeros(1)}, tmp_path)
    assert alone and notes[0] == "the weights are those of backbone, without neck.weight"
    assert "blocks.2.attn.proj.bias" in notes[-1] and network_in(module)[0] == "body.model"
    with torch.inference_mode():
        expected = vit.forward_intermediates(IMAGES, indices=(0, 1), intermediates_only=True)
        torch.testing.assert_close(module["body"](IMAGES), expected)


def test_positions_are_resampled_for_the_size_of_the_builder(tmp_path: Path) -> None:
    vit = timm.create_model("vit_tiny_patch16_224", img_size=96, num_classes=0, embed_dim=32, num_heads=2, depth=2)
    held = nn.ModuleDict({"net": NAMES["ViTPyramid"](), "last": nn.Conv2d(32, 1, 1)})
    _, alone, notes = filled(held, vit.state_dict(), tmp_path)
    assert alone and "position embeddings are resampled from 6 x 6 patches to 4 x 4" in notes[-1]


def test_a_network_that_is_the_module_itself_has_no_rest(tmp_path: Path) -> None:
    swin = trained_swin(num_classes=5)
    module, alone, _ = filled(NAMES["swin"](num_classes=5), microsoft_swin(swin.state_dict()), tmp_path)
    assert not alone
    with torch.inference_mode():
        torch.testing.assert_close(module(IMAGES), swin(IMAGES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", ["listed", "getter"])
def test_a_whole_detector_has_weights_of_the_rest_whatever_its_backbone_is_called(
    function: str, tmp_path: Path
) -> None:
    given = NAMES["listed"]().eval()
    with torch.no_grad():
        for parameter in given.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    detector, alone, _ = filled(NAMES[function](), given.state_dict(), tmp_path)
    assert not alone and torch.equal(detector.rpn.head.bbox_pred.bias, given.rpn.head.bbox_pred.bias)
    with torch.inference_mode():
        torch.testing.assert_close(detector.backbone(IMAGES), given.backbone(IMAGES), rtol=1e-4, atol=1e-4)


def swin_and_a_part(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**trained_swin(num_classes=0).state_dict(), "rpn.head.bbox_pred.bias": state["rpn.head.bbox_pred.bias"]}


def not_finite(_: dict[str, Tensor]) -> dict[str, Tensor]:
    state = trained_swin(num_classes=0).state_dict()
    return mmdetection_swin({**state, "norm.bias": torch.full((64,), torch.nan)})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            swin_and_a_part,
            r"nor does it fit backbone\.body alone: it has weights of other parts, too; give the weights",
        ),
        (
            lambda _: trained_swin(features_only=True, out_indices=(0, 1)).state_dict(),
            r"my\.py:build: it lacks .*; nor does it fit backbone\.body alone: it lacks layers\.2",
        ),
        (
            lambda state: {**state, "roi_heads.box_predictor.cls_score.bias": torch.zeros(9)},
            r"does not fit my\.py:build: roi_heads\.box_predictor\.cls_score\.bias is \[9\], expected \[4\]",
        ),
        (not_finite, r"norm\.bias has 64 values of 64 that are NaN"),
        (
            lambda _: timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=48).state_dict(),
            r"nor does it fit backbone\.body alone: it lacks layers\.0\.blocks.* and 59 more; give the",
        ),
    ],
    ids=["a part of the rest", "fewer stages", "other shapes", "not finite", "another family"],
)
def test_weights_of_neither_are_refused_in_one_line(
    given: Callable[[dict[str, Tensor]], dict[str, Tensor]], reason: str, tmp_path: Path
) -> None:
    made = NAMES["masks"]()
    with pytest.raises(CheckpointError, match=reason) as caught:
        filled(made, given(made.state_dict()), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_module_of_no_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="must contain one network of"):
        filled(NAMES["resnet"](), trained_swin().state_dict(), tmp_path)


class Lines(Silent):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


@pytest.mark.usefixtures("own_cache")
def test_an_opened_detector_says_that_its_rest_is_as_it_was_made(tmp_path: Path) -> None:
    base, weights, lines = f"{write_detectors(tmp_path)}:getter", tmp_path / "swin.pth", Lines()
    torch.save(trained_swin(num_classes=5).state_dict(), weights)
    opened: Any = open_network(base, checkpoint=weights, progress=lines)
    alone = "the weights are of detector.backbone.body.model alone; the rest begins as getter makes it"
    assert lines.warned == [alone] and opened.spec.builder.backbone_alone
