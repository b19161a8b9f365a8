"""A block that has only its attention or only its FFN left: saved, loaded, and made again with timm alone."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file
from small_models import write_halves

import edgevit
from edgevit.network.families.vit.slim import SlimBlock

VARIANTS = {"plain": {}, "LayerScale": {"init_values": 0.1}, "no biases": {"qkv_bias": False}}


@pytest.mark.parametrize("args", VARIANTS.values(), ids=VARIANTS)
def test_halves_are_loaded_as_they_were_saved_and_by_timm_alone(args, tmp_path):
    folder = write_halves(tmp_path / "m", **args)
    model = edgevit.load(folder)
    first, last = model.module.blocks[0], model.blocks[-1]
    assert isinstance(first, SlimBlock) and not hasattr(first, "attn") and not hasattr(last, "mlp")
    assert (model.spec.blocks[0].heads, model.spec.blocks[-1].ffn) == (0, 0)
    lines = model.plain_loader()
    spec = json.loads((folder / "model.json").read_text())
    made = {"timm": timm, "torch": torch, "spec": spec, "state": load_file(folder / "model.safetensors")}
    exec(lines, made)
    images = torch.randn(2, *model.preprocessing["input_size"])
    with torch.inference_mode():
        torch.testing.assert_close(made["model"].eval()(images), model(images))
