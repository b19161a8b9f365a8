"""Ridge regression of classes on features, in closed form, for every ridge at once.

Every class weighs the same in the regression, however many images it has, and features are standardised, so that a
ridge means the same for every network. A classifier is judged by its share of right answers, to which a frequent class
adds more. So its logits are the outputs times a temperature, by which their softmax is p(class | image) for classes of
equal shares, plus the logarithm of each class's share (Bayes' rule).

The ridge is the one of a grid whose logits are right on most held-out images; of equals, the one of the smallest loss.
Held out are the images of a validation part or, in cross-validation, the training images in turn, of which there are
ten times as many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

# Ridges to choose from, in units of the variance of each feature, which is 1.
RIDGES = tuple(10 ** (exponent / 2) for exponent in range(-12, 5))
_TEMPERATURES = (1e-3, 1e4)  # range in which a temperature is searched
FOLDS = 5  # folds of cross-validation
ROUNDS = 30  # rounds of the search, each of which leaves 0.618 of the interval


class Moments:
    """Sums over images, weighted so that all classes count alike; in fp64. Shapes: d features, C classes."""

    def __init__(self, labels: Sequence[int], width: int) -> None:
        """Take the labels of all images to come; every class must have some."""
        counts = torch.bincount(torch.tensor(labels)).double()
        self.each = 1 / (len(counts) * counts)  # [C], the weight of an image of each class
        self.sums = torch.zeros(len(counts), width, dtype=torch.float64)  # sums of each class's features
        self.products = torch.zeros(width, width, dtype=torch.float64)  # sums of the products of features

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add images by their features [B, d] in fp64 and labels [B]."""
        weighted = features * self.each[labels, None]
        self.sums.index_add_(0, labels, weighted)
        self.products += weighted.T @ features

    def of(self, part: slice) -> Moments:
        """The moments of some of the features."""
        chosen = copy(self)
        chosen.sums, chosen.products = self.sums[:, part], self.products[part, part]
        return chosen


@dataclass(frozen=True)
class RidgeRegression:
    """One-hot ridge regression for every ridge at once: the correlations of the features, decomposed; in fp64.

    With standardised features z = (x - mean) / scale, correlations R = Q diag(l) Q^T and covariances K of z with the
    classes, the outputs for a ridge r are 1 / C + z Q diag(1 / (l + r)) Q^T K. Shapes: d features, C classes.
    """

    mean: Tensor  # [d] means of the features
    scale: Tensor  # [d] standard deviations of the features; infinite for a constant one
    values: Tensor  # [r] l, the eigenvalues of the correlations: d, or those that are not zero
    vectors: Tensor  # [d, r] Q, their eigenvectors
    targets: Tensor  # [r, C] Q^T K

    @classmethod
    def of_images(cls, features: Tensor, labels: Tensor) -> RidgeRegression:
        """The regression on images by their features [N, d] in fp64 and labels [N].

        Of fewer images than features at most N eigenvalues are not zero, and only these and their vectors are computed,
        from the products of images: X X^T = U diag(l) U^T has those of R = X^T X, whose vectors are X^T U / sqrt(l).
        """
        images, width = features.shape
        moments = Moments(labels.tolist(), 0 if images < width else width)
        if images >= width:
            moments.add(features, labels)
            return cls.of(moments)
        each = moments.each[labels]
        mean = each @ features
        centred = features - mean
        variance = each @ centred.square()
        scale = variance.sqrt().where(variance > 1e-12 * (each @ features.square()), torch.inf)
        rows = each.sqrt()[:, None] * centred / scale  # [N, d], X
        values, of_images = torch.linalg.eigh(rows @ rows.T)
        some = values > 1e-12 * values[-1].clamp_min(torch.finfo(torch.float64).tiny)
        values, of_images = values[some], of_images[:, some]
        vectors = rows.T @ (of_images / values.sqrt())
        classes = torch.nn.functional.one_hot(labels, len(moments.each)).double() - 1 / len(moments.each)
        targets = (of_images * values.sqrt()).T @ (each.sqrt()[:, None] * classes)
        return cls(mean, scale, values, vectors, targets)

    @classmethod
    def of(cls, moments: Moments) -> RidgeRegression:
        mean = moments.sums.sum(0)
        covariance = moments.products - mean[:, None] * mean
        variance = covariance.diagonal().clamp_min(0)
        # A constant feature has no information; an infinite scale removes it.
        scale = variance.sqrt().where(variance > 1e-12 * moments.products.diagonal(), torch.inf)
        values, vectors = torch.linalg.eigh(covariance / scale[:, None] / scale)
        classes = (moments.sums - mean / len(moments.sums)).T / scale[:, None]  # [d, C], K
        return cls(mean, scale, values.clamp_min(0), vectors, vectors.T @ classes)

    def solved(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Weight [C, d] and bias [C] of the outputs, which are about 1 for the class of an image and 0 for others."""
        weight = (self.vectors @ (self.targets / (self.values[:, None] + ridge)) / self.scale[:, None]).T
        return weight, 1 / len(weight) - weight @ self.mean


def fit_classifier(regression: RidgeRegression, chosen: ChosenRidge, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [C, d] and bias [C] of the logits, for classes with these shares [C] of the images."""
    weight, bias = (chosen.temperature * part for part in regression.solved(chosen.ridge))
    return weight, bias + shares.log()


@dataclass(frozen=True)
class ChosenRidge:
    """The ridge that is right on most images, with the temperature of its outputs' least loss there."""

    ridge: float
    temperature: float
    accuracy: float  # share of the held-out images that it is right on, of classes with the shares that it is for
    right: Tensor  # [N] bool: which of these images it is right on


def shares_of(labels: Tensor) -> Tensor:
    """The share of each class in labels [N]: fp64 [C]."""
    return torch.bincount(labels).double() / len(labels)


def choose_ridge(
    regression: RidgeRegression, features: Tensor, labels: Tensor, shares: Tensor | None = None
) -> ChosenRidge:
    """Choose on validation images, for classes with these shares [C]; None: those of the labels.

    Shapes: features [N, d] in fp64, labels [N]; every class has an image.
    """
    return _most_right({ridge: _outputs(regression, ridge, features) for ridge in RIDGES}, labels, shares)


def cross_validate(features: Tensor, labels: Tensor, shares: Tensor | None = None) -> ChosenRidge:
    """Choose on the training images, for classes with these shares [C]: a FOLDS-th of each class is held out in turn.

    Images next to each other are held out together: in the order of file names they are variants of one picture, or
    frames of one recording.

    Shapes: features [N, d] in fp64, labels [N]; every class has FOLDS images or more.
    """
    counts = torch.bincount(labels)
    fold = torch.empty_like(labels)
    for label, count in enumerate(counts.tolist()):
        fold[labels == label] = torch.arange(count) * FOLDS // count
    outputs = {ridge: features.new_empty(len(labels), len(counts)) for ridge in RIDGES}
    for number in range(FOLDS):
        fitted, judged = fold != number, fold == number
        regression = RidgeRegression.of_images(features[fitted], labels[fitted])
        for ridge in RIDGES:
            outputs[ridge][judged] = _outputs(regression, ridge, features[judged])
    return _most_right(outputs, labels, shares)


def _outputs(regression: RidgeRegression, ridge: float, features: Tensor) -> Tensor:
    weight, bias = regression.solved(ridge)
    return features @ weight.T + bias


def _most_right(outputs: Mapping[float, Tensor], labels: Tensor, shares: Tensor | None) -> ChosenRidge:
    """Choose a ridge by its outputs [N, C] for held-out images."""
    shares = shares_of(labels) if shares is None else shares
    each, logarithms = _weights(labels, shares), shares.log()
    candidates = []
    for ridge, of_ridge in outputs.items():
        loss, temperature = sharpen(of_ridge, labels, each, logarithms)
        right = (temperature * of_ridge + logarithms).argmax(1) == labels
        candidates.append((-round(float(each[right].sum()), 12), loss, ridge, temperature, right))
    negative, _, ridge, temperature, right = min(candidates, key=lambda candidate: candidate[:3])
    return ChosenRidge(ridge, temperature, -negative, right)


def gain_error(before: ChosenRidge, after: ChosenRidge, labels: Tensor, shares: Tensor | None = None) -> float:
    """The standard error of the difference of two accuracies on the same images, each class of which has several."""
    shares = shares_of(labels) if shares is None else shares
    gains = after.right.double() - before.right.double()
    of_classes = [gains[labels == label] for label in range(len(shares))]
    return float(sum(s**2 * g.var() / len(g) for s, g in zip(shares.tolist(), of_classes, strict=True)) ** 0.5)


def _weights(labels: Tensor, shares: Tensor) -> Tensor:
    """The weight of each image, by which the classes have these shares: [N]."""
    return (shares / torch.bincount(labels))[labels]


def sharpen(outputs: Tensor, labels: Tensor, each: Tensor, bias: Tensor | float = 0.0) -> tuple[float, float]:
    """The smallest loss of outputs [N, C] times a temperature plus a bias [C], and that temperature.

    Images weigh `each` [N]. Targets are smoothed by Platt's rule: where all images are right, the loss would fall for
    ever. The loss is convex in the temperature, so a golden-section search over its logarithm finds the minimum.
    """
    count, classes = outputs.shape
    doubt = 1 / (count + 2)
    targets = torch.full_like(outputs, doubt / (classes - 1))
    targets[torch.arange(count), labels] = 1 - doubt

    def loss(log: float) -> float:
        likelihoods = (math.exp(log) * outputs + bias).log_softmax(1)
        return -float(each @ (targets * likelihoods).sum(1))

    low, high = (math.log(limit) for limit in _TEMPERATURES)
    golden = (math.sqrt(5) - 1) / 2
    places = [high - golden * (high - low), low + golden * (high - low)]
    lower, upper = (loss(place) for place in places)
    for _ in range(ROUNDS):  # of the two places one remains, with its loss
        if lower < upper:
            high, upper = places[1], lower
            places = [high - golden * (high - low), places[0]]
            lower = loss(places[0])
        else:
            low, lower = places[0], upper
            places = [places[1], low + golden * (high - low)]
            upper = loss(places[1])
    return loss(low), math.exp(low)
