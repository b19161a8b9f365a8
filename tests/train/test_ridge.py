"""The ridge regression of classes on features, and its choices."""

from __future__ import annotations

import pytest
import torch

from edgevit.train.ridge import (
    FOLDS,
    RIDGES,
    ChosenRidge,
    Moments,
    RidgeRegression,
    choose_ridge,
    cross_validate,
    fit_classifier,
    gain_error,
    shares_of,
    sharpen,
)

HALVES = torch.full((2,), 0.5, dtype=torch.float64)


def clouds(counts: list[int], spread: float, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [N, d] around a centre per class, of very different scales; and labels."""
    random = torch.Generator().manual_seed(3)
    centres = torch.randn(len(counts), width, generator=random, dtype=torch.float64)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    noise = torch.randn(len(labels), width, generator=random, dtype=torch.float64)
    return (centres[labels] + spread * noise) * torch.logspace(-3, 3, width, dtype=torch.float64) + 7, labels


def regression(features: torch.Tensor, labels: torch.Tensor) -> RidgeRegression:
    moments = Moments(labels.tolist(), features.shape[1])
    for batch in torch.randperm(len(labels)).split(7):
        moments.add(features[batch], labels[batch])
    return RidgeRegression.of(moments)


def outputs_by_definition(features: torch.Tensor, labels: torch.Tensor, ridge: float) -> torch.Tensor:
    """The outputs [N, C] of a regression in which every class weighs the same."""
    classes = torch.nn.functional.one_hot(labels).double()
    each = (1 / (classes.shape[1] * classes.sum(0)))[labels]
    mean = each @ features
    scale = (each @ (features - mean) ** 2).sqrt()
    z = (features - mean) / scale
    penalised = z.T @ (each[:, None] * z) + ridge * torch.eye(z.shape[1], dtype=torch.float64)
    share = 1 / classes.shape[1]
    return share + z @ torch.linalg.solve(penalised, z.T @ (each[:, None] * (classes - share)))


@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 10.0])
def test_the_head_is_the_ridge_regression_of_the_classes(ridge: float) -> None:
    features, labels = clouds([5, 20, 60], 1.0)
    weight, bias = regression(features, labels).solved(ridge)
    torch.testing.assert_close(features @ weight.T + bias, outputs_by_definition(features, labels, ridge))


@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 10.0])
@pytest.mark.parametrize(("width", "rank"), [(6, 6), (40, 23)])
def test_of_few_images_it_is_the_same(width: int, rank: int, ridge: float) -> None:
    features, labels = clouds([5, 7, 12], 1.0, width)
    few = RidgeRegression.of_images(features, labels)
    assert few.vectors.shape == (width, rank), "at most as many as images, less their mean"
    weight, bias = few.solved(ridge)
    expected = outputs_by_definition(features, labels, ridge)
    torch.testing.assert_close(features @ weight.T + bias, expected, rtol=1e-6, atol=1e-6)
    constant = torch.full((len(labels), 1), 123.0, dtype=torch.float64)
    with_more, _ = RidgeRegression.of_images(torch.cat([features, constant], 1), labels).solved(ridge)
    assert not with_more[:, width].any()


def test_logits_of_a_classifier_know_the_shares_of_the_classes() -> None:
    features, labels = clouds([40, 400, 100], 2.5)
    fitted, tested = torch.arange(len(labels)) % 2 == 0, torch.arange(len(labels)) % 2 == 1
    shares, of_images = shares_of(labels[fitted]), RidgeRegression.of_images(features[fitted], labels[fitted])
    chosen = cross_validate(features[fitted], labels[fitted])
    weight, bias = fit_classifier(of_images, chosen, shares)
    alike, alike_bias = of_images.solved(chosen.ridge)
    torch.testing.assert_close(weight, chosen.temperature * alike)
    difference = bias - chosen.temperature * alike_bias
    assert difference.exp().tolist() == pytest.approx([20 / 270, 200 / 270, 50 / 270])
    right = ((features[tested] @ weight.T + bias).argmax(1) == labels[tested]).double().mean()
    right_alike = ((features[tested] @ alike.T + alike_bias).argmax(1) == labels[tested]).double().mean()
    assert right > right_alike + 0.05
    assert chosen.accuracy == pytest.approx(float(chosen.right.double().mean()))


def test_a_feature_that_never_changes_is_left_out() -> None:
    features, labels = clouds([9, 9], 0.1)
    weight, bias = regression(features, labels).solved(1e-3)
    more = torch.cat([features, torch.full((len(labels), 1), 123.0, dtype=torch.float64)], 1)
    with_more, same_bias = regression(more, labels).solved(1e-3)
    torch.testing.assert_close(with_more[:, :6], weight, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(same_bias, bias, rtol=1e-5, atol=1e-5)
    assert not with_more[:, 6].any()


def test_of_noise_the_strong_ridge_is_chosen_and_of_clear_classes_all_are_right() -> None:
    features, labels = clouds([10, 10, 10], 0.01, width=24)
    assert choose_ridge(regression(features, labels), *clouds([10, 10, 10], 0.01, width=24)).accuracy == 1.0
    random = torch.Generator().manual_seed(0)
    few, many = (torch.randn(n, 24, generator=random, dtype=torch.float64) for n in (30, 900))
    for part in (few, many):
        part[:, 0] += torch.arange(len(part)) % 3  # one feature tells something, the others are noise
    chosen = choose_ridge(regression(few, torch.arange(30) % 3), many, torch.arange(900) % 3)
    assert chosen.ridge > 0.05 and chosen.accuracy > 0.4


def test_the_choice_is_for_classes_of_these_shares() -> None:
    features = torch.tensor([[0.0], [0.0], [0.0], [1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    assert choose_ridge(regression(features, labels), features, labels).accuracy == 0.75
    again = torch.tensor([0, 0, 0, 1, 1])
    held = torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0]], dtype=torch.float64)
    assert choose_ridge(regression(features, labels), held, again, HALVES).accuracy == 0.75
    assert choose_ridge(regression(features, labels), held, again).accuracy == 0.8, "those of the labels"


def test_probabilities_become_as_sure_as_they_are_right() -> None:
    random = torch.Generator().manual_seed(1)
    outputs = torch.rand(4000, 4, generator=random, dtype=torch.float64)
    labels = torch.multinomial((6 * outputs).softmax(1), 1, generator=random)[:, 0]
    each = torch.full((4000,), 1 / 4000, dtype=torch.float64)
    _, temperature = sharpen(outputs, labels, each)
    assert temperature == pytest.approx(6, rel=0.1)


def test_where_all_are_right_probabilities_stay_finite_and_surer_with_more_images() -> None:
    surest = []
    for count in (10, 1000):
        labels = torch.arange(count) % 2
        outputs = torch.nn.functional.one_hot(labels).double()
        _, temperature = sharpen(outputs, labels, torch.full((count,), 1 / count, dtype=torch.float64))
        surest.append(float((temperature * outputs).softmax(1).max()))
    assert surest == pytest.approx([11 / 12, 1001 / 1002], abs=1e-6)


# -- bases without a head ----------------------------------------------------------------------------------------------


def test_images_are_held_out_in_turn() -> None:
    features, labels = clouds([5, 20, 60], 0.8)
    accuracies = dict[float, float]()
    for ridge in RIDGES:
        right = torch.zeros(3)
        for fold in range(FOLDS):
            held_out = torch.cat([torch.arange(count) * FOLDS // count == fold for count in (5, 20, 60)])
            weight, bias = regression(features[~held_out], labels[~held_out]).solved(ridge)
            answers = (features[held_out] @ weight.T + bias).argmax(1)
            right += torch.bincount(labels[held_out][answers == labels[held_out]], minlength=3)
        accuracies[ridge] = round(float((right / torch.tensor([5, 20, 60])).mean()), 6)
    thirds = torch.full((3,), 1 / 3, dtype=torch.float64)
    chosen, best = cross_validate(features, labels, thirds), max(accuracies.values())
    assert 0.5 < best < 1 and chosen.accuracy == pytest.approx(best, abs=1e-6) and accuracies[chosen.ridge] == best


def test_the_error_of_a_gain_is_that_of_the_same_images() -> None:
    labels = torch.tensor([0] * 8 + [1] * 4)

    def judged(*wrong: int) -> ChosenRidge:
        right = torch.ones(12, dtype=torch.bool)
        right[list(wrong)] = False
        return ChosenRidge(1.0, 1.0, 0.5, right)

    assert gain_error(judged(0, 9), judged(0, 9), labels) == 0, "wrong on the same"
    # Gains of class 0: one of eight, with the variance 1/8; of class 1: 1 and -1 among four, with the variance 2/3.
    error = (1 / 64 + 1 / 6) ** 0.5 / 2
    assert gain_error(judged(0, 9), judged(10), labels, HALVES) == pytest.approx(error)
    assert gain_error(judged(0, 9), judged(10), labels) == pytest.approx((4 / 9 / 64 + 1 / 9 / 6) ** 0.5)


def test_moments_of_some_features_are_those_of_these_alone() -> None:
    features, labels = clouds([5, 20, 60], 1.0)
    moments = Moments(labels.tolist(), 6)
    moments.add(features, labels)
    some = RidgeRegression.of(moments.of(slice(2, 5)))
    torch.testing.assert_close(some.solved(0.1), regression(features[:, 2:5], labels).solved(0.1))
