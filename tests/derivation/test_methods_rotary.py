"""A method derives from a base with rotary embeddings, and leaves queries and keys as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from small_base import ARGS, PREPROCESSING, QUICK, images

import edgevit
from edgevit.derivation.methods import own_method_names
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("few_digits")

NAME, ROTARY = "vit_small_patch16_dinov3", {**ARGS, "embed_dim": 96, "num_heads": 3}
FEW = {"calibration_images": 32}
OPTIONS: dict[str, dict[str, Any]] = {
    "forge": {**FEW, "sensitivity_images": 16},
    "heart": {"calibration_images": 8, "probes": 1},
    "mdp": FEW,
    "nuwa": {"purification_steps": 2, "purification": "always"},
    "dcvit": FEW,
    "vulcan": FEW,
    "taylor": FEW,
    "torch_pruning": FEW,
}
BASELINES = ("corp", "dcvit", "mdp", "taylor", "torch_pruning")  # the others choose widths as taylor does
COMMON: dict[str, Any] = {
    "data": "digits",
    "accept_weak_base": True,
    "training": Training(**{**QUICK, "steps": 2}),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("rotary") / "base.safetensors"
    save_file(timm.create_model(NAME, num_classes=10, **ROTARY).state_dict(), file)
    return {"checkpoint": file, "model_args": ROTARY, "preprocessing": PREPROCESSING}


@pytest.fixture(scope="module")
def net(opened: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    few = {"proxy_images": 32, "updates": 2, "points": 2}
    out = tmp_path_factory.mktemp("net") / "net"
    edgevit.supernet(NAME, out=out, rate=0.3, options=few, **opened, **COMMON)
    return out


@pytest.mark.quick("forge-fused")
@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, "fused") for name in (*own_method_names(), *BASELINES)), ("nuwa", "paper"), ("forge", "free")],
)
def test_queries_and_keys_stay(
    name: str, shape: str, opened: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rate = 0.08 if name == "heart" else 0.2  # it cuts whole heads alone: two of three stay
    asked: dict[str, Any] = {"classes": "3,7,9", "rate": rate, "method": name, "options": OPTIONS.get(name, {})}
    asked |= {"shape": shape, "cache": False, "out": tmp_path / "m", **COMMON}
    if name == "skd":
        made = edgevit.derive(supernet=request.getfixturevalue("net"), **asked)
    else:
        made = edgevit.derive(NAME, **asked, **opened)
    dims = list(made.model.dims)
    assert made.model.spec.rate >= rate and all(d.qk == 32 and not d.tokens for d in dims if d.has("attention"))
    assert shape != "fused" or all(d.qk == d.vo for d in dims)
    torch.testing.assert_close(edgevit.load(tmp_path / "m")(images()), made.model(images()))
