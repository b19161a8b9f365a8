"""Lines that make a model without edgevit; that they make it is held in tests/network/test_families_protocol.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import nn

from edgevit.network.anatomy import Block


@pytest.mark.parametrize("post_norm", [False, True])
def test_only_what_a_model_lacks_is_taken_away(small_vit: Callable[..., nn.Module], post_norm: bool) -> None:
    network = small_vit("vit_base_patch16_rpn_224" if post_norm else "vit_tiny_patch16_224")
    first, second = network.read()
    told = {
        name: network.build(blocks).plain_loader() or ""
        for name, blocks in {
            "whole": [first, second],
            "no FFN": [Block(first.attention, None), second],
            "no attention": [first, Block(None, second.ffn)],
        }.items()
    }
    assert {name: ("only the FFN" in lines, "only the attention" in lines) for name, lines in told.items()} == {
        "whole": (False, False), "no FFN": (False, True), "no attention": (True, False),
    }  # fmt: skip
    assert ("b.norm1(b.attn(x))" in told["no FFN"]) == post_norm == (", block.ls2" not in told["no FFN"])


def test_timm_has_no_block_that_tokens_leave(small_vit: Callable[..., nn.Module]) -> None:
    network = small_vit()
    first, second = network.read()
    assert network.build([replace(first, tokens=9), second]).plain_loader() is None
