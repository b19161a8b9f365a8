"""What a network puts out: probes have the curvature of the divergence, and scores are what a hand counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from edgevit.errors import UnsupportedModelError
from edgevit.network.output import Features, Levels, Logits, Map, Output, curvature_sample, output_of

DRAWS = 20_000
SCALE = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
KINDS: dict[str, tuple[Output, tuple[int, ...]]] = {  # with the shape of one image's outputs
    "logits": (Logits((4, 0, 2)), (5,)),
    "features": (Features(), (3,)),
    "features in units": (Features(SCALE), (3,)),
    "features of tokens": (Features(SCALE), (2, 3)),
    "foreground": (Map("foreground"), (1, 2, 3)),
    "classes": (Map("classes"), (3, 1, 2)),
    "values": (Map("values"), (2, 1, 2)),
    "levels in units": (Levels(SCALE), (3,)),
}
each_kind = pytest.mark.parametrize(("output", "shape"), KINDS.values(), ids=KINDS)


def _outputs(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return 1.5 * torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@each_kind
def test_probes_have_the_curvature_of_the_divergence(output: Output, shape: tuple[int, ...]) -> None:
    z = _outputs(shape)
    wanted = hessian(lambda other: output.divergence(z, other).sum(), z).reshape(z.numel(), -1)
    many = z.expand(DRAWS, *shape).clone().requires_grad_()
    (g,) = torch.autograd.grad(output.probe(many, output.draws(many[:1], DRAWS, seed=0)), many)
    found = g.flatten(1).mT @ g.flatten(1) / DRAWS
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.03 * float(wanted.abs().max()))
    assert float(wanted.abs().max()) > 0.01


@each_kind
def test_a_divergence_is_zero_where_nothing_differs_and_of_each_image_alone(
    output: Output, shape: tuple[int, ...]
) -> None:
    pair = [torch.cat([_outputs(shape, seed), _outputs(shape, seed + 1)]) for seed in (0, 2)]
    apart = output.divergence(*pair)
    assert apart.shape == (2,) and (apart > 0.01).all()
    torch.testing.assert_close(output.divergence(pair[0], pair[0]), torch.zeros(2, dtype=torch.float64))
    mixed = torch.stack([pair[1][0], pair[0][1]])
    torch.testing.assert_close(output.divergence(pair[0], mixed), apart * torch.tensor([1, 0]))


@each_kind
def test_outputs_score_fully_with_their_own_answers_and_less_with_those_of_others(
    output: Output, shape: tuple[int, ...]
) -> None:
    own, other = (torch.cat([_outputs(shape, seed + i) for i in range(20)]) for seed in (0, 50))
    torch.testing.assert_close(
        output.score(own, output.answers(own)), torch.ones(20, dtype=torch.float64), check_dtype=False
    )
    agreement = output.score(other, output.answers(own))
    assert agreement.shape == (20,) and 0 < agreement.mean() < 0.9
    assert (
        type(output_of(output.kind, (4, 0, 2))) is type(output)
        and output_of(output.kind, (4, 0, 2)).kind == output.kind
    )


@each_kind
def test_draws_are_of_the_seed_and_of_as_many_images_as_asked_for(output: Output, shape: tuple[int, ...]) -> None:
    z = _outputs(shape)
    draws = output.draws(z, 7, seed=3)
    assert len(draws) == 7 and (draws.shape == (7, 1) or set(draws.unique().tolist()) == {-1, 1})  # seeds, or signs
    assert torch.equal(draws, output.draws(z, 7, seed=3)) and not torch.equal(draws, output.draws(z, 7, seed=4))


def test_a_curvature_sample_is_that_of_the_cross_entropy_in_lower_precision_too() -> None:
    logits = torch.tensor([[0.3, 2.0, -1.0, 0.0]])
    signs = Logits((0, 1, 2, 3)).draws(logits, DRAWS, seed=0)
    samples = curvature_sample(logits.expand(DRAWS, 4), signs)
    assert samples.dtype == torch.float32
    p = logits.softmax(1)[0]
    torch.testing.assert_close(samples.mT @ samples / DRAWS, p.diag() - torch.outer(p, p), atol=0.01, rtol=0)


def test_logits_of_other_classes_do_not_count() -> None:
    output, z = Logits((4, 0)), torch.tensor([[1.0, 9.0, 9.0, 9.0, 2.0], [3.0, 0.0, 0.0, 0.0, 2.0]])
    assert output.of(z).tolist() == [[2.0, 1.0], [2.0, 3.0]]
    assert output.score(z, torch.tensor([0, 0])).tolist() == [1.0, 0.0]
    other = z.clone()
    other[:, 1:4] += torch.tensor([1.0, -5.0, 7.0])
    assert output.divergence(z, other).tolist() == [0.0, 0.0]
    p, q = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])
    found = Logits((0, 1)).divergence(p.log()[None], q.log()[None])
    torch.testing.assert_close(found, (p * (p / q).log()).sum()[None])


def test_features_score_by_their_cosine_and_differ_by_half_their_mean_squared_difference() -> None:
    a, b = torch.tensor([[3.0, 4.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([[4.0, 3.0], [0.0, 2.0], [-1.0, 0.0]])
    torch.testing.assert_close(Features().score(a, b), torch.tensor([24 / 25, 0.0, 0.0]))
    torch.testing.assert_close(Features().divergence(a, b), torch.tensor([0.5, 1.25, 1.0]))
    units = Features(torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(units.divergence(a, b), torch.tensor([0.3125, 0.5, 1.0]))
    torch.testing.assert_close(units.score(a, b)[0], torch.tensor((12 + 3) / (13 * 18.25) ** 0.5))
    tokens = Features().score(torch.stack([a[0], a[1]])[None], torch.stack([a[0], b[1]])[None])
    torch.testing.assert_close(tokens, torch.tensor([0.5]))  # of tokens it is the mean


def test_a_foreground_scores_by_its_overlap() -> None:
    z = torch.tensor([[2.0, -1.0, 3.0, -2.0], [-1.0, -1.0, -1.0, -1.0], [1.0, 1.0, 1.0, 1.0]]).reshape(3, 1, 2, 2)
    wanted = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]]).reshape(3, 2, 2)
    torch.testing.assert_close(Map("foreground").score(z, wanted), torch.tensor([1 / 3, 0.0, 1.0]))


def test_a_map_without_foreground_that_is_found_to_have_none_is_right() -> None:
    nothing = Map("foreground").score(torch.full((1, 1, 2, 2), -1.0), torch.zeros(1, 2, 2))
    assert nothing.tolist() == [1.0]


def test_classes_score_by_the_share_of_right_pixels_and_values_by_their_overlap() -> None:
    z = torch.tensor([[[[1.0, 0.0]], [[0.0, 2.0]], [[0.5, 3.0]]]])  # two pixels of three classes: 0 and 2
    assert Map("classes").score(z, torch.tensor([[[0, 1]]])).tolist() == [0.5]
    values = torch.tensor([[[[0.0, 0.5]]], [[[1.0, 1.0]]]])
    torch.testing.assert_close(Map("values").score(values, torch.ones(2, 1, 1, 2)), torch.tensor([0.4, 1.0]))
    torch.testing.assert_close(
        Map("values").divergence(torch.ones(2, 1, 1, 2), values), torch.tensor([1.25 / 2 / 2, 0.0])
    )


def test_a_score_is_never_below_zero() -> None:
    far = Map("values").score(torch.full((1, 1, 2, 2), 5.0), torch.zeros(1, 1, 2, 2))
    assert far.tolist() == [0.0]


def test_a_network_says_what_it_puts_out(small_vit: Any) -> None:
    network = small_vit()
    assert network.output == Logits(tuple(range(10)))
    some = network.with_columns([7, 3])
    assert some.columns == (7, 3) and network.columns == tuple(range(10)) and some.module is network.module
    assert some.build(some.read()).columns == (7, 3)
    headless = small_vit(num_classes=0)
    assert headless.output == Features()
    with pytest.raises(UnsupportedModelError, match="needs logits of classes, and the output is features; fit a class"):
        headless.columns  # noqa: B018


def test_networks_of_one_module_are_trained_and_evaluated_together(small_vit: Any) -> None:
    network = small_vit().train()
    some = network.with_columns([7, 3])
    assert some.training
    network.eval()
    assert not some.training and not network.training and not network.module.training
    some.train()
    assert network.training and network.module.blocks[0].training
