"""A method derives from a base whose gates are packed with the neurons' weights, as in DINOv2's largest model."""

import pytest
import timm
import torch
from safetensors.torch import save_file
from small_base import ARGS, PREPROCESSING, QUICK

import edgevit
from edgevit.derivation.methods import own_method_names
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("few_digits")

NAME, GATED = "vit_giant_patch14_dinov2", {**ARGS, "mlp_ratio": 4.0}
OPTIONS = {
    # Whole FFNs may stay, or it takes one from this random base instead of narrowing any.
    "forge": {"calibration_images": 48, "sensitivity_images": 16, "drop_sites": False, "cut_embedding": False},
    "heart": {"calibration_images": 8, "probes": 1},
    "nuwa": {"purification_steps": 2, "purification": "always"},
    "vulcan": {"calibration_images": 48},
    "torch_pruning": {"calibration_images": 32},
}
COMMON = {"data": "digits", "accept_weak_base": True, "training": Training(**{**QUICK, "steps": 2})}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    torch.manual_seed(0)
    network = timm.create_model(NAME, num_classes=10, **GATED)
    file = tmp_path_factory.mktemp("gated") / "base.safetensors"
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, file)
    return {"checkpoint": file, "model_args": GATED, "preprocessing": PREPROCESSING}


@pytest.fixture(scope="module")
def net(opened, tmp_path_factory):
    few = {"proxy_images": 32, "updates": 2, "points": 2}
    out = tmp_path_factory.mktemp("net") / "net"
    edgevit.supernet(NAME, out=out, rate=0.4, options=few, **opened, **COMMON)
    return out


@pytest.mark.quick("forge", "nuwa")
@pytest.mark.parametrize("name", [*own_method_names(), "torch_pruning"])  # whose library reads the graph itself
def test_a_gated_ffn_keeps_its_gate(name, opened, tmp_path, request):
    given = {
        "classes": "3,7,9",
        "rate": 0.3,
        "method": name,
        "options": OPTIONS.get(name, {}),
        "cache": False,
        **COMMON,
    }
    if name == "skd":
        made = edgevit.derive(supernet=request.getfixturevalue("net"), out=tmp_path / "m", **given)
    else:
        made = edgevit.derive(NAME, out=tmp_path / "m", **given, **opened)
    blocks = made.model.read()
    assert made.model.spec.rate >= 0.3 and all(block.ffn.wg is not None for block in blocks)
    assert any(block.ffn.neurons < 128 or block.tokens for block in blocks)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(edgevit.load(tmp_path / "m")(images), made.model(images))
