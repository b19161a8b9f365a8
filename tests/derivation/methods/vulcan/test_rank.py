import pytest
import torch

from edgevit.derivation.methods.vulcan.rank import tail_sums


def test_tail_sums_are_those_of_a_full_svd_over_mixed_widths():
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(3, 6, 9, generator=generator), torch.randn(2, 4, 7, generator=generator)]
    kept = [2, 3]
    nuclear, square = tail_sums(matrices, kept)
    tails = [torch.linalg.svdvals(m)[:, k:] for m, k in zip(matrices, kept, strict=True)]
    torch.testing.assert_close(nuclear, sum(t.sum() for t in tails), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(square, sum(t.square().sum() for t in tails), rtol=1e-5, atol=1e-6)


def test_gradient_is_that_of_finite_differences():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 5, 8, dtype=torch.double, generator=generator, requires_grad=True)
    b = torch.randn(1, 5, 7, dtype=torch.double, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, y: tail_sums([x, y], [2, 4]), (a, b))


@pytest.mark.parametrize("matrix", ["zero", "rank one", "equal values"])
def test_zero_and_equal_singular_values_give_finite_gradients(matrix):
    weights = {
        "zero": torch.zeros(1, 4, 6),
        "rank one": torch.ones(1, 4, 6),
        "equal values": torch.eye(4, 6).unsqueeze(0),
    }[matrix].requires_grad_()
    nuclear, square = tail_sums([weights], [1])
    (nuclear + square).backward()
    assert torch.isfinite(weights.grad).all()
    if matrix != "equal values":
        assert float(nuclear.detach()) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("share", "error"), [(1e-5, 1e-5), (1e-6, 1e-3), (0, 0)])
def test_the_gradient_of_a_small_tail_is_its_own_and_that_of_none_is_zero(share, error):
    """In single precision: a matrix without a tail has one of rounding errors."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(2, n, 32, generator=generator, dtype=torch.double))[0] for n in (32, 96))
    values = torch.linspace(1, 0.5, 32).double()
    values[16:] = share
    weights = (left @ torch.diag(values) @ right.mT).float().requires_grad_()
    tail_sums([weights], [16])[0].backward()
    u, _, v = torch.linalg.svd(weights.detach().double(), full_matrices=False)
    expected = u[..., 16:] @ v[:, 16:] if share else torch.zeros_like(weights)
    assert float((weights.grad - expected).norm() / 32**0.5) <= error  # of 2 times 16 directions


@pytest.mark.slow
def test_descent_on_the_tail_reaches_exact_low_rank_in_single_precision():
    weights = torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for lr, steps in ((1e-2, 400), (1e-3, 50)):
        optimiser = torch.optim.SGD([weights], lr=lr)
        for _ in range(steps):
            optimiser.zero_grad()
            tail_sums([weights], [3])[0].backward()
            optimiser.step()
    tail = torch.linalg.svdvals(weights.detach().double())[:, 3:]
    assert float(tail.max()) < 1.1e-3  # one step of the sub-gradient, not the 1e-2 where fp32 Gram matrices stop
