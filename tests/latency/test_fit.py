"""From samples of stacks to costs: exact where there is no noise, close where there is, and never falling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgevit.derivation.allocate.policy import POLICIES
from edgevit.latency.fit import (
    StackFigure,
    StackSample,
    fit_costs,
    fit_fewer,
    fit_narrower,
    predicted_cost,
    stack_figures,
)
from edgevit.latency.grid import Grid
from edgevit.latency.stacks import Stack
from edgevit.network.anatomy import BlockDims

GRID = Grid.of([BlockDims(12, 64, 64, 3072)] * 12, POLICIES["fused"])
FIXED, TOGETHER = 0.4, -0.03


def attention(heads, width):
    return 0.1 + 0.0005 * heads * width + 0.01 * heads


def ffn(neurons):
    return 0.05 + 0.0002 * 64 * -(-neurons // 64)  # in steps of tiles


def cost(stack):
    both = TOGETHER if stack.heads and stack.neurons else 0
    sites = (attention(stack.heads, stack.width) if stack.heads else 0) + (ffn(stack.neurons) if stack.neurons else 0)
    return FIXED + stack.count * (sites + both)


def of_base(figures):
    return fit_costs(figures)[0]


def exact(stacks):
    return {stack: StackFigure(cost(stack), 0.01) for stack in stacks}


def test_without_noise_every_term_is_found():
    found = of_base(exact(GRID.coarse()))
    assert found.fixed == pytest.approx(FIXED, rel=1e-3) and found.together == pytest.approx(TOGETHER, rel=2e-3)
    for (heads, width), seen in found.attention.items():
        assert seen == pytest.approx(attention(heads, width), rel=1e-3)
    for neurons, seen in found.ffn.items():
        assert seen == pytest.approx(ffn(neurons), rel=1e-3)
    for stack in GRID.coarse():
        assert predicted_cost({0: found}, stack) == pytest.approx(cost(stack), rel=1e-3)


def test_stages_share_what_lies_outside_their_blocks_and_each_has_its_own_costs():
    grids = [Grid.of([BlockDims(4, 32, 32, 512, stage=s)] * n, POLICIES["fused"]) for s, n in enumerate((2, 6, 1))]
    stacks = [Stack.joined([grid.anchor for grid in grids]), *(stack for grid in grids for stack in grid.coarse())]

    def taken(stack):
        return FIXED + sum((1 + row.stage) * (cost(row) - FIXED) for row in stack.rows)

    found = fit_costs({stack: StackFigure(taken(stack), 0.01) for stack in stacks})
    assert {stage: costs.fixed for stage, costs in found.items()} == dict.fromkeys(range(3), pytest.approx(FIXED))
    for stage, costs in found.items():
        assert costs.together == pytest.approx((1 + stage) * TOGETHER, rel=0.01)
        for size, seen in costs.attention.items():
            assert seen == pytest.approx((1 + stage) * attention(*size), rel=1e-3)
    assert predicted_cost(found, stacks[0]) == pytest.approx(taken(stacks[0]), rel=1e-4)
    texts = [step.text for costs in found.values() for step in costs.steps]
    assert len(texts) == len({*texts}) and texts[0].endswith("in stage 0")


def test_what_no_stack_has_lies_on_the_line_between_its_neighbours():
    more = [GRID.attention(12, 24), GRID.attention(5, 64)]
    found = of_base(exact([*GRID.coarse(), *more]))
    assert set(found.attention) == {(h, w) for h in (2, 5, 7, 12) for w in (16, 24, 40, 64)}
    for size in ((2, 24), (7, 24), (5, 16), (5, 24)):
        assert found.attention[size] == pytest.approx(attention(*size), rel=0.02)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.001, 0.02))
def test_with_noise_costs_rise_with_size_and_the_base_is_as_good_as_the_noise(seed, noise):
    random = np.random.default_rng(seed)
    seen = {
        s: StackFigure(f.value * (1 + noise * random.standard_normal()), noise) for s, f in exact(GRID.coarse()).items()
    }
    found = of_base(seen)
    heads, widths = ({size[i] for size in found.attention} for i in (0, 1))
    grid = np.array([[found.attention[h, w] for w in sorted(widths)] for h in sorted(heads)])
    assert (np.diff(grid, axis=0) >= 0).all() and (np.diff(grid, axis=1) >= 0).all() and grid.min() > 0
    assert (np.diff([found.ffn[n] for n in sorted(found.ffn)]) >= 0).all()
    assert predicted_cost({0: found}, GRID.anchor) == pytest.approx(cost(GRID.anchor), rel=6 * noise + 0.01)
    assert found.together >= -grid.min() and found.fixed >= 0


def test_steps_that_noise_hides_are_named():
    clear = of_base({stack: StackFigure(f.value, 0.001) for stack, f in exact(GRID.coarse()).items()})
    assert all(step.is_significant for step in clear.steps) and len(clear.steps) == 3 * 2 + 2 * 3 + 5
    noisy = of_base({stack: StackFigure(f.value, 0.2) for stack, f in exact(GRID.coarse()).items()})
    unseen = [step.text for step in noisy.steps if not step.is_significant]
    assert "16 to 40 width of 2 heads" in unseen and len(unseen) < len(noisy.steps), "small steps hide first"
    hidden = [step.error for step in noisy.steps if step.is_hidden]
    assert hidden and min(hidden) > 0.05, "what cannot take a twentieth of a block is not missed"


def test_sizes_that_cost_nothing_are_told_apart_from_those_that_noise_hides():
    """A GPU that one image is far from filling takes as long for narrow kernels as for wide ones."""
    free = {stack: StackFigure(0.3 + stack.count * (0.1 * (stack.heads > 0) + 0.07 * (stack.neurons > 0)), 0.02)
            for stack in GRID.coarse()}  # fmt: skip
    random = np.random.default_rng(0)
    shaken = {stack: StackFigure(f.value * (1 + 0.02 * random.standard_normal()), 0.02) for stack, f in free.items()}
    for seen in (free, shaken):
        steps = of_base(seen).steps
        assert sum(step.is_free for step in steps) > len(steps) / 2 and not any(step.is_hidden for step in steps)
        assert max(step.error for step in steps) < 0.05
    unsure = of_base({stack: StackFigure(f.value, 0.3) for stack, f in free.items()}).steps
    assert sum(step.is_hidden for step in unsure) > len(unsure) / 2 > sum(step.is_free for step in unsure)


def samples(random, sessions=6, noise=0.01, disturbed=0.0):
    for session in range(sessions):
        slow = np.exp(0.3 * random.standard_normal())  # the whole machine, for all of a session
        for stack in GRID.coarse():
            shaken = 3.0 if random.random() < disturbed else 1.0
            yield StackSample(stack, str(session), cost(stack) * slow * shaken * (1 + noise * random.standard_normal()))


def test_the_speed_of_a_session_and_single_disturbed_runs_leave_the_ratios_alone():
    seen = stack_figures(list(samples(np.random.default_rng(1), disturbed=0.1)), GRID.anchor)
    ratios = [seen[s].value / seen[GRID.anchor].value / (cost(s) / cost(GRID.anchor)) for s in seen]
    assert max(abs(np.log(ratios))) < 0.03
    assert all(0.002 <= f.error < 0.02 for s, f in seen.items() if s != GRID.anchor)


def test_a_table_says_of_the_base_what_that_was_measured_to_take_where_its_blocks_are_no_sum_of_sites():
    """Weights of small stacks stay in a cache, and those of the base do not: a model is judged by its ratio to that."""
    random = np.random.default_rng(3)
    taken = {s: cost(s) * (1.08 if s == GRID.anchor else 1.0) for s in GRID.coarse()}
    noise = 1 + 0.002 * random.standard_normal((5, len(taken)))
    seen = [
        StackSample(s, str(i), ms * x)
        for i, row in enumerate(noise)
        for x, (s, ms) in zip(row, taken.items(), strict=True)
    ]
    found = of_base(stack_figures(seen, GRID.anchor, taken[GRID.anchor]))
    assert predicted_cost({0: found}, GRID.anchor) == pytest.approx(taken[GRID.anchor], rel=0.005)


def test_a_stack_that_only_a_later_session_has_is_set_against_what_both_have():
    first = [StackSample(s, "a", cost(s)) for s in GRID.coarse()]
    late = GRID.ffn(1000)
    second = [StackSample(s, "b", 2 * cost(s)) for s in (GRID.anchor, late)]
    seen = stack_figures([*first, *second, *second[:1]], GRID.anchor)
    assert seen[late].value / seen[GRID.anchor].value == pytest.approx(cost(late) / cost(GRID.anchor), rel=1e-3)


def alternately(random, rounds, noise):
    """The base and five stacks in a process, drawn anew in each round; each process has its own speed."""
    others = GRID.coarse()[1:]
    for number in range(rounds):
        order = random.permutation(len(others))
        for first in range(0, len(order), 5):
            slow = np.exp(0.1 * random.standard_normal())
            for stack in (GRID.anchor, *(others[i] for i in order[first : first + 5])):
                value = cost(stack) * slow * np.exp(noise * random.standard_normal())
                yield StackSample(stack, f"{number} {first}", value)


@pytest.mark.quick("3-samples", "8-alternately")
@pytest.mark.parametrize("made", [alternately, samples])
@pytest.mark.parametrize("rounds", [3, 8])
def test_figures_are_as_sure_as_they_say(made, rounds):
    """The median of few deviations, of which many are none as medians go through points, told half of it."""
    said, true = [], []
    for seed in range(20):
        seen = stack_figures(list(made(np.random.default_rng(seed), rounds, 0.02)), GRID.anchor, cost(GRID.anchor))
        said.append(np.median([figure.error for figure in seen.values()]))
        true.append(np.mean([np.log(figure.value / cost(stack)) ** 2 for stack, figure in seen.items()]))
    assert np.mean(said) == pytest.approx(np.sqrt(np.mean(true)), rel=0.25)


def test_where_each_stack_was_run_once_it_is_set_against_the_base_in_its_own_process():
    seen = stack_figures(list(alternately(np.random.default_rng(0), 1, 0.0)), GRID.anchor, cost(GRID.anchor))
    assert all(figure.value == pytest.approx(cost(stack), rel=1e-6) for stack, figure in seen.items())


# -- narrower embeddings

EMBED = 768
WIDE_GRID = Grid.of([BlockDims(12, 64, 64, 3072)] * 12, POLICIES["fused"], EMBED)


def width_cost(stack, kernel=0.02):
    """A kernel's own time, and products that shrink with the embedding; scores do not."""
    share = (stack.embed or EMBED) / EMBED
    attention = 4 * kernel + (0.0004 * share + 0.0001) * stack.heads * stack.width if stack.heads else 0
    ffn = 3 * kernel + 0.0002 * share * stack.neurons if stack.neurons else 0
    together = -0.5 * kernel if stack.heads and stack.neurons else 0
    return 0.1 + 0.3 * share + stack.count * (attention + ffn + together)


def width_figures(stacks, random=None, noise=0.005, **how):
    shaken = {s: 1.0 if random is None else 1 + noise * random.standard_normal() for s in stacks}
    return {s: StackFigure(width_cost(s, **how) * shaken[s], noise) for s in stacks}


def test_a_few_stacks_tell_what_every_size_takes():
    base = of_base(width_figures(WIDE_GRID.coarse()))
    found = fit_narrower(base, {embed: width_figures(WIDE_GRID.at_width(embed)) for embed in WIDE_GRID.narrower})
    assert list(found) == list(WIDE_GRID.narrower) == [384, 192, 128]
    for embed, costs in found.items():
        assert costs.attention.keys() == base.attention.keys() and costs.ffn.keys() == base.ffn.keys()
        for stack in WIDE_GRID.coarse()[1:]:
            there = Stack(stack.count, stack.heads, stack.width, stack.neurons, embed)
            assert predicted_cost({0: costs}, stack) == pytest.approx(width_cost(there), rel=2e-3), there.label


def test_sizes_that_the_base_does_not_list_are_passed_over():
    base, candidate = of_base(width_figures(WIDE_GRID.coarse())), WIDE_GRID.at_width(384)
    odd = [Stack(6, 5, 64, 0, 384), Stack(6, 0, 0, 1000, 384)]
    assert fit_narrower(base, {384: width_figures([*candidate, *odd])}) == fit_narrower(
        base, {384: width_figures(candidate)}
    )
    assert fit_narrower(base, {}) == {}


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.001, 0.05), kernel=st.sampled_from([0.0, 0.02, 0.5]))
def test_with_noise_no_cost_falls_with_size_or_with_the_embedding(seed, noise, kernel):
    random = np.random.default_rng(seed)
    base = of_base(width_figures(WIDE_GRID.coarse(), random, noise, kernel=kernel))
    found = fit_narrower(
        base, {e: width_figures(WIDE_GRID.at_width(e), random, noise, kernel=kernel) for e in WIDE_GRID.narrower}
    )
    candidates = [base, *found.values()]
    assert all(np.diff([costs.fixed for costs in candidates]) <= 0) and candidates[-1].fixed >= 0
    grids = np.array([list(costs.attention.values()) for costs in candidates])  # [candidates, sizes]
    thin = np.array([[costs.ffn[n] for n in sorted(costs.ffn)] for costs in candidates])
    assert (np.diff(grids, axis=0) <= 0).all() and (np.diff(thin, axis=0) <= 0).all() and grids.min() > 0
    assert (np.diff(thin, axis=1) >= 0).all() and thin.min() > 0
    for costs in candidates:
        by_size = np.array([[costs.attention[h, w] for w in (16, 40, 64)] for h in (2, 7, 12)])
        assert (np.diff(by_size, axis=0) >= 0).all() and (np.diff(by_size, axis=1) >= 0).all()
        assert costs.together >= -by_size.min()


# -- fewer tokens

TOKENS, KERNEL, RANKING = 197, 0.02, 0.03
TOKEN_GRID = Grid.of([BlockDims(12, 64, 64, 3072)] * 12, POLICIES["fused"], counts=(64, 128, 192))


def token_attention(heads, width, tokens):
    """Kernels, projections, and scores, which fall with the square."""
    share = tokens / TOKENS
    return 4 * KERNEL + (0.0004 * share + 0.0001 * share**2) * heads * width if heads else 0


def token_ffn(neurons, tokens):
    return 3 * KERNEL + 0.0002 * neurons * tokens / TOKENS if neurons else 0


def token_cost(stack):
    tokens, total = TOKENS, 0.4
    if stack.cut is not None:
        total += token_attention(stack.cut.heads, stack.cut.width, TOKENS) + RANKING
        tokens = stack.cut.tokens
    return total + stack.count * (token_attention(stack.heads, stack.width, tokens) + token_ffn(stack.neurons, tokens))


def token_figures(stacks, random=None, noise=0.002):
    shaken = [1.0 if random is None else 1 + noise * random.standard_normal() for _ in stacks]
    return {s: StackFigure(token_cost(s) * shake, noise) for s, shake in zip(stacks, shaken, strict=True)}


def fitted(random=None):
    base = of_base(token_figures(TOKEN_GRID.coarse(), random))
    return base, fit_fewer(base, {n: token_figures(TOKEN_GRID.behind_cuts(n), random) for n in TOKEN_GRID.fewer})


def test_five_stacks_tell_what_every_size_takes():
    base, found = fitted()
    assert [one.tokens for one in found] == [192, 128, 64]
    for one in found:
        assert one.cut == pytest.approx(RANKING, rel=0.01)
        for (heads, width), with_all in base.attention.items():
            taken = one.attention.start + one.attention.slope * with_all
            assert taken == pytest.approx(token_attention(heads, width, one.tokens), rel=1e-3)
        for neurons, with_all in base.ffn.items():
            assert one.ffn.start + one.ffn.slope * with_all == pytest.approx(token_ffn(neurons, one.tokens), rel=1e-3)


def test_with_noise_nothing_is_less_than_nothing():
    for seed in range(5):
        _, found = fitted(np.random.default_rng(seed))
        for one in found:
            assert min(one.cut, one.attention.start, one.ffn.start) >= 0
            assert one.attention.slope == pytest.approx(
                (4 * one.tokens / TOKENS + (one.tokens / TOKENS) ** 2) / 5, rel=0.15
            )
            assert one.ffn.slope == pytest.approx(one.tokens / TOKENS, rel=0.1)


def test_five_stacks_for_each_of_three_numbers_at_the_most():
    assert TOKEN_GRID.fewer == (192, 128, 64)
    assert Grid.of([TOKEN_GRID.most] * 12, POLICIES["fused"], counts=range(64, 577, 64)).fewer == (576, 320, 64)
    for n in TOKEN_GRID.fewer:
        stacks = TOKEN_GRID.behind_cuts(n)
        assert len(stacks) == 5 and {s.cut.tokens for s in stacks} == {n} and TOKEN_GRID.within(stacks) == []
        assert [s.count for s in stacks] == [0, 6, 6, 6, 6]
    of_two = Grid.of([TOKEN_GRID.most] * 2, POLICIES["fused"], counts=(64,))
    assert max(len(s.blocks) for s in of_two.behind_cuts(64)) == 2, "a base of two blocks has no more"
