"""PIAD's rivals: what each drops, by which random numbers, and what it does to what stays."""

import pytest
import torch

from edgevit.derivation.methods.skd.dropout import RATES, Rival, WeightedMasks, rival_of, stay
from edgevit.derivation.methods.skd.masks import masking
from edgevit.network.anatomy import BlockDims, unpack

CPU = torch.device("cpu")
WIDE = [BlockDims(2, 400, 300, 2000), BlockDims(2, 8, 24, 4)] * 3


def drawn(kind, rate, whole=WIDE, seed=0):
    return Rival(kind, rate).draw(whole, torch.Generator().manual_seed(seed), CPU)


def dims_of(network):
    return list(network.dims)


def test_piad_has_no_rival_and_the_others_have_a_rate_of_their_own():
    assert rival_of("piad", 0.0) is None
    assert {kind: rival_of(kind, 0.0).rate for kind in RATES} == RATES
    assert rival_of("layer", 0.5) == Rival("layer", 0.5) and rival_of("none", 0.0) == Rival("none", 0.0)


def test_channels_are_dropped_with_one_probability_and_what_stays_makes_up_for_them():
    masks, share = drawn("channel", 0.25)
    assert share == pytest.approx(0.75, abs=0.02)
    for dims, (packed, neurons) in zip(WIDE, masks.blocks, strict=True):
        queries, keys, values = unpack(packed, dims)
        assert (keys == 1).all() and torch.equal(queries[0], queries[1]) and torch.equal(values[0], values[1])
        both = min(dims.qk, dims.vo)
        assert torch.equal(queries[0, :both], values[0, :both]), "a width goes from queries and values at once"
        assert {round(v, 4) for v in torch.cat([queries[0], values[0], neurons]).tolist()} <= {0.0, round(4 / 3, 4)}
    assert (masks.blocks[0][1] == 0).float().mean() == pytest.approx(0.25, abs=0.03)


def test_a_layer_goes_whole_and_nothing_is_rescaled():
    counts = []
    for seed in range(200):
        masks, share = drawn("layer", 0.2, [BlockDims(2, 8, 8, 16)] * 4, seed)
        for packed, neurons in masks.blocks:
            queries, keys, values = unpack(packed, BlockDims(2, 8, 8, 16))
            assert (keys == 1).all() and set(torch.cat([queries, values]).flatten().tolist()) == {float(neurons[0])}
            assert set(neurons.tolist()) in ({0.0}, {1.0})
        counts.append(share)
    assert sum(counts) / 200 == pytest.approx(0.8, abs=0.04) and set(counts) <= {0, 0.25, 0.5, 0.75, 1}


def test_a_dropped_block_adds_its_output_biases_alone(small_vit):
    network, x = small_vit().eval(), torch.randn(2, 17, 64)
    masks = next(m for m, share in (drawn("layer", 0.5, dims_of(network), seed) for seed in range(50)) if share == 0)
    with torch.no_grad():
        for block in network.module.blocks:
            block.attn.proj.bias.fill_(0.5)
            block.mlp.fc2.bias.fill_(0.25)
            with masking(network, lambda: masks):
                torch.testing.assert_close(block(x), x + 0.75)


def test_without_dropout_nothing_is_masked():
    assert drawn("none", 0.0) == (None, 1.0)


def test_a_fixed_number_of_channels_is_drawn_for_each_image_by_its_activations():
    dims = BlockDims(2, 6, 10, 20)
    masks, share = drawn("weighted", 0.3, [dims])
    assert isinstance(masks, WeightedMasks) and share == (7 + 14) / 30
    neurons = torch.randn(3, 5, 20)
    seen = masks.of_module(neurons, 0, 1)
    stays = (seen != 0).all(1)  # [B, e]
    assert torch.equal(stays, (seen != 0).any(1)) and (stays.sum(1) == 14).all()
    scores = neurons.abs().mean(1)
    factor = scores.sum(1) / (scores * stays).sum(1)
    torch.testing.assert_close(seen, neurons * stays[:, None] * factor[:, None, None])
    for image in range(3):  # however the batch is shared
        torch.testing.assert_close(masks.of_module(neurons[image : image + 1], 0, 1)[0], seen[image])

    packed = torch.randn(3, 5, 2 * (6 + 6 + 10))
    queries, keys, values = unpack(masks.of_module(packed, 0, 0) / packed, dims)
    assert (keys == 1).all()
    widths = values[:, 0, 0] != 0
    assert (widths.sum(1) == 7).all() and torch.equal(widths[:, :6], queries[:, 0, 0] != 0)
    assert torch.equal(values != 0, widths[:, None, None].expand_as(values)), "of all heads and tokens"


def test_a_channel_is_drawn_the_oftener_the_stronger_it_is():
    strong = torch.ones(1, 2, 20)
    strong[..., :10] = 4.0
    often = torch.zeros(20)
    for seed in range(300):
        masks, _ = drawn("weighted", 0.5, [BlockDims(1, 1, 1, 20)], seed)
        often += (masks.of_module(strong, 0, 1) != 0)[0, 0]
    assert often.sum() == 3000 and often[:10].mean() > 210 and often[10:].mean() < 90 and often.min() > 0


def test_channels_that_are_silent_or_all_gone_are_no_numbers_out_of_range():
    masks, _ = drawn("weighted", 0.9, [BlockDims(1, 0, 0, 4)])
    assert masks.of_module(torch.zeros(2, 3, 4), 0, 1).isfinite().all()
    assert (stay(0, 0.5), stay(1, 0.9), stay(4, 0.9), stay(10, 0.2)) == (0, 1, 1, 8)


@pytest.mark.parametrize("kind", RATES)
def test_the_draw_is_that_of_the_generator(kind):
    def told(seed):
        masks, share = drawn(kind, 0.4, seed=seed)
        return share, (masks.draws if kind == "weighted" else masks.blocks)

    (first, a), (again, b), (_, c) = told(1), told(1), told(2)
    assert first == again
    assert all(torch.equal(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True))
    assert not all(torch.equal(x, y) for one, other in zip(a, c, strict=True) for x, y in zip(one, other, strict=True))
