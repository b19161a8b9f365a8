import itertools
from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgevit.derivation.allocate.policy import POLICIES
from edgevit.derivation.allocate.widths import adaptive, adaptive_widths, capped_rates, head_rates, z_scores
from edgevit.network.anatomy import Attention, Block, Ffn


@given(st.integers(0, 2**31), st.floats(0.1, 0.85), st.integers(1, 4), st.booleans())
@settings(max_examples=100)
def test_exactly_the_asked_number_of_neurons_goes_whatever_the_ties(seed, rate, depth, ties):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(20, 60, (depth,), generator=generator).tolist()
    scores = [torch.rand(n, generator=generator, dtype=torch.float64) for n in sizes]
    if ties:
        scores = [(4 * s).round() for s in scores]
    kept = adaptive_widths(scores, minimum=1)(rate)
    total = sum(sizes)
    assert total - sum(kept) == min(ceil(rate * total - 1e-9 * total), total - depth)
    assert all(k >= 1 for k in kept)


def test_a_global_threshold_takes_from_the_quiet_block():
    assert adaptive_widths([torch.arange(10.0), torch.arange(10.0) + 100])(0.4) == [2, 10]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.6, 0.85])
@pytest.mark.parametrize("model", [(192, 12), (384, 12), (768, 12)], ids=["tiny", "small", "base"])
def test_exact_totals_on_deit_widths(model, rate):
    embed, depth = model
    scores = [torch.randn(4 * embed, generator=torch.Generator().manual_seed(i)) for i in range(depth)]
    total = 4 * embed * depth
    assert sum(adaptive_widths(scores, 8)(rate)) == total - ceil(rate * total - 1e-6)


def test_z_scores_are_those_of_section_h():
    z = z_scores(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert float(z.mean()) == pytest.approx(0, abs=1e-6) and float(z.square().sum()) == pytest.approx(1)
    assert torch.isfinite(z_scores(torch.full((5,), 2.0))).all()


@given(
    st.lists(st.tuples(st.floats(0.05, 5), st.floats(1, 9)), min_size=1, max_size=8),
    st.floats(0.05, 0.74),
)
@settings(max_examples=100)
def test_overflowing_rates_are_fixed_and_the_rest_make_up_for_them(pairs, mean):
    weights, sizes = [w for w, _ in pairs], [s for _, s in pairs]
    rates = capped_rates(weights, sizes, [0.75] * len(pairs), mean)
    assert all(0 <= r <= 0.75 + 1e-9 for r in rates)
    assert sum(r * s for r, s in zip(rates, sizes, strict=True)) / sum(sizes) == pytest.approx(mean)
    free = [(r, w) for r, w in zip(rates, weights, strict=True) if r < 0.75 - 1e-9]
    for (r1, w1), (r2, w2) in itertools.pairwise(free):
        assert r1 / w1 == pytest.approx(r2 / w2)


def test_rates_that_cannot_reach_the_mean_stay_at_their_caps():
    assert capped_rates([1.0, 2.0], [1.0, 1.0], [0.5, 0.5], 0.9) == [0.5, 0.5]


def test_head_rates_follow_equations_5_and_6():
    # Equal singular values: effective rank = number of them. r_QK = 2 * 4 = 8, r_VO = 2 * 2 = 4 in block 0.
    values = [(torch.ones(2, 4), torch.tensor([[1.0, 1, 0, 0]] * 2)), (torch.ones(2, 4), torch.ones(2, 4))]
    rates = head_rates(values, [100, 100], [(4, 4), (4, 4)], 1)(0.3)
    r = [12.0, 16.0]
    whole = [2 / sum(1 / x for x in r) * 0.3 / x for x in r]
    expected = [(2 * 4 / 12 * whole[0], 2 * 8 / 12 * whole[0]), (whole[1], whole[1])]
    for seen, wanted in zip(rates, expected, strict=True):
        assert seen == pytest.approx(wanted)


def test_larger_blocks_give_more_and_the_weighted_mean_holds():
    values = [(torch.ones(2, 4), torch.ones(2, 4))] * 2
    rates = head_rates(values, [1000, 4000], [(4, 4)] * 2, 1)(0.3)
    assert rates[1][0] > rates[0][0]
    assert (1000 * rates[0][0] + 4000 * rates[1][0]) / 5000 == pytest.approx(0.3)


# -- blocks of unlike stages: Vulcan, Eq. 29 and 30 -------------------------------------------------------------------


def block_of(stage, embed, neurons, vo_rank):
    """Two heads of 4 and 4, in which products of queries and keys have 4 singular values of 1, and others `vo_rank`."""
    rows, bias, shift = torch.eye(4, embed).repeat(2, 1, 1), torch.zeros(2, 4), torch.zeros(embed)
    some = rows * (torch.arange(4) < vo_rank)[:, None]
    ffn = Ffn(torch.zeros(neurons, embed), torch.zeros(neurons), torch.zeros(embed, neurons), shift)
    return Block(Attention(rows, bias, rows, bias, some, bias, some.mT, shift), ffn, stage=stage)


STAGES = [block_of(0, 4, 6, vo_rank=2), block_of(1, 8, 11, vo_rank=4)]
# From the least to the most in steps of 0.2 and 0.1.
ACTIVATIONS = [10 + torch.tensor([1.0, 0.0, 0.2, 0.8, 0.4, 0.6]), 0.1 * torch.arange(11).flip(0)]


@pytest.mark.parametrize(("rate", "kept"), [(0.2, [5, 8]), (0.4, [4, 6]), (0.8, [2, 1])])
def test_neurons_of_two_stages_follow_equation_29(rate, kept):
    """P_F is 58 and 195, of logarithms 4.06 and 5.27: in hundredths the scores of the first stage are 0, 4.9, 9.9,
    14.8, 19.7, 24.6, and those of the second 0, 1.9, 3.8, 5.7, 7.6, 9.5, 11.4, 13.3, 15.2, 17.1, 19.0.

    The least 4, 7 and 14 of all 17 go.
    """
    wishes = adaptive(STAGES, ACTIVATIONS, POLICIES["free"])(rate)
    assert [wish["ffn"] for wish in wishes] == kept


def test_heads_of_two_stages_follow_equation_30_and_what_overflows_is_solved_again():
    """P_M is 156 and 288, r = r_QK + r_VO is 8 + 4 and 8 + 8, so P / r is 13 and 18."""

    def widths(rate):
        return [(wish["qk"], wish["vo"]) for wish in adaptive(STAGES, ACTIVATIONS, POLICIES["free"])(rate)]

    first, second = (444 / (156 * 13 + 288 * 18) * each * 0.3 for each in (13, 18))
    rates = [(8 / 12 * first, 16 / 12 * first), (second, second)]
    for seen, of_block in zip(widths(0.3), rates, strict=True):
        assert seen == pytest.approx([4 * (1 - rate) for rate in of_block])
    # At 0.7 the second stage's rate is 0.776, which leaves less than 1 of 4; then the VO rate of the first is, too.
    rest = (2 * 444 * 0.7 - 2 * 288 * 0.75 - 156 * 0.75) / 156
    assert widths(0.7) == [pytest.approx((4 * (1 - rest), 1)), pytest.approx((1, 1))]
