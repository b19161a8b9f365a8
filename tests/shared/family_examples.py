"""A model of every kind that a family has to read, and cut copies of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from foreign_names import hugging_face, hugging_face_swin, torchvision
from torch import Tensor

from edgevit.network.anatomy import Block, BlockDims
from edgevit.network.network import Network

# Every family file must have a model here: timm name and arguments beside the small ones of conftest.py. Each third one
# is tested in halves, too: as a copy whose first block has lost its FFN and whose second its attention.
SWIN = "swin_tiny_patch4_window7_224"
EXAMPLES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "swin": [
        (SWIN, {}),
        (SWIN, {"depths": [2], "num_heads": [2], "window_size": 3}),  # shifted, and padded
        (SWIN, {"depths": [1, 0, 1], "num_heads": [2, 4, 8], "window_size": [5, 2, 2], "qkv_bias": False}),
    ],
    "vit": [
        ("vit_tiny_patch16_224", {}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("vit_tiny_patch16_224", {"reg_tokens": 4, "no_embed_class": True, "proj_bias": False, "qkv_bias": False}),
        ("vit_base_patch16_rpn_224", {"init_values": 0.1}),
        ("deit3_small_patch16_224", {"init_values": 0.1, "proj_bias": False}),
        ("vit_tiny_patch16_224", {"pre_norm": True, "qkv_bias": False}),
        ("vit_giant_patch14_dinov2", {"mlp_ratio": 8.0}),
        ("vit_tiny_patch16_224", {"mlp_layer": timm.layers.SwiGLU, "proj_bias": False}),
        (
            "vit_tiny_patch16_224",
            {"mlp_layer": timm.layers.GluMlp, "mlp_ratio": 8.0, "global_pool": "avg", "class_token": False},
        ),
        ("vit_small_patch16_dinov3_qkvb", {}),
        ("vit_small_plus_patch16_dinov3", {"global_pool": "token"}),
        ("vit_tiny_patch16_224", {"pre_norm": True, "final_norm": False, "fc_norm": True, "global_pool": "avg"}),
    ],
}
# Every family must have models here, too: of its kind, and such that its algebra would break them.
REFUSED: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "swin": [
        ("swinv2_tiny_window8_256", {}),
        (SWIN, {"in_chans": 1}),
        (SWIN, {"global_pool": "max"}),
        (SWIN, {"always_partition": True}),
        (SWIN, {"img_size": 33}),
    ],
    "vit": [
        ("vit_tiny_patch16_224", {"qk_norm": True}),
        ("vit_tiny_patch16_224", {"scale_mlp_norm": True}),
        ("vit_tiny_patch16_224", {"attn_layer": "diff"}),
        ("vit_tiny_patch16_224", {"in_chans": 1}),
        ("vit_small_patch16_rope_224", {"use_abs_pos_emb": False}),
        ("vit_small_patch16_dinov3", {"use_abs_pos_emb": True}),
        ("vit_small_patch16_dinov3", {"scale_attn_inner": True}),
        ("eva02_tiny_patch14_224", {}),
    ],
}
# And models with how others call their weights.
FOREIGN: dict[str, list[tuple[str, dict[str, Any], Callable[[dict[str, Tensor]], dict[str, Tensor]]]]] = {
    "swin": [(SWIN, {}, hugging_face_swin)],
    "vit": [
        ("vit_tiny_patch16_224", {}, lambda state: hugging_face(state, "vit.")),
        ("deit_tiny_distilled_patch16_224", {}, lambda state: hugging_face(state, "deit.", modules=True)),
        ("vit_tiny_patch16_224", {"init_values": 0.1}, lambda state: hugging_face(state, "dinov2.")),
        ("vit_tiny_patch16_224", {}, torchvision),
    ],
}
REPEATED = [EXAMPLES["vit"][i] for i in (4, 5, 7, 9)]  # each of their parts is in another example, too
CASES = [
    pytest.param(family, name, args, marks=[pytest.mark.slow] if (name, args) in REPEATED else [])
    for family, examples in EXAMPLES.items()
    for name, args in examples
]
IN_HALVES = [(family, name, args) for family, examples in EXAMPLES.items() for name, args in examples[::3]]
FORMS = [
    *(pytest.param(*case.values, "whole", marks=case.marks) for case in CASES),
    *(pytest.param(*case, "half", marks=pytest.mark.slow) for case in IN_HALVES),
]
sweep = pytest.mark.parametrize(("family_name", "name", "args"), CASES, ids=lambda v: str(v).replace(" ", ""))
sweep_vits = pytest.mark.parametrize(
    ("family_name", "name", "args"),
    [case for case in CASES if case.values[0] == "vit"],
    ids=lambda v: str(v).replace(" ", ""),
)
sweep_forms = pytest.mark.parametrize(
    ("family_name", "name", "args", "form"), FORMS, ids=lambda v: str(v).replace(" ", "")
)

refused = pytest.mark.parametrize(
    ("family_name", "name", "args"),
    [(family, *one) for family, those in REFUSED.items() for one in those],
    ids=lambda v: str(v).replace(" ", ""),
)
foreign = pytest.mark.parametrize(
    ("family_name", "name", "args", "renamed"),
    [(family, *one) for family, those in FOREIGN.items() for one in those],
    ids=lambda v: "" if callable(v) else str(v).replace(" ", ""),
)


def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def narrowed(block: Block, dims: BlockDims) -> Block:
    """Cut a block down to the first rows of everything that can be cut: no good model, but a real one."""
    attention, ffn = block.attention, block.ffn
    assert attention is not None and ffn is not None
    qk = dims.qk if attention.rotary is None else attention.qk
    if attention.bo is None and attention.bv is not None:
        attention = replace(attention, bo=torch.zeros(attention.embed))  # into which factors fold the value bias
    return Block(attention.first(qk, dims.vo), ffn.keep(slice(dims.ffn)))


def slimmed(network: Network, dims: BlockDims) -> Network:
    return network.build([narrowed(block, dims) for block in network.read()]).eval()
