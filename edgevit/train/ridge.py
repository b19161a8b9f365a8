"""Ridge regression of classes on features, in closed form, for every ridge at once.

Every class weighs the same in the regression, however many images it has, and features are standardised, so that a
ridge means the same for every network. The ridge is the one of a grid that is right on most held-out images, in the
mean over the classes; of equals, the one of the smallest loss. Held out are the images of a validation part or, in
cross-validation, the training images in turn, of which there are ten times as many.

A classifier is judged by its share of right answers, to which a frequent class adds more. So its logits are the outputs
times a temperature, by which their softmax is p(class | image) for classes of equal shares, plus the logarithm of each
class's share (Bayes' rule).
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
ROUNDS = 60  # rounds of the search, each of which leaves 0.618 of the interval


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


def fit_classifier(regression: RidgeRegression, chosen: ChosenRidge, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [C, d] and bias [C] of the logits, for classes of which there are `counts` [C] images."""
    weight, bias = (chosen.temperature * part for part in regression.solved(chosen.ridge))
    return weight, bias + (counts / counts.sum()).log()


@dataclass(frozen=True)
class ChosenRidge:
    """The ridge that is right on most images, with the temperature of its outputs' least loss there."""

    ridge: float
    temperature: float
    accuracy: float  # accuracy on the held-out images, the mean over the classes
    right: Tensor  # [N] bool: which of these images it is right on


def choose_ridge(regression: RidgeRegression, features: Tensor, labels: Tensor) -> ChosenRidge:
    """Choose on validation images. Shapes: features [N, d] in fp64, labels [N]; every class has an image."""
    return _most_right({ridge: _outputs(regression, ridge, features) for ridge in RIDGES}, labels)


def cross_validate(features: Tensor, labels: Tensor) -> ChosenRidge:
    """Choose on the training images: a FOLDS-th of each class is held out in turn.

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
    return _most_right(outputs, labels)


def _outputs(regression: RidgeRegression, ridge: float, features: Tensor) -> Tensor:
    weight, bias = regression.solved(ridge)
    return features @ weight.T + bias


def _most_right(outputs: Mapping[float, Tensor], labels: Tensor) -> ChosenRidge:
    """Choose a ridge by its outputs [N, C] for held-out images."""
    accuracies = {ridge: round(class_accuracy(of_ridge, labels), 12) for ridge, of_ridge in outputs.items()}
    best, each = max(accuracies.values()), _weights(labels)
    fits = [(*sharpen(outputs[ridge], labels, each), ridge) for ridge in outputs if accuracies[ridge] == best]
    _, temperature, ridge = min(fits)
    return ChosenRidge(ridge, temperature, best, outputs[ridge].argmax(1) == labels)


def gain_error(before: ChosenRidge, after: ChosenRidge, labels: Tensor) -> float:
    """The standard error of the difference of two accuracies on the same images, each class of which has several."""
    gains = after.right.double() - before.right.double()
    of_classes = [gains[labels == label] for label in range(int(labels.max()) + 1)]
    return float(sum(g.var() / len(g) for g in of_classes) ** 0.5 / len(of_classes))


def class_accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The mean of the classes' accuracies. Shapes: outputs [N, C], labels [N]."""
    return float(_weights(labels)[outputs.argmax(1) == labels].sum())


def _weights(labels: Tensor) -> Tensor:
    """The weight of each image, by which every class counts alike: [N]."""
    counts = torch.bincount(labels)
    return 1 / (len(counts) * counts[labels].double())


def sharpen(outputs: Tensor, labels: Tensor, each: Tensor) -> tuple[float, float]:
    """The smallest loss of outputs [N, C] times a temperature, and that temperature; images weigh `each` [N].

    Targets are smoothed by Platt's rule: where all images are right, the loss would fall for ever. The loss is convex
    in the temperature, so a golden-section search over its logarithm finds the minimum.
    """
    count, classes = outputs.shape
    doubt = 1 / (count + 2)
    targets = torch.full_like(outputs, doubt / (classes - 1))
    targets[torch.arange(count), labels] = 1 - doubt

    def loss(log: float) -> float:
        likelihoods = (math.exp(log) * outputs).log_softmax(1)
        return -float(each @ (targets * likelihoods).sum(1))

    low, high = (math.log(limit) for limit in _TEMPERATURES)
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(ROUNDS):
        lower, upper = high - golden * (high - low), low + golden * (high - low)
        if loss(lower) < loss(upper):
            high = upper
        else:
            low = lower
    return loss(low), math.exp(low)
