"""Fit a linear head to a base that has none: ridge regression of the classes on its pooled features, in closed form.

Every class weighs the same, however many images it has, and features are standardised, so that a ridge means the same
for every base. The ridge is the one of a grid that is right on most validation images, in the mean over the classes; of
equals, the one of the smallest loss. A regression's outputs are about 0 and 1, and no logits: a temperature, fitted on
the validation part, makes their softmax as sure as it is right, which distillation and rejection rely on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from edgevit.data.classes import label_names, listed, resolve
from edgevit.data.sources import open_source
from edgevit.data.task import Split, Task, open_task
from edgevit.derivation.cache import Cache
from edgevit.derivation.estimate import image_seconds
from edgevit.derivation.request import BaseRequest, Request
from edgevit.errors import DataError, OptionError
from edgevit.network.checkpoint import Headless, Model, tensors_sha256
from edgevit.network.network import Network
from edgevit.progress import Progress, rounded_duration
from edgevit.records.derivation import FittedHead
from edgevit.train.passes import Passes

FEWEST = 5  # training images of a class; of fewer, its mean is mostly chance
RIDGES = tuple(10 ** (exponent / 2) for exponent in range(-12, 5))  # of the variance of each feature, which is 1
TEMPERATURES = (1e-3, 1e4)  # between which one is searched
ROUNDS = 60  # of the search, each of which leaves 0.618 of the interval


def open_task_for(
    base: Model | Headless, request: Request | BaseRequest, progress: Progress, unlabelled: str | Path | None = None
) -> Task:
    """Open a request's images. The outputs of a base without a head will be the target classes.

    Raises:
        OptionError: class names are given for a base without outputs.
        UnknownNameError, DataError: as `open_task` says.
    """
    data, classes = request.data, request.classes
    assert data is not None
    names: str | Path | Sequence[str] | None
    if isinstance(base, Model):
        outputs, names = base.spec.outputs, request.base_classes or base.spec.output_names
        if names is None:
            names = label_names(base.release.labels, open_source(data).class_names, outputs, whole=classes is None)
        elif classes is None and request.base_classes is None and base.spec.head == "subset":
            available = open_source(data).class_names
            if set(base.spec.class_names) < set(available):
                classes = base.spec.class_names
                progress.note(
                    f"the base knows {len(classes)} of the data's {len(available)} classes, and those are used"
                )
    elif request.base_classes is not None:
        raise OptionError(
            f"{base.timm_name} has no classifier whose outputs --base-classes could name; leave it out: "
            f"a head is fitted to the classes of the data"
        )
    else:
        available = open_source(data).class_names
        chosen = resolve(listed(classes, available), available, {name: i for i, name in enumerate(available)})
        classes = names = [target.name for target in chosen]
        outputs = len(names)
    return open_task(
        data,
        classes,
        preprocessing=base.preprocessing,
        base_outputs=outputs,
        base_names=names,
        validation_fraction=request.validation_fraction,
        seed=request.training.seed,
        group_by=request.group_by,
        skip_bad_images=request.skip_bad_images,
        unlabelled=unlabelled,
        progress=progress,
    )


def with_fitted_head(
    base: Model | Headless, task: Task, passes: Passes, cache: Cache
) -> tuple[Model, FittedHead | None]:
    """Give a base without a head one that is fitted to the task's classes; return any other base unchanged.

    Works in fp32, whatever the training's precision, and in every process.

    Raises:
        DataError: a class has too few images, or the features are not finite.
    """
    if isinstance(base, Model):
        return base, None
    images = _images_per_class(task)
    seconds = (len(task.train) + len(task.validation)) * sum(image_seconds(base.network, task.train, passes.compute))
    passes.progress.note(
        f"{base.timm_name} has no classifier: a linear head is fitted to {len(task.train)} training images of "
        f"{len(images)} classes, in about {rounded_duration(seconds)}; less where the cache has it"
    )
    key = {
        "base": [base.timm_name, dict(base.timm_args), tensors_sha256(base.network.state_dict())],
        "preprocessing": dict(base.preprocessing),
        "images": [task.train.content_sha256(), task.validation.content_sha256()],
        "device": passes.compute.device.type,
    }
    fitted = cache.tensors("head", key, lambda: _fit(base, task, replace(passes, shared=False)))
    ridge, temperature, accuracy = fitted["facts"].tolist()
    head = FittedHead(ridge, temperature, accuracy, len(task.validation), images)
    passes.progress.note(head.format())
    return base.with_head(fitted["weight"], fitted["bias"]), head


def _images_per_class(task: Task) -> dict[str, int]:
    """How many training images each class has.

    Raises:
        DataError: too few.
    """
    counts = Counter(task.train.labels)
    for label, name in enumerate(task.class_names):
        if counts[label] < FEWEST:
            raise DataError(
                f"class {name!r} has {counts[label]} training images, and a head is fitted to {FEWEST} or more of each "
                f"class; add some, leave the class out with --classes, or give a base with a classifier"
            )
    return {name: counts[label] for label, name in enumerate(task.class_names)}


def _fit(base: Headless, task: Task, passes: Passes) -> dict[str, Tensor]:
    """Weight, bias, and as `facts` ridge, temperature and accuracy."""
    network = base.network
    network.make_classifiers(len(task.classes))
    width = network.classifiers[0].in_features
    moments, batches = Moments(task.train.labels, width), list[tuple[Tensor, Tensor]]()
    _pass_features(network, task.train, passes, "fit a head", moments.add)
    _pass_features(network, task.validation, passes, "judge the head", lambda *batch: batches.append(batch))
    regression = RidgeRegression.of(moments)
    features, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    ridge, temperature, accuracy = choose_ridge(regression, features, labels)
    weight, bias = regression.solved(ridge)
    facts = torch.tensor([ridge, temperature, accuracy], dtype=torch.float64)
    return {"weight": (temperature * weight).float(), "bias": (temperature * bias).float(), "facts": facts}


def _pass_features(
    network: Network, images: Split, passes: Passes, stage: str, add_batch: Callable[[Tensor, Tensor], None]
) -> None:
    """Pass the inputs of the heads, their mean over all heads, to `add_batch(features, labels)`: fp64 [B, d] and [B].

    Works on the CPU, as not every device has fp64.

    Raises:
        DataError: a feature is not finite.
    """
    inputs: list[Tensor] = []

    def read_batch(outputs: Tensor, labels: Tensor) -> None:
        features = torch.stack(inputs).mean(0).cpu().double()
        inputs.clear()
        if not bool(torch.isfinite(features).all()):
            raise DataError("the base's features are no finite numbers; check its weights, --mean and --std")
        add_batch(features, labels.cpu())

    heads = network.classifiers
    observer = (heads, lambda index, read, output: inputs.append(read[0]))
    passes.run(network, images, read_batch, [observer], stage=stage)


class Moments:
    """Sums over images, weighted so that all classes count alike; in fp64. Shapes: d features, C classes."""

    def __init__(self, labels: Sequence[int], width: int) -> None:
        """Take the labels of all images to come; every class must have some."""
        counts = torch.bincount(torch.tensor(labels)).double()
        self.each = 1 / (len(counts) * counts)  # [C], the weight of an image of each class
        self.sums = torch.zeros(len(counts), width, dtype=torch.float64)  # of each class's features
        self.products = torch.zeros(width, width, dtype=torch.float64)  # of features with one another

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add images by their features [B, d] in fp64 and labels [B]."""
        weighted = features * self.each[labels, None]
        self.sums.index_add_(0, labels, weighted)
        self.products += weighted.T @ features


@dataclass(frozen=True)
class RidgeRegression:
    """One-hot ridge regression for every ridge at once: the correlations of the features, decomposed; in fp64.

    With standardised features z = (x - mean) / scale, correlations R = Q diag(l) Q^T and covariances K of z with the
    classes, the outputs for a ridge r are 1 / C + z Q diag(1 / (l + r)) Q^T K. Shapes: d features, C classes.
    """

    mean: Tensor  # [d]
    scale: Tensor  # [d]
    values: Tensor  # [d], l
    vectors: Tensor  # [d, d], Q
    targets: Tensor  # [d, C], Q^T K

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


def choose_ridge(regression: RidgeRegression, features: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Choose ridge and temperature on validation images; return them, and the mean of the classes' accuracies.

    Shapes: features [N, d] in fp64, labels [N]; every class has an image.
    """
    outputs, accuracies = {}, {}
    counts = torch.bincount(labels)
    each = 1 / (len(counts) * counts[labels].double())  # the weight of each image
    for ridge in RIDGES:
        weight, bias = regression.solved(ridge)
        outputs[ridge] = features @ weight.T + bias
        accuracies[ridge] = round(float(each[outputs[ridge].argmax(1) == labels].sum()), 12)
    best = max(accuracies.values())
    fits = [(*sharpen(outputs[ridge], labels, each), ridge) for ridge in RIDGES if accuracies[ridge] == best]
    _, temperature, ridge = min(fits)
    return ridge, temperature, best


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

    low, high = (math.log(limit) for limit in TEMPERATURES)
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(ROUNDS):
        lower, upper = high - golden * (high - low), low + golden * (high - low)
        if loss(lower) < loss(upper):
            high = upper
        else:
            low = lower
    return loss(low), math.exp(low)
