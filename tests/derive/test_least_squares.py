import pytest
import torch

from edgevit.derive.least_squares import refit, solve
from edgevit.errors import DataError
from edgevit.models.families import vit


def hidden(tokens, width, rank=None):
    """Neurons that are correlated and have means, as real ones do."""
    generator = torch.Generator().manual_seed(1)
    rank = rank or width
    mix = torch.randn(rank, width, generator=generator, dtype=torch.float64)
    shift = torch.rand(width, generator=generator, dtype=torch.float64)
    return torch.randn(tokens, rank, generator=generator, dtype=torch.float64) @ mix / rank**0.5 + shift


@pytest.fixture
def block(small_vit):
    return vit.read(small_vit().double())[0]


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
    with pytest.raises(DataError, match=r"2 neurons .* singular \(ridge 0\); raise nuwa.ridge"):
        solve(gram, torch.ones(2, 1, dtype=torch.float64), 0.0)
