from dataclasses import replace

import pytest
import torch

from edgevit.derivation.solve.least_squares import (
    SINGLE_RIDGE,
    Regression,
    refit,
    refittable_mean,
    removal_in_order,
    removal_order,
    solve_ridge,
)
from edgevit.errors import DataError


def hidden(tokens, width, rank=None):
    """Neurons that are correlated and have means, as real ones do."""
    generator = torch.Generator().manual_seed(1)
    rank = rank or width
    mix = torch.randn(rank, width, generator=generator, dtype=torch.float64)
    shift = torch.rand(width, generator=generator, dtype=torch.float64)
    return torch.randn(tokens, rank, generator=generator, dtype=torch.float64) @ mix / rank**0.5 + shift


@pytest.fixture
def block(small_vit):
    return small_vit().double().read()[0].ffn


def moments(h):
    return h.mT @ h / len(h), h.mean(0)


def error(slim, kept, block, h):
    before, after = h @ block.w2.mT + block.b2, h[:, kept] @ slim.w2.mT + slim.b2
    return float((before - after).square().sum(1).mean().detach())


KEPT = torch.arange(0, 256, 3)


def test_the_fit_is_that_of_the_pseudo_inverse(block):
    h = hidden(2000, 256)
    slim = refit(block, KEPT, *moments(h), "least_squares", ridge=1e-12)
    design = torch.cat([h[:, KEPT], torch.ones(len(h), 1, dtype=h.dtype)], dim=1)
    expected = torch.linalg.pinv(design) @ (h @ block.w2.mT + block.b2)
    torch.testing.assert_close(slim.w2, expected[:-1].mT, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(slim.b2, expected[-1], rtol=1e-6, atol=1e-8)
    assert torch.equal(slim.w1, block.w1[KEPT]) and torch.equal(slim.b1, block.b1[KEPT])


def test_compensation_is_optimal_brain_surgeons(block):
    h = hidden(2000, 256)
    second, mean = moments(h)
    slim = refit(block, KEPT, second, mean, "compensate", ridge=1e-6)
    lift = 1e-6 * second.diagonal()[KEPT].mean()
    hessian = second - torch.outer(mean, mean) + lift * torch.eye(256)
    gone = torch.tensor([i for i in range(256) if i % 3])
    inverse = torch.linalg.inv(hessian)
    update = -inverse[:, gone] @ torch.linalg.solve(inverse[gone][:, gone], block.w2[:, gone].mT)
    torch.testing.assert_close(slim.w2, (block.w2.mT + update).mT[:, KEPT], rtol=1e-6, atol=1e-9)


def test_refitting_beats_removal_and_removal_changes_no_weight(block):
    h = hidden(2000, 256, rank=95)
    fitted = {how: refit(block, KEPT, *moments(h), how) for how in ("least_squares", "compensate", "remove")}
    errors = {how: error(slim, KEPT, block, h) for how, slim in fitted.items()}
    assert errors["least_squares"] < 0.5 * errors["remove"] and errors["compensate"] < 0.5 * errors["remove"]
    assert torch.equal(fitted["remove"].w2, block.w2[:, KEPT]) and torch.equal(fitted["remove"].b2, block.b2)


@pytest.mark.parametrize("how", ["least_squares", "compensate"])
@pytest.mark.parametrize("tokens", [1, 20, 300])
def test_fewer_tokens_than_neurons_and_dead_ones_give_finite_weights_that_fit(block, how, tokens):
    h = hidden(tokens, 256)
    h[:, ::2] = 0  # neurons that never fire
    slim = refit(block, KEPT, *moments(h), how)
    assert torch.isfinite(slim.w2).all() and torch.isfinite(slim.b2).all()
    assert error(slim, KEPT, block, h) <= error(refit(block, KEPT, *moments(h), "remove"), KEPT, block, h)


def test_keeping_every_neuron_changes_nothing(block):
    h = hidden(2000, 256)
    slim = refit(block, torch.arange(256), *moments(h), "compensate")
    torch.testing.assert_close(slim.w2, block.w2, rtol=1e-9, atol=1e-12)


def test_a_singular_system_says_what_to_raise():
    gram = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    with pytest.raises(DataError, match=r"2 neurons .* singular \(ridge 0\); raise the ridge"):
        solve_ridge(gram, torch.ones(2, 1, dtype=torch.float64), 0.0)


def regression(x, y, weight=None, batch=500):
    sums = Regression(x.shape[1], y.shape[1], x.device)
    for start in range(0, len(x), batch):
        part = slice(start, start + batch)
        sums.add(x[part], y[part], None if weight is None else weight[part])
    return sums


def samples(count=2000, inputs=40, outputs=7):
    h = hidden(count, inputs + 30)
    noise = torch.randn(count, outputs, generator=torch.Generator().manual_seed(2), dtype=h.dtype)
    return h[:, :inputs], h @ torch.linspace(-1, 2, (inputs + 30) * outputs).double().view(-1, outputs) + noise


def solved_outright(x, y, weight, lift, prior, bias):
    """The same problem as one tall system of equations."""
    root = (weight / weight.sum()).sqrt().unsqueeze(1)
    ones = torch.ones(len(x), int(bias), dtype=x.dtype)
    design = torch.cat([root * torch.cat([x, ones], 1), lift**0.5 * torch.eye(x.shape[1], x.shape[1] + bias).double()])
    found = torch.linalg.lstsq(design, torch.cat([root * y, lift**0.5 * prior.mT])).solution
    return found[: x.shape[1]].mT, found[-1] if bias else None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("drawn", [True, False])
def test_a_regression_is_that_of_all_samples_at_once(bias, weighted, drawn):
    x, y = samples()
    weight = torch.rand(len(x), generator=torch.Generator().manual_seed(3)).double() if weighted else None
    prior = torch.randn(7, 40, generator=torch.Generator().manual_seed(4)).double()
    sums = regression(x, y, weight)
    found = sums.solve(1e-2, prior=prior if drawn else None, bias=bias)
    given = torch.ones(len(x)).double() if weight is None else weight
    square = (given @ x.square() / given.sum()).mean()
    expected = solved_outright(x, y, given, 1e-2 * square, prior if drawn else torch.zeros_like(prior), bias)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-8, atol=1e-9)
    assert (found[1] is None) == (not bias)
    if bias:
        torch.testing.assert_close(found[1], expected[1], rtol=1e-8, atol=1e-9)


def test_a_regression_agrees_with_the_refit_from_all_moments(block):
    h = hidden(2000, 256)
    y = h @ block.w2.mT + block.b2
    for how, prior in (("least_squares", None), ("compensate", block.w2[:, KEPT])):
        slim = refit(block, KEPT, *moments(h), how, ridge=1e-3)
        weight, bias = regression(h[:, KEPT], y).solve(1e-3, prior=prior)
        torch.testing.assert_close(slim.w2, weight, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(slim.b2, bias, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("bias", [True, False])
def test_a_mean_a_thousand_times_the_spread_costs_no_precision(bias):
    x, y = samples()
    far, y = (x + 1000).float(), y.float()
    sums, exact = regression(far, y), regression(far.double(), y.double())
    found, best = sums.solve(1e-12, bias=bias), exact.solve(1e-12, bias=bias)
    torch.testing.assert_close(found[0], best[0], rtol=1e-3, atol=1e-4)

    def error(weight, constant=0):
        return float((y.double() - far.double() @ weight.mT - (0 if constant is None else constant)).square().sum())

    assert error(*found) == pytest.approx(error(*best), rel=1e-6)


def test_the_sums_of_several_processes_make_one_regression():
    x, y = samples()
    x[1000:] += 5  # so that the shares' own means differ
    shares = [regression(x[:700], y[:700]), regression(x[700:], y[700:])]
    taken = []
    for sums in shares:
        taken.append([])
        sums.map(lambda total: taken[-1].append(total) or total)
    means = iter([(a + b) / 2 for a, b in zip(*taken, strict=True)])
    merged, whole = shares[0].map(lambda _: next(means)), regression(x, y)
    for found, expected in zip(merged.solve(), whole.solve(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def grouped(x, y, tokens=10):
    """A regression of images of ten like tokens each, in two groups."""
    sums = Regression(x.shape[1], y.shape[1], x.device)
    groups = torch.arange(len(x) // tokens).repeat_interleave(tokens) % 2
    sums.add(x, y, groups=groups)
    return sums


def test_a_ridge_is_as_strong_as_few_images_require():
    """Tokens of an image are nearly copies: a map of 40 inputs is determined by 400 images, and not by 24."""
    generator = torch.Generator().manual_seed(5)
    prior = torch.randn(7, 40, generator=generator).double()
    true = prior + 0.3 * torch.randn(7, 40, generator=generator).double()
    ridges, errors = {}, {}
    for images in (400, 24):
        x = torch.randn(images, 40, generator=generator).double().repeat_interleave(10, 0)
        x += 0.01 * torch.randn(x.shape, generator=generator).double()
        sums = grouped(
            x, x @ true.mT + 4 * torch.randn(images, 7, generator=generator).double().repeat_interleave(10, 0)
        )
        ridges[images] = sums.chosen_ridge(prior=prior)
        solved = (sums.solve(ridge, prior=prior)[0] for ridge in (None, 1e-4))
        errors[images] = [float((weight - true).square().mean()) for weight in solved]
    assert ridges[400] < ridges[24] and errors[400][0] <= 1.05 * errors[400][1]
    assert errors[24][0] < 0.5 * errors[24][1], "the weakest ridge fits the noise of few images"


def test_where_the_prior_fits_other_images_best_the_step_is_left_out():
    x, _ = samples(count=400)
    prior, moved = (torch.randn(7, 40, generator=torch.Generator().manual_seed(i)).double() for i in range(2))
    signs = (torch.arange(40) % 2 * 2.0 - 1).repeat_interleave(10).double()  # what one group says the other denies
    weight, _ = grouped(x, x @ prior.mT + signs[:, None] * (x @ moved.mT)).solve(prior=prior)
    assert torch.equal(weight, prior)


def test_all_samples_in_one_group_take_the_single_ridge():
    x, y = samples()
    weight, _ = regression(x, y).solve()
    torch.testing.assert_close(weight, regression(x, y).solve(SINGLE_RIDGE)[0])


def test_a_regression_on_nothing_is_refused():
    with pytest.raises(DataError, match="no samples"):
        Regression(3, 2, torch.device("cpu")).solve()


@pytest.mark.parametrize("share", [1, 4, 32])
def test_the_order_of_removal_is_that_of_optimal_brain_surgeon_written_out(block, share):
    h = hidden(2000, 256)
    second, mean = moments(h)
    removal = removal_order(block.w2, second, mean, ridge=1e-3, share=share)
    hessian = second - torch.outer(mean, mean) + 1e-3 * second.diagonal().mean() * torch.eye(256)
    w, alive, order = block.w2.detach(), torch.arange(256), []
    while len(alive):
        inverse = torch.linalg.inv(hessian[alive][:, alive])
        saliency = w.square().sum(0) / inverse.diagonal()
        ranked = saliency.argsort()[: max(len(alive) // share, 1)]
        order.append(alive[ranked])
        alive = torch.tensor(sorted({*alive.tolist()} - {*order[-1].tolist()}), dtype=torch.int64)
        right = (hessian[alive] @ block.w2.detach().mT).mT
        w = right @ torch.linalg.inv(hessian[alive][:, alive])
    assert torch.equal(removal.order, torch.cat(order))
    # Group by group, the cost is what that order of removal costs.
    by_order = removal_in_order(removal.order, block.w2, second, mean, ridge=1e-3)
    ends = torch.tensor([len(o) for o in order]).cumsum(0) - 1
    torch.testing.assert_close(removal.cost.cumsum(0)[ends], by_order.cost.cumsum(0)[ends], rtol=1e-7, atol=1e-9)


def test_singular_moments_say_what_to_raise_before_neurons_are_ordered(block):
    second = torch.zeros(256, 256, dtype=torch.float64)
    with pytest.raises(DataError, match=r"256 neurons .* raise the ridge"):
        removal_order(block.w2, second - torch.eye(256), torch.zeros(256).double(), ridge=0)


def test_without_an_output_bias_a_constant_neuron_is_not_free(block):
    h = torch.randn(4000, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h[:, 3] = 20.0
    block = replace(block, w2=block.w2[:5, :8].detach(), b2=None)
    second, mean = h.mT @ h / len(h), h.mean(0)
    removal = removal_order(block.w2, second, refittable_mean(block, mean), share=1000)
    first = int(removal.order[0])
    costs = []
    for gone in range(8):
        kept = torch.tensor([i for i in range(8) if i != gone])
        solved = torch.linalg.lstsq(h[:, kept], h @ block.w2.double().mT).solution
        costs.append(float((h[:, kept] @ solved - h @ block.w2.double().mT).square().sum(1).mean()))
    assert first == costs.index(min(costs)) != 3
    assert float(removal.cost[0]) == pytest.approx(min(costs), rel=1e-2)
