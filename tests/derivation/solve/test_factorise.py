import pytest
import torch

from edgevit.derivation.solve.factorise import decompose, effective_rank, factors, one_thread, singular_values


def random_pairs(heads=3, width=6, left=11, right=10, pairs=2):
    generator = torch.Generator().manual_seed(0)
    a = [torch.randn(heads, width, left, generator=generator) for _ in range(pairs)]
    b = [torch.randn(heads, width, right, generator=generator) for _ in range(pairs)]
    return a, b


def best(product, rank):
    u, s, v = torch.linalg.svd(product.double(), full_matrices=False)
    return (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_factors_are_the_best_approximation_and_balanced(rank):
    a, b = random_pairs()
    for one_a, one_b, spectrum in zip(a, b, decompose(a, b), strict=True):
        new_a, new_b = factors(spectrum, one_a, one_b, rank)
        product = one_a.mT @ one_b
        torch.testing.assert_close((new_a.mT @ new_b).double(), best(product, rank), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(new_a.norm(dim=-1), new_b.norm(dim=-1), rtol=1e-5, atol=1e-6)
        assert spectrum.values.dtype == torch.float64


def test_singular_values_are_those_of_the_whole_product():
    a, b = random_pairs()
    expected = torch.linalg.svdvals(torch.stack([(x.mT @ y).double() for x, y in zip(a, b, strict=True)]))
    torch.testing.assert_close(singular_values(a, b), expected[..., :6], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["left deficient", "right deficient", "zero"])
def test_rank_deficient_matrices_lose_nothing_and_give_no_nan(kind):
    a, b = random_pairs(pairs=1)
    if kind == "left deficient":
        a[0][:, 4:] = a[0][:, :2]
    elif kind == "right deficient":
        b[0][:, 1:] = b[0][:, :1]
    else:
        a[0].zero_()
    (spectrum,) = decompose(a, b)
    new_a, new_b = factors(spectrum, a[0], b[0], 6)
    torch.testing.assert_close(new_a.mT @ new_b, a[0].mT @ b[0], rtol=1e-4, atol=1e-5)


def test_with_moments_the_error_over_those_inputs_is_smallest():
    a, b = random_pairs(heads=1, pairs=1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(500, 11, generator=generator) * torch.linspace(0.05, 3, 11)
    y = torch.randn(500, 10, generator=generator) * torch.linspace(3, 0.05, 10)
    moments = [x.mT @ x / 500], [y.mT @ y / 500]

    def error(spectrum):
        new_a, new_b = factors(spectrum, a[0], b[0], 3)
        difference = (new_a.mT @ new_b - a[0].mT @ b[0])[0]
        return float((x @ difference @ y.mT).square().mean())

    plain, aware = error(decompose(a, b)[0]), error(decompose(a, b, *moments)[0])
    root_x, root_y = (torch.linalg.cholesky(m[0].double()) for m in moments)
    product = (a[0].mT @ b[0])[0].double()
    whitened = root_x.mT @ product @ root_y
    optimum = float(torch.linalg.svdvals(whitened)[3:].square().sum())
    assert aware < 0.9 * plain
    assert aware == pytest.approx(optimum, rel=1e-3)


def test_effective_rank_counts_equal_values_and_knows_zero():
    values = torch.tensor([[1.0, 1.0, 1.0, 0.0], [5.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(effective_rank(values), torch.tensor([3.0, 1.0, 0.0]))


def test_one_thread_gives_the_threads_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
