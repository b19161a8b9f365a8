from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import random_base, slimmed

from edgevit.exporting.source import pad_heads, padded_width
from edgevit.network.anatomy import BlockDims


@pytest.mark.parametrize(("qk", "vo", "bias"), [(24, 16, True), (9, 31, True), (8, 8, False), (3, 20, False)])
def test_padding_keeps_the_function_and_makes_every_block_fusable(qk: int, vo: int, bias: bool) -> None:
    network = slimmed(random_base(qkv_bias=bias), qk, vo)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    images = torch.randn(2, 3, 32, 32)
    padded = pad_heads(network)
    assert all(block.dims.fusable for block in padded.read())
    torch.testing.assert_close(padded(images), network(images), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dict(network.state_dict()), before)


@given(st.integers(1, 128), st.integers(1, 128))
def test_a_padded_width_is_fusable_and_no_wider_than_need_be(qk: int, vo: int) -> None:
    width = padded_width(BlockDims(2, qk, vo, 8))
    assert BlockDims(2, width, width, 8).fusable
    assert max(qk, vo) <= width < max(qk, vo, 9) + 8


def test_a_block_that_fuses_keeps_its_width() -> None:
    assert padded_width(BlockDims(2, 20, 20, 8)) == 20
