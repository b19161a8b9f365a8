"""What features are worth: classifiers fitted to those of training images, and judged on held-out ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.data.splitting import PARTS
from edgevit.data.task import Split, Task
from edgevit.errors import ModelError
from edgevit.records.answers import RightImages
from edgevit.records.derivation import JudgedPart
from edgevit.train.ridge import FOLDS, Moments, RidgeRegression, choose_ridge, cross_validate, fit_classifier, shares_of

_NEIGHBOURS, _TEMPERATURE = 20, 0.07  # neighbours and temperature of k-NN, those of DINO


@dataclass(frozen=True)
class Labelled:
    """Features [N, d] in fp64, and labels [N]."""

    features: Tensor
    labels: Tensor


def read_features(
    predict: Callable[[Tensor], Tensor], images: Split, batch_size: int, workers: int, seen: Callable[[int], None]
) -> Labelled:
    """Compute the features of images; tokens are averaged. `seen` is called with the number of images done.

    Raises:
        ModelError: a feature is not finite.
    """
    features, labels, done = list[Tensor](), list[Tensor](), 0
    with torch.inference_mode():
        for batch, of_batch in images.batches(batch_size, workers):
            outputs = predict(batch).double().cpu()
            features.append(outputs.flatten(1, -2).mean(1) if outputs.ndim > 2 else outputs)
            labels.append(of_batch)
            seen(done := done + len(batch))
    together = torch.cat(features)
    if not bool(torch.isfinite(together).all()):
        raise ModelError("features of some images are not finite; derive or export the model again")
    return Labelled(together, torch.cat(labels))


def knn(train: Labelled, tested: Labelled) -> Tensor:
    """Classify by the nearest training images: each votes for its class by exp(cosine / _TEMPERATURE). Returns [N]."""
    nearest, directions = (F.normalize(part.features, dim=1) for part in (train, tested))
    cosines, indices = (directions @ nearest.mT).topk(min(_NEIGHBOURS, len(nearest)))
    votes = torch.zeros(len(directions), int(train.labels.max()) + 1, dtype=torch.float64)
    return votes.scatter_add_(1, train.labels[indices], (cosines / _TEMPERATURE).exp()).argmax(1)


def linear(train: Labelled, validation: Labelled, tested: Labelled) -> Tensor:
    """Classify by ridge regression on training and validation images. Returns [N].

    Where the validation images themselves are `tested`, it is on training images alone.

    The ridge is chosen by cross-validation, or on the validation images if a class has too few for that. A few dozen
    validation images choose it by chance: the lost points of a backbone then differ by 5 between folds, and not by 2.
    """
    parts = (train,) if tested is validation else (train, validation)
    features, labels = torch.cat([part.features for part in parts]), torch.cat([part.labels for part in parts])
    shares = shares_of(labels)
    if int(torch.bincount(labels).min()) >= FOLDS:
        chosen = cross_validate(features, labels)
    else:
        of_train = _regression(train.features, train.labels)
        chosen = choose_ridge(of_train, validation.features, validation.labels, shares)
    weight, bias = fit_classifier(_regression(features, labels), chosen, shares)
    return (tested.features @ weight.mT + bias).argmax(1)


def _regression(features: Tensor, labels: Tensor) -> RidgeRegression:
    moments = Moments(labels.tolist(), features.shape[1])
    moments.add(features, labels)
    return RidgeRegression.of(moments)


def probe_answers(
    names: tuple[str, ...], train: Labelled, validation: Labelled | None, tested: Labelled
) -> dict[str, Tensor]:
    """Fit each named probe to training images; return which of the tested images it classifies rightly: bool [N]."""
    answers = {}
    if "knn" in names:
        answers["knn"] = knn(train, tested)
    if "linear" in names:
        assert validation is not None, "its ridge is chosen on them"
        answers["linear"] = linear(train, validation, tested)
    return {name: answers[name] == tested.labels for name in names}


def probe_features(
    names: tuple[str, ...], task: Task, tested: Split, read: Callable[[Split], Labelled]
) -> dict[str, float]:
    """Fit each named probe to a task's training images, and return its share of right answers on `tested`."""
    is_validation = tested is task.validation
    validation = read(task.validation) if "linear" in names or is_validation else None
    judged = validation if is_validation and validation is not None else read(tested)
    right = probe_answers(names, read(task.train), validation, judged)
    return {name: float(of_images.double().mean()) for name, of_images in right.items()}


def probe_parts(
    names: tuple[str, ...], task: Task, read: Callable[[Split], Labelled]
) -> dict[str, dict[JudgedPart, RightImages]]:
    """Fit each named probe to a task's training images; return which images of the other parts are right, by part."""
    train, validation, test = (read(task.part(part)) for part in PARTS)
    parts: dict[JudgedPart, Labelled] = {"validation": validation, "test": test}
    right = {part: probe_answers(names, train, validation, tested) for part, tested in parts.items()}
    classes: dict[JudgedPart, dict[str, int]] = {
        part: {name: int((tested.labels == i).sum()) for i, name in enumerate(task.class_names)}
        for part, tested in parts.items()
    }
    return {name: {part: RightImages.of(right[part][name].tolist(), classes[part]) for part in parts} for name in names}
