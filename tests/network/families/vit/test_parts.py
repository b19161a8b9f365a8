"""Weights of timm's layers as parts: which rows are whose."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from edgevit.network.anatomy import BlockDims
from edgevit.network.families.vit.parts import make_attention, read_attention, read_ffn, write_ffn


@pytest.mark.parametrize(("vo", "module"), [(3, "Attention"), (1, "SlimAttention")])
def test_an_attention_is_timms_own_where_its_widths_are_equal(vo: int, module: str) -> None:
    made = make_attention(8, BlockDims(2, 3, vo, 0), qkv_bias=True, proj_bias=False)
    part = read_attention(made)
    assert type(made).__name__ == module and (part.heads, part.qk, part.vo, part.embed) == (2, 3, vo, 8)
    assert part.bq is not None and part.bo is None


GATED = {
    "two layers": timm.layers.SwiGLU(4, 6),
    "the first half is activated": timm.layers.GluMlp(4, 12, gate_last=False),
    "the second half is activated": timm.layers.GluMlp(4, 12, gate_last=True),
}


@pytest.mark.parametrize("mlp", GATED.values(), ids=GATED)
def test_what_passes_through_the_activation_is_told_from_what_it_is_multiplied_by(mlp: Any) -> None:
    x, part = torch.randn(5, 4), read_ffn(mlp)
    assert part.wg is not None and part.b1 is not None and part.bg is not None and part.b2 is not None
    by_hand = (mlp.act(x @ part.w1.mT + part.b1) * (x @ part.wg.mT + part.bg)) @ part.w2.mT + part.b2
    torch.testing.assert_close(mlp.eval()(x), by_hand)


@pytest.mark.parametrize("mlp", GATED.values(), ids=GATED)
def test_a_part_is_written_back_where_it_was_read_and_shares_nothing(mlp: Any) -> None:
    part, before = read_ffn(mlp), {name: value.clone() for name, value in mlp.state_dict().items()}
    other = type(mlp)(4, *({6} if isinstance(mlp, timm.layers.SwiGLU) else {12}), **_gate(mlp))
    write_ffn(other, part)
    for name, value in other.state_dict().items():
        assert torch.equal(value, before[name]) and value.data_ptr() != mlp.state_dict()[name].data_ptr()


def _gate(mlp: nn.Module) -> dict[str, Any]:
    return {"gate_last": mlp.gate_last} if isinstance(mlp, timm.layers.GluMlp) else {}
