"""Heads one by one: the same function as timm's where widths are equal, and the same size where they are not."""

from __future__ import annotations

import timm
import torch
from small_base import ARGS, NAME, images

from benchmarks.papers.uneven import OneByOne, Widths, drawn, even, one_by_one
from edgevit.network.anatomy import BlockDims
from edgevit.network.network import Network

DIMS = BlockDims(heads=6, qk=64, vo=64, ffn=1536)


def test_heads_of_equal_widths_give_what_timm_s_attention_gives() -> None:
    torch.manual_seed(0)
    network = timm.create_model("deit_small_patch16_224", num_classes=2).eval()
    attention, tokens = network.blocks[0].attn, torch.randn(2, 197, 384)
    with torch.inference_mode():
        seen = OneByOne(attention, even([DIMS])[0])(tokens)
        torch.testing.assert_close(seen, attention(tokens), rtol=0, atol=1e-5)


def test_each_head_scales_by_the_root_of_its_own_width() -> None:
    network = timm.create_model(NAME, num_classes=2, **ARGS).eval()
    attention, tokens = network.blocks[0].attn, torch.randn(2, 17, 64)
    with torch.inference_mode():
        q, k, v = attention.qkv(tokens).chunk(3, dim=-1)
        first = (q[..., :4] @ k[..., :4].mT / 2).softmax(-1) @ v[..., :50]
        second = (q[..., 4:] @ k[..., 4:].mT / 60**0.5).softmax(-1) @ v[..., 50:]
        expected = attention.proj(torch.cat([first, second], dim=-1))
        torch.testing.assert_close(OneByOne(attention, Widths((4, 60), (50, 14)))(tokens), expected)


def test_drawn_widths_add_up_to_the_equal_ones_and_are_the_same_for_a_seed() -> None:
    blocks = drawn([DIMS] * 12, seed=0)
    assert blocks == drawn([DIMS] * 12, seed=0) != drawn([DIMS] * 12, seed=1)
    assert all(len(widths) == 6 and sum(widths) == 384 and min(widths) > 0 for block in blocks for widths in block)
    assert len({*blocks, *even([DIMS])}) == 13 and all(block.qk != block.vo for block in blocks)
    assert str(Widths((4, 60), (50, 14))) == "qk 4+60, vo 50+14"
    network = Network(timm.create_model(NAME, num_classes=2, **ARGS).eval())
    params = sum(p.numel() for p in network.parameters())
    one_by_one(network, drawn([BlockDims(2, 32, 32, 256)] * 2, seed=0))
    assert sum(p.numel() for p in network.parameters()) == params and network(images()).shape == (2, 2)
