"""Which arguments reach `timm.create_model`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from timm.models import create_model
from timm.models.vision_transformer import VisionTransformer

from edgevit.errors import OptionError
from edgevit.network.arguments import KINDS, check_arguments


def test_what_a_vit_is_made_of_is_allowed_and_nothing_that_timm_opens() -> None:
    network = inspect.signature(VisionTransformer).parameters.keys()
    classes = {"embed_layer", "block_fn", "device", "dtype"}  # which have no names
    assert network - KINDS.keys() == classes and not KINDS.keys() & inspect.signature(create_model).parameters.keys()


@pytest.mark.parametrize(
    "arguments",
    [
        {"img_size": 32, "patch_size": (8, 16), "num_heads": 3, "mlp_ratio": 4, "init_values": None},
        {"img_size": [32, 128], "norm_layer": "layernorm", "act_layer": "gelu_tanh", "global_pool": ""},
        {"qkv_bias": False, "fc_norm": None, "drop_path_rate": 0.1, "num_classes": 0, "pos_embed": "none"},
    ],
)
def test_arguments_of_networks_pass(arguments: Any) -> None:
    check_arguments(arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"checkpoint_path": "x.pth"},
            "--model-arg checkpoint_path is no argument that edgevit passes to timm; allowed",
        ),
        ({"pretrained_cfg": {"file": "x"}}, "allowed are img_size, patch_size"),
        ({"cache_dir": "/"}, "cache_dir is no argument"),
        ({"num_head": 3}, "did you mean num_heads?"),
        ({"num_heads": True}, "num_heads=True is not possible; give a whole number from 1 to 4096"),
        ({"num_heads": -1}, "num_heads=-1 is not possible"),
        ({"img_size": 1000000}, "img_size=1000000 is not possible; give a whole number of pixels up to 16384"),
        ({"img_size": 16000}, "makes 1000000 patches of 16 x 16 pixels, expected at most 65536"),
        ({"img_size": (32, 32, 32)}, "or two as (height, width)"),
        ({"mlp_ratio": float("nan")}, "mlp_ratio=nan is not possible; give a number"),
        ({"norm_layer": "os.system"}, "give a name, or None"),
        ({"qkv_bias": "yes"}, "give true or false"),
        ({"act_layer": "x" * 999}, "xxx... is not possible"),
    ],
)
def test_others_and_impossible_values_are_one_line(arguments: Any, text: str) -> None:
    with pytest.raises(OptionError) as refusal:
        check_arguments(arguments)
    assert text in str(refusal.value) and "\n" not in str(refusal.value)
