"""Parts are sliced by their own methods: what is left computes what it did with the rest put out."""

from dataclasses import replace

import pytest
import torch

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Attention, Block, BlockDims, Ffn, attentions, ffns, pack, unpack


@pytest.fixture
def attention():
    torch.manual_seed(0)
    wide = {name: torch.randn(3, 8, 16) for name in ("wq", "wk", "wv")}
    biases = {name: torch.randn(3, 8) for name in ("bq", "bk", "bv")}
    return Attention(**wide, **biases, wo=torch.randn(3, 16, 8), bo=torch.randn(16))


@pytest.fixture
def ffn():
    torch.manual_seed(1)
    return Ffn(w1=torch.randn(12, 6), b1=torch.randn(12), w2=torch.randn(6, 12), b2=None, wg=torch.randn(12, 6))


def heads_of(part, x):
    """What each head puts out [H, N, d], without the output bias."""
    q, k, v = (
        torch.einsum("nd,hwd->hnw", x, w) + (0 if b is None else b[:, None])
        for w, b in ((part.wq, part.bq), (part.wk, part.bk), (part.wv, part.bv))
    )
    return torch.einsum("hnv,hdv->hnd", (q @ k.mT / part.qk**0.5).softmax(-1) @ v, part.wo)


def neurons_of(part, x):
    gate = 1 if part.wg is None else x @ part.wg.mT
    return torch.nn.functional.silu(x @ part.w1.mT + part.b1) * gate


def test_heads_that_are_kept_put_out_what_they_did(attention):
    x = torch.randn(5, 16)
    torch.testing.assert_close(heads_of(attention.keep([2, 0]), x), heads_of(attention, x)[[2, 0]])


def test_wider_heads_put_out_the_same(attention):
    x = torch.randn(5, 16)
    padded = attention.padded(12, 16)
    assert (padded.qk, padded.vo) == (12, 16)
    torch.testing.assert_close(heads_of(padded, x), heads_of(attention, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_dimensions_that_are_kept_put_out_what_they_did_with_the_rest_at_zero(attention, bias):
    whole = attention if bias else replace(attention, bq=None, bk=None, bv=None)
    heads, qk, vo = [2, 0], torch.tensor([[1, 3], [7, 0]]), torch.tensor([[4, 1, 0], [2, 5, 7]])
    kept = whole.keep(heads, qk, vo)
    assert (kept.heads, kept.qk, kept.vo, kept.embed) == (2, 2, 3, 16)
    stays = {"q": torch.zeros(3, 8), "k": torch.zeros(3, 8), "v": torch.zeros(3, 8)}
    for head, of_qk, of_vo in zip(heads, qk, vo, strict=True):
        stays["q"][head, of_qk] = stays["k"][head, of_qk] = stays["v"][head, of_vo] = 1
    masked = {f"w{name}": getattr(whole, f"w{name}") * mask.unsqueeze(-1) for name, mask in stays.items()}
    masked |= {f"b{name}": getattr(whole, f"b{name}") * mask for name, mask in stays.items() if bias}
    x = torch.randn(5, 16)
    torch.testing.assert_close(heads_of(kept, x), heads_of(replace(whole, **masked), x)[heads], rtol=1e-4, atol=1e-5)


def test_all_dimensions_kept_are_the_same_bits_and_the_first_are_the_first(attention):
    every = torch.arange(8).repeat(3, 1)
    for whole in (attention.keep(range(3), every, every), attention.first(8, 8)):
        assert all(
            mine is other is None or torch.equal(mine, other)
            for mine, other in zip(vars(whole).values(), vars(attention).values(), strict=True)
        )
    x, part = torch.randn(5, 16), attention.first(3, 5)
    kept = attention.keep(range(3), every[:, :3], every[:, :5])
    assert (part.qk, part.vo) == (3, 5) and torch.equal(heads_of(part, x), heads_of(kept, x))


def test_a_value_bias_is_enough_to_take_a_constant(attention):
    assert replace(attention, bo=None).has_output_bias and not replace(attention, bo=None, bv=None).has_output_bias


def test_neurons_that_are_kept_are_as_active_with_their_gate(ffn):
    x = torch.randn(5, 6)
    kept = ffn.keep(torch.tensor([7, 0]))
    torch.testing.assert_close(neurons_of(kept, x), neurons_of(ffn, x)[:, [7, 0]])
    assert kept.wg is not None and torch.equal(kept.w2, ffn.w2[:, [7, 0]]) and len(kept.inputs()) == 3


def test_merging_equal_neurons_changes_no_output(ffn):
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 2, 2, 0, 1, 1, 0])
    anchors = torch.tensor([0, 1, 2])
    for tensor in ffn.inputs():
        tensor.copy_(tensor[anchors[labels]])
    x, merged = torch.randn(5, 6), ffn.merged(labels, anchors)
    torch.testing.assert_close(neurons_of(merged, x) @ merged.w2.mT, neurons_of(ffn, x) @ ffn.w2.mT)


def test_a_site_that_is_gone_has_no_sizes_and_is_named_where_one_is_needed(attention, ffn):
    dims = Block(None, ffn).dims
    assert (dims.heads, dims.qk, dims.vo, dims.ffn) == (0, 0, 0, 12) and not dims.has("attention")
    blocks = [Block(attention, ffn), Block(None, ffn)]
    assert len(ffns(blocks)) == 2
    with pytest.raises(UnsupportedModelError, match="block 1 of this model has no attention"):
        attentions(blocks)


def test_queries_keys_and_values_are_packed_in_this_order_by_head():
    packed = torch.arange(14.0)
    q, k, v = unpack(packed, BlockDims(heads=2, qk=3, vo=1, ffn=0))
    assert (q.tolist(), k.tolist(), v.tolist()) == ([[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]], [[12], [13]])
    assert torch.equal(pack(q, k, v), packed)
