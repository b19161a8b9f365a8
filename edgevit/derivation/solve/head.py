"""Fit a linear head to a base that has none, by ridge regression of the classes on its features (`train.ridge`).

Of a ViT these are what timm pools, or the class token and the mean of the patches side by side, where that is right on
more training images in cross-validation. They are those after each of several last blocks where that is better than
the other two by more than one standard error: such a head keeps all blocks and tokens. Cross-validation also chooses
the ridge where all training images are compared: they are several times as many as those of the validation part, which
chooses it where they are more.

A regression's outputs are about 0 and 1, and no logits: a temperature, fitted with the ridge, and the shares of the
classes in the training images make their softmax as sure as it is right, which distillation and rejection rely on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgevit.data.classes import label_names, listed, resolve
from edgevit.data.sources import open_source
from edgevit.data.task import Split, Task, open_task
from edgevit.derivation.cache import Cache
from edgevit.derivation.estimate import image_seconds
from edgevit.derivation.request import BaseRequest, Request
from edgevit.errors import DataError, OptionError
from edgevit.network.classifier import depths_in, pooled_place, read_tokens, with_last_blocks
from edgevit.network.copies import bare_copy
from edgevit.network.model import Headless, Model, tensors_sha256
from edgevit.network.network import Network
from edgevit.progress import Progress, rounded_duration
from edgevit.records.derivation import FittedHead, HeadInput, LastBlocks
from edgevit.records.model import TokenOutput
from edgevit.train.passes import Passes
from edgevit.train.ridge import (
    FOLDS,
    ChosenRidge,
    Moments,
    RidgeRegression,
    choose_ridge,
    cross_validate,
    fit_classifier,
    gain_error,
    shares_of,
)

FEWEST = 5  # training images of a class; of fewer, its mean is mostly chance
_COMPARED = 5000  # training images at most, as many of each class, for cross-validation
_BOTH: TokenOutput = "class,mean"


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
    if isinstance(base, Model) and base.spec.output_kind != "logits":
        raise OptionError(
            f"{request.base} puts out {base.spec.output_text}: derive from it with --output {base.spec.own_output}"
            + ("" if base.spec.builder else ", or for classes with --new-head")
        )
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
    base: Model | Headless, task: Task, passes: Passes, cache: Cache, most_blocks: int = 1
) -> tuple[Model, FittedHead | None]:
    """Give a base without a head one that is fitted to the task's classes; return any other base unchanged.

    Works in fp32, whatever the training's precision, and in every process.

    Args:
        most_blocks: how many last blocks a head of a ViT may read, which is compared with one of the last alone.

    Raises:
        OptionError: several blocks are asked for, and the base has a head already or can have none of them.
        DataError: a class has too few images, or the features are not finite.
    """
    if isinstance(base, Model):
        _check_read(base, most_blocks, "a head is fitted to a base without one, and this has one; give --new-head")
        return base, None
    images = _images_per_class(task)
    seconds = (len(task.train) + len(task.validation)) * sum(image_seconds(base.network, task.train, passes.compute))
    passes.progress.note(
        f"{base.timm_name} gets a linear head, fitted to {len(task.train)} training images of "
        f"{len(images)} classes, in about {rounded_duration(seconds)}; less where the cache has it"
    )
    key: dict[str, Any] = {
        "base": [base.timm_name, dict(base.timm_args), tensors_sha256(base.network.state_dict())],
        "preprocessing": dict(base.preprocessing),
        "images": [task.train.content_sha256(), task.validation.content_sha256()],
        "device": passes.compute.device.type,
        "compared": _COMPARED,
        "shares": True,  # in the bias, and in what is right on most
    }
    pooled, blocks = pooled_place(base.network), 1
    if pooled is not None:
        blocks = min(most_blocks, len(base.network.dims))
        key["reads"] = ["pooled", _BOTH, *[blocks] * (blocks > 1)]
    else:
        able = "a ViT with a class token whose head has not been replaced before"
        _check_read(base.network, most_blocks, f"a head of several blocks is fitted to {able}; give such a base")
    fitted = cache.tensors("head", key, lambda: _fit(base, task, replace(passes, shared=False), pooled, blocks))
    ridge, temperature, accuracy, *compared = fitted["facts"].tolist()
    reads = None
    if pooled is not None:
        of_pooled, of_both, *of_last = compared
        read = fitted["weight"].shape[1] // base.network.geometry.embed  # vectors side by side
        last = LastBlocks(blocks, of_last[0], of_last[1], read > 2) if of_last else None
        reads = HeadInput(_BOTH if read > 1 else None, of_pooled, of_both, last)
    head = FittedHead(ridge, temperature, accuracy, len(task.validation), images, reads)
    passes.progress.note(head.format())
    return base.with_head(fitted["weight"], fitted["bias"]), head


def _check_read(network: Network, most_blocks: int, reason: str) -> None:
    """Refuse to leave a head as it is that reads another number of blocks than was asked for."""
    if most_blocks > 1 and len(depths_in(network)) != min(most_blocks, len(network.dims)):
        raise OptionError(f"--head-blocks {most_blocks}: {reason}, or leave it out")


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


def _fit(base: Headless, task: Task, passes: Passes, pooled: slice | None, blocks: int) -> dict[str, Tensor]:
    """Weight, bias, and as `facts` ridge, temperature and accuracy, with those in cross-validation where it chose.

    They are those of what is `pooled`, of both side by side, and of both after the last `blocks`, if these are several,
    and the standard error of its difference to the better of the others.
    """
    network, classes = base.network, len(task.classes)
    if blocks > 1:
        network = with_last_blocks(network, blocks, classes)
    elif pooled is not None:
        network = Network(bare_copy(network.module), network.family)
        read_tokens(network, _BOTH)
    network.make_classifiers(classes)
    width = network.classifiers[0].in_features
    most = max(_COMPARED // classes, FOLDS)
    moments = Moments(task.train.labels, width) if max(Counter(task.train.labels).values()) > most else None
    validation, compared = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
    counts, used = Counter(task.train.labels), Counter[int]()
    shares = shares_of(torch.tensor(task.train.labels))  # fewer of a frequent class are compared

    def add(features: Tensor, labels: Tensor) -> None:
        if moments is not None:
            moments.add(features, labels)
        places = []
        for place, label in enumerate(labels.tolist()):
            before, used[label] = used[label], used[label] + 1
            share = most / max(counts[label], most)  # spread evenly over the class
            places += [place] * (int(used[label] * share) > int(before * share))
        compared.append((features[places], labels[places]))

    _pass_features(network, task.train, passes, "fit a head", add)
    _pass_features(network, task.validation, passes, "judge the head", lambda *batch: validation.append(batch))
    features, labels = (torch.cat(parts) for parts in zip(*compared, strict=True))
    read = [slice(None)]
    if pooled is not None:
        both = 2 * base.network.geometry.embed  # of the last block, whose vectors are the last
        of_pooled = slice(width - both + pooled.start, width - both + pooled.stop)
        read = [of_pooled, slice(width - both, None), *[slice(None)] * (blocks > 1)]
    crossed = []
    with passes.progress.stage("compare heads", len(read), "head") as stage:
        for part in read:
            crossed.append(cross_validate(features[:, part], labels, shares))
            stage.update(len(crossed))
    best, errors = best_head(crossed, labels, shares)
    part, chosen = read[best], crossed[best]
    if moments is None:
        regression = RidgeRegression.of_images(features[:, part], labels)
    else:
        regression = RidgeRegression.of(moments.of(part))
    features, labels = (torch.cat(parts) for parts in zip(*validation, strict=True))
    features = features[:, part]
    if moments is not None:
        chosen = choose_ridge(regression, features, labels, shares)
    weight, bias = fit_classifier(regression, chosen, shares)
    accuracy = float(((features @ weight.T + bias).argmax(1) == labels).double().mean())
    accuracies = [] if pooled is None else [each.accuracy for each in crossed]
    facts = torch.tensor([chosen.ridge, chosen.temperature, accuracy, *accuracies, *errors], dtype=torch.float64)
    return {"weight": weight.float(), "bias": bias.float(), "facts": facts}


def best_head(crossed: Sequence[ChosenRidge], labels: Tensor, shares: Tensor | None = None) -> tuple[int, list[float]]:
    """The place of the best of heads that were judged on the same images, the first among equals.

    The third, of several blocks, must be better by more than a standard error, which is returned where there is one.
    """
    best = max(range(len(crossed[:2])), key=lambda i: crossed[i].accuracy)
    errors = [gain_error(crossed[best], several, labels, shares) for several in crossed[2:]]
    if errors and crossed[2].accuracy > crossed[best].accuracy + errors[0]:
        best = 2
    return best, errors


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
