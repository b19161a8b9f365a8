"""The family of BERT: its copies, axes and costs, compared with the network itself."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from small_bert import ARGS, TOKENS, small_bert, some_ids
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from edgevit.derivation.solve.attention import attention_spectra, narrow
from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Attention, Block, BlockDims, pack, unpack
from edgevit.network.copies import without_values
from edgevit.network.families import bert, family_like
from edgevit.network.families.bert.modules import BertClassifier
from edgevit.network.network import Network


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def halved(network: Network) -> Network:
    """A copy of other widths, whose first block has lost its FFN and whose second its attention."""
    first, second = network.read()
    assert first.attention is not None and second.ffn is not None
    narrow_heads = replace(first.attention.keep([2, 0]).first(8, 12), bv=None)
    return network.build([Block(narrow_heads, None), Block(None, second.ffn.keep(slice(40)))]).eval()


@torch.no_grad()
def test_the_steps_of_a_forward_pass_are_the_forward_pass() -> None:
    for network in (small_bert(), halved(small_bert())):
        tokens = network.first_tokens(some_ids())
        for block in network.blocks:
            before, tokens = tokens, block.module(tokens)
            for layer in (block.attention, block.ffn):
                if layer is not None:
                    before = layer.past(before, layer.module(layer.before(before)))
            close(before, tokens)
        close(network.answers(tokens), network(some_ids()))
        assert family_like(network.module) is bert and network.ends.pads


@torch.no_grad()
def test_projections_are_packed_where_they_are_observed() -> None:
    network = small_bert()
    for layer, block in zip(network.layers, network.read(), strict=True):
        attention, part = layer[0], block.attention
        assert attention is not None and part is not None
        x = torch.randn(2, TOKENS, 64)
        q, k, v = unpack(attention.projection(x), block.dims)
        assert torch.equal(pack(q, k, v), attention.projection(x))
        for found, weight, bias in ((q, part.wq, part.bq), (k, part.wk, part.bk), (v, part.wv, part.bv)):
            assert bias is not None
            close(found, torch.einsum("bnd,hqd->bnhq", x, weight) + bias)
        assert len(attention.readers) == 3


@torch.no_grad()
def test_what_is_removed_is_the_same_as_what_is_masked() -> None:
    network, masked = small_bert(), small_bert()
    heads, neurons = [3, 1], list(range(0, 128, 3))
    blocks = []
    for block in network.read():
        assert block.attention is not None and block.ffn is not None
        blocks.append(Block(block.attention.keep(heads), block.ffn.keep(neurons)))
    for block in masked.read():
        assert block.attention is not None and block.ffn is not None
        block.attention.wo[[0, 2]] = 0
        block.ffn.w2[:, [n for n in range(128) if n not in neurons]] = 0
    slim = network.build(blocks).eval()
    close(slim(some_ids()), masked(some_ids()))
    assert slim.dims == (BlockDims(2, 16, 16, len(neurons)),) * 2
    assert sum(p.numel() for p in slim.parameters()) < sum(p.numel() for p in network.parameters())


@torch.no_grad()
def test_a_removed_site_passes_its_tokens_on_without_its_norm() -> None:
    network = small_bert()
    (first, second), tokens = network.read(), network.first_tokens(some_ids())
    slim = network.build([Block(None, first.ffn), Block(second.attention, None)])
    ffn, attention = network.blocks[0].ffn, network.blocks[1].attention
    assert ffn is not None and attention is not None
    tokens = ffn.past(tokens, ffn.module(tokens))
    tokens = attention.past(tokens, attention.module(tokens))
    close(slim(some_ids()), network.answers(tokens))
    shorter = copy.deepcopy(network)
    shorter.keep_blocks([1])
    close(shorter(some_ids()), network.answers(network.blocks[1].module(network.first_tokens(some_ids()))))


@torch.no_grad()
def test_heads_of_low_rank_are_narrowed_exactly_with_padding() -> None:
    """Queries, keys, values and outputs of rank 8 of 16, biases included."""
    network = small_bert()

    def low(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        basis = torch.linalg.qr(torch.randn(weight.shape[0], weight.shape[1], 8))[0]
        return basis @ (basis.mT @ weight), (basis @ (basis.mT @ bias.unsqueeze(-1))).squeeze(-1)

    parts = list[Attention]()
    for block in network.read():
        a = block.attention
        assert a is not None and a.bq is not None and a.bk is not None and a.bv is not None
        (wq, bq), (wk, bk), (wv, bv) = low(a.wq, a.bq), low(a.wk, a.bk), low(a.wv, a.bv)
        parts.append(replace(a, wq=wq, bq=bq, wk=wk, bk=bk, wv=wv, bv=bv))
    ffns = [block.ffn for block in network.read()]
    low_rank = network.build([Block(a, f) for a, f in zip(parts, ffns, strict=True)]).eval()
    spectra = attention_spectra(parts)
    narrowed = narrow(parts, [(8, 8)] * 2, spectra=spectra)
    slim = network.build([Block(a, f) for a, f in zip(narrowed, ffns, strict=True)]).eval()
    assert {dims.head_widths for dims in slim.dims} == {(8, 8)}
    close(slim(some_ids()), low_rank(some_ids()))


@pytest.mark.parametrize("tokens", [5, 11, 16])
@torch.no_grad()
def test_costs_are_those_that_torch_counts_for_each_number_of_tokens(tokens: int) -> None:
    for network in (small_bert(tokens=tokens), halved(small_bert(tokens=tokens))):
        geometry, sites = network.geometry, sum(len(dims.sites) for dims in network.dims)
        assert geometry.params(network.dims) == sum(p.numel() for p in network.parameters())
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            network(some_ids()[:1, :tokens])
        norms = (1 + sites) * tokens * 64  # of which torch counts nothing
        assert geometry.macs(network.dims) == counter.get_total_flops() // 2 + norms
        assert geometry.with_classes(2).macs(network.dims) == geometry.macs(network.dims) - 2 * 64


@torch.no_grad()
def test_a_network_is_resized_for_weights_of_a_folder() -> None:
    slim = halved(small_bert())
    with without_values():
        again = Network(BertClassifier(**ARGS))
    again.resize(slim.dims, slim.state_dict())
    again.load_state_dict(slim.state_dict(), assign=True)
    close(again.eval()(some_ids()), slim(some_ids()))


@torch.no_grad()
def test_classifiers_are_made_and_cut() -> None:
    network, ids = small_bert(), some_ids()
    logits = network(ids)
    network.keep_classes([3, 1])
    close(network(ids), logits[:, [3, 1]])
    features = small_bert(num_classes=0)
    assert not features.ends.classifiers
    pooled = features(ids)
    features.make_classifiers(7)
    close(features(ids), features.classifiers[0](pooled))


def test_gradients_reach_what_blocks_compute_where_no_weight_has_any() -> None:
    network = small_bert().requires_grad_(False)
    seen: list[Tensor] = []
    hook = network.block_modules[0].register_forward_hook(lambda _, __, out: seen.append(out))
    logits = network(some_ids())
    hook.remove()
    (gradient,) = torch.autograd.grad(logits.sum(), seen)
    assert torch.equal((gradient != 0).any(-1), some_ids() != 0), "padding has none"


def test_axes_that_stay_are_refused_with_the_reason() -> None:
    network = small_bert()
    assert all(site.frozen.keys() == {"embed", "tokens"} for site in network.geometry.sites)
    with pytest.raises(UnsupportedModelError, match="LayerNorm after each sum"):
        network.with_embedding(torch.eye(64, dtype=torch.float64)[:32])
    with pytest.raises(UnsupportedModelError, match="padding fills the rest"):
        network.build([replace(network.read()[0], tokens=8), network.read()[1]])
    with pytest.raises(UnsupportedModelError, match="cannot be ranked"):
        network.token_scores(0, network.first_tokens(some_ids()))
