"""A module becomes a folder that opens as the same network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from dense_networks import write_depth
from recorded_progress import RecordedProgress
from small_models import ARGS
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from edgevit.errors import UnsupportedModelError
from edgevit.network import from_module
from edgevit.network.from_module import path_of
from edgevit.network.network import Network
from edgevit.network.opening import open_network


class Around(nn.Module):
    """A module with a ViT in it, whose outputs are multiplied."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.backbone, self.factor = inner, factor

    def forward(self, images: Tensor) -> Any:
        return self.backbone(images) * self.factor


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "module",
    [
        lambda: timm.create_model("vit_tiny_patch16_224", **ARGS),
        lambda: Around(timm.create_model("vit_tiny_patch16_224", **ARGS), 1.0),
        lambda: Network(timm.create_model("vit_tiny_patch16_224", **ARGS)),
        # sizes that timm's name does not say, and shapes that could be 5 x 5 patches
        lambda: VisionTransformer(
            img_size=(32, 48), patch_size=8, embed_dim=96, depth=3, num_heads=4, num_classes=0, global_pool="avg"
        ),
        lambda: timm.create_model("vit_small_patch14_dinov2", img_size=28, depth=2),
        lambda: timm.create_model("vit_small_patch16_dinov3", img_size=32, depth=2),
        lambda: timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=2),
        lambda: timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 4)
        ),
    ],
    ids=["timm", "inside", "Network", "own class", "DINOv2", "DINOv3", "distilled", "Swin of other heads"],
)
def test_the_folder_of_a_module_opens_as_the_same_function(module: Any) -> None:
    torch.manual_seed(0)
    network = module()
    folder = path_of(network, "edgevit.derive")
    assert network.training and path_of(network, "edgevit.derive") == folder
    opened = open_network(folder)
    again: nn.Module = getattr(opened, "network", opened)
    images = torch.rand(2, *Network(again).input_size)
    with torch.inference_mode():
        torch.testing.assert_close(again(images), network.eval()(images), rtol=1e-4, atol=1e-5)


def test_the_same_weights_with_another_head_are_another_folder() -> None:
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", **ARGS)
    first = path_of(network, "edgevit.derive")
    network.default_cfg["mean"] = (0.1, 0.2, 0.3)
    second = path_of(network, "edgevit.derive")
    assert first != second
    assert json.loads((second / "config.json").read_text())["pretrained_cfg"]["mean"] == [0.1, 0.2, 0.3]


def small() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **ARGS)


class Adapted(nn.Linear):
    """A linear layer with an adapter beside it, as LoRA's."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + 0.1 * tokens.mean(-1, keepdim=True)


def with_adapters(network: Any) -> nn.Module:
    for block in network.blocks:
        block.mlp.fc1.__class__ = Adapted
    return network


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: Around(small(), 2.0), "outputs of this Around are .*, and not those of the VisionTransformer in it"),
        (lambda: nn.DataParallel(small()), "the module is wrapped by DataParallel, .*; leave DataParallel out"),
        (lambda: nn.Sequential(small(), torch.compile(nn.Linear(10, 2))), "1 is wrapped by torch.compile, in which"),
        (lambda: Around(with_adapters(small()), 1.0), "in block 0, its fc1 is .*Adapted, expected .*; merge adapters"),
        (lambda: nn.Linear(2, 2), "a Linear must contain one network of bert, swin, vit .*, and has none"),
        (lambda: nn.ModuleList([small(), small()]), "and has 0, 1"),
        (
            lambda: timm.create_model("vit_tiny_patch16_224", **ARGS, act_layer="relu"),
            "is not what timm makes as vit_tiny_patch16_224 .*: its outputs differ",
        ),
        (
            lambda: nn.Sequential(small(), weight_norm(nn.Linear(10, 2))),
            "the weights of 1 are computed by a parametrisation, .*; call torch.nn.utils.parametrize",
        ),
        (
            lambda: nn.Sequential(small(), nn.utils.weight_norm(nn.Linear(10, 2))),
            "the weights of 1 are computed by a hook, which no file keeps; call torch.nn.utils.remove_weight_norm on",
        ),
        (
            lambda: nn.Sequential(small(), nn.utils.spectral_norm(nn.Linear(10, 2))),
            "1 are computed by a hook, .*; call torch.nn.utils.remove_spectral_norm on 1",
        ),
        (
            lambda: nn.Sequential(small(), prune.l1_unstructured(nn.Linear(10, 2), "weight", 5)),
            "1 are computed by a hook, .*; call torch.nn.utils.prune.remove on 1",
        ),
    ],
    ids=[
        "own head", "parallel", "compiled", "LoRA", "no network", "two networks", "other activation",
        "weights that are computed", "weight norm", "spectral norm", "pruned",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_module_that_cannot_be_a_base_is_refused(module: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        path_of(module(), "edgevit.derive")


def test_a_class_is_no_module_and_a_path_stays_a_path() -> None:
    with pytest.raises(TypeError, match=r"edgevit.derive takes a module, .*; give VisionTransformer\(\)"):
        path_of(VisionTransformer, "edgevit.derive")
    assert path_of("runs/base", "edgevit.derive") == "runs/base"


def test_long_checks_are_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_module, "_LONG_S", 0.0)
    progress: Any = RecordedProgress()
    open_network(f"{write_depth(tmp_path)}:Depth", progress=progress)
    assert [note for note in progress.notes if note.startswith("this Depth is tried on two images first: ")]
