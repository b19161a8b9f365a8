"""FILE.py:FUNCTION as a base: its module, with the weights of a checkpoint, opens like any other base."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from small_models import ARGS

from edgevit.errors import CheckpointError, EdgeVitError, UnsupportedModelError
from edgevit.network.builder import built
from edgevit.network.model import Model, tensors_sha256
from edgevit.network.opening import network_without_weights, open_network

MINE = f"""
import timm
from torch import nn
from sizes import DEPTH

ARGS = {ARGS!r} | dict(depth=DEPTH)

class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("vit_tiny_patch16_224", **ARGS)

    def forward(self, images):
        return self.backbone(images)

def build():
    return Wrapped()

def text():
    return "a network"

def broken():
    raise ValueError("no such size")

def convolutions():
    return timm.create_model("resnet10t", num_classes=4)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "sizes.py").write_text("DEPTH = 2\n")
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("prefix", ["", "backbone."])
def test_a_built_module_with_a_checkpoint_is_the_network_of_that_checkpoint(file: Path, prefix: str) -> None:
    network = timm.create_model("vit_tiny_patch16_224", **{**ARGS, "depth": 2}).eval()
    weights = file.with_name("weights.pth")
    torch.save({f"{prefix}{name}": value for name, value in network.state_dict().items()}, weights)
    opened = open_network(f"{file}:build", checkpoint=weights)
    assert isinstance(opened, Model)
    assert tensors_sha256(opened.state_dict()) == tensors_sha256(network.state_dict())
    assert len(network_without_weights(f"{file}:build").dims) == 2


def test_what_begins_at_random_is_the_same_each_time(file: Path) -> None:
    found = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found.add(tensors_sha256(built(f"{file}:build").state_dict()))
        assert torch.equal(torch.get_rng_state(), state)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("nothing", "defines Wrapped, build, text, broken, convolutions, and not nothing"),
        ("text", "returns a str, expected a torch.nn.Module"),
        ("broken", "raised ValueError: no such size"),
    ],
)
def test_a_function_that_builds_no_network_is_refused(file: Path, function: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        open_network(f"{file}:{function}")


def test_a_module_without_a_known_network_is_refused(file: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="must contain one network"):
        open_network(f"{file}:convolutions")


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        (None, {}, "cannot read"),
        ("def build(:", {}, "is no Python"),
        (MINE, {"pretrained": True}, "leave --pretrained"),
        (MINE, {"model_args": {"depth": 3}}, "leave --pretrained and --model-arg out"),
        (MINE, {"checkpoint": "gone.pth"}, "gone.pth"),
    ],
    ids=["missing", "syntax", "pretrained", "arguments", "weights"],
)
def test_what_cannot_be_built_is_refused_before_it_runs(
    tmp_path: Path, content: str | None, options: dict[str, object], reason: str
) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content.replace("from sizes import DEPTH", "raise SystemExit"))
    with pytest.raises(EdgeVitError, match=reason):
        open_network(f"{file}:build", **options)  # type: ignore[arg-type]


def test_weights_of_another_network_are_refused(file: Path) -> None:
    weights = file.with_name("weights.pth")
    torch.save(timm.create_model("vit_tiny_patch16_224", **{**ARGS, "depth": 3}).state_dict(), weights)
    with pytest.raises(CheckpointError, match="does not fit"):
        open_network(f"{file}:build", checkpoint=weights)
