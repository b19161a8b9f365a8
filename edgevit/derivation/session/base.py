"""`edgevit.base`: an unpruned base as a model folder, to be exported, measured and compared with what is derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgevit.data.assumptions import ClassesFrom, order_line
from edgevit.data.classes import (
    base_list,
    base_order,
    folders_are_imagenet,
    imagenet_names,
    label_names,
    listed,
    resolve,
)
from edgevit.data.neighbours import preprocessing_hint
from edgevit.data.sources import open_source
from edgevit.data.splitting import Splitting
from edgevit.derivation.request import BaseRequest
from edgevit.derivation.session.base_check import check_opened
from edgevit.derivation.session.card import base_card
from edgevit.derivation.session.opening import Opened, open_for
from edgevit.derivation.solve.head import open_task_for
from edgevit.errors import DataError
from edgevit.network.checkpoint import Headless, Model, derived_spec, open_network, save
from edgevit.network.classifier import with_classes
from edgevit.network.families import load_family
from edgevit.progress import OnlyOnce, Progress, Silent
from edgevit.records.derivation import FittedHead
from edgevit.records.model import TargetClass
from edgevit.request import as_request, takes_options
from edgevit.train.compute import close_compute
from edgevit.train.settings import Training


@takes_options(BaseRequest)
def base(name: str | Path | BaseRequest | None = None, *, progress: Progress | None = None, **options: Any) -> Model:
    """Write a base as the model folder `out`: all its outputs, or with `classes` those alone, as a derived model's.

    The names of outputs are those of `base_classes`, of a model folder that is given for `name`, or, where `data` has
    a class for every output, of the data; with `classes`, also ImageNet's. On images of `data` it is seen that the base
    knows its classes and is right on no more of them with other preprocessing, as `edgevit.derive` does; to a base
    without a classifier a linear head is fitted.

    Args:
        name: a timm name, a model folder, or a whole request.
        options: the fields of `BaseRequest`.

    Raises:
        OptionError: also of an option that there is not.
        EdgeVitError: whatever is wrong, in one line; nothing that was there is touched.
    """
    return run(as_request(BaseRequest, "name", name, options), progress)


def run(request: BaseRequest, progress: Progress | None = None) -> Model:
    """Do what is asked; `base` says what is raised."""
    request.check()
    progress = progress or Silent()
    found = open_network(request.name, **request.opening(), progress=progress)
    head: FittedHead | None = None
    hint: str | None = None
    if isinstance(found, Headless):
        model, head, hint = _with_head(found, request, progress)
    else:
        model = _as_asked(found, request, progress)
        if request.data is not None and not request.checked:
            hint = _checked(found, model.spec.class_names, request, progress)
    loader = load_family(model.spec.family).plain_loader(model.network)
    card = base_card(request.out.name, model.spec, loader, None if head is None else head.format(), hint)
    save(model, request.out, overwrite=request.overwrite, card=card)
    return model


def _hint(opened: Opened, request: BaseRequest, progress: Progress) -> str | None:
    """The accepted hint at other preprocessing; None: there is none, or a derivation has checked the base.

    Raises:
        DataError: the base is near chance, or does better with other preprocessing, and that is not accepted.
    """
    if request.checked:
        return None
    return preprocessing_hint(check_opened(opened, request, progress), len(opened.task.classes))


def _checked(found: Model, names: Sequence[str], request: BaseRequest, progress: Progress) -> str | None:
    """The accepted hint at other preprocessing, from images of the classes that both the data and the base have."""
    assert request.data is not None
    source = open_source(request.data)
    if not names and folders_are_imagenet(source.class_names, found.spec.outputs):
        names = source.class_names
    names = [name for name in names if name in source.class_names]
    splitting = Splitting(source, request.validation_fraction, request.training.seed, request.group_by)
    try:
        for name in names:
            splitting.parts(name)
    except DataError as error:
        progress.warn(f"the base is not checked on images: {error}")
        return None
    if len(names) < 2:
        return None
    request = replace(request, classes=names)
    opened = open_for(found, request, "subset", open_task_for(found, request, progress), OnlyOnce(progress))
    hint = _hint(opened, request, progress)
    close_compute()
    return hint


def _with_head(base: Headless, request: BaseRequest, progress: Progress) -> tuple[Model, FittedHead, str | None]:
    """A base without a head with one for the classes of the data, and the accepted hint at other preprocessing.

    Raises:
        DataError: there is no data, or too little.
    """
    if request.data is None:
        raise DataError(
            f"{base.timm_name} has no classifier; give --data, images of the classes that a head is to be fitted to"
        )
    task = open_task_for(base, request, progress)
    opened = open_for(base, request, "subset", task, progress)
    model, head, hint = opened.base, opened.fitted, _hint(opened, request, progress)
    close_compute()
    assert head is not None
    if request.training.seed != Training().seed and "test" not in task.test.source.parts:
        progress.warn(
            f"the head was fitted to images as --seed {request.training.seed} splits them, which {request.out} does "
            "not say: give that to edgevit evaluate and edgevit derive, too, or they hold out images that it has seen"
        )
    return Model(model.network.cpu(), replace(model.spec, classes=opened.task.classes)), head, hint


def _as_asked(opened: Model, request: BaseRequest, progress: Progress) -> Model:
    """A base with the names of its outputs, as far as they are known, or with those of `classes` alone."""
    outputs = opened.spec.outputs
    source = open_source(request.data) if request.data is not None else None
    found = source.class_names if source else None
    given = base_list(request.base_classes, found or (), outputs) or opened.spec.output_names
    labels = opened.release.labels
    if given is None and (given := label_names(labels, found or (), outputs, whole=request.classes is None)):
        origin: ClassesFrom = "config.json"
    else:
        origin = "folders" if source and source.files else "data"
    found = found or given
    if request.classes is not None:
        model = _restricted(opened, request.classes, given, found)
    else:
        names = _all_names(given, found, outputs)
        model = Model(opened.network, replace(opened.spec, classes=names) if names else opened.spec)
        if source and not model.spec.classes:
            progress.warn(
                f"the data has {len(source.class_names)} classes and the base {outputs} outputs, so that it does not "
                "name them; give --base-classes FILE"
            )
    assumed = source is not None and given is None and not folders_are_imagenet(source.class_names, outputs)
    if model.spec.classes and (assumed or origin == "config.json"):
        columns = [(label.name, label.base_index) for label in model.spec.classes]
        progress.note(order_line(columns, outputs, origin))
    return model


def _all_names(given: Sequence[str] | None, found: Sequence[str] | None, outputs: int) -> tuple[TargetClass, ...]:
    """The name of every output; nothing where they are not known.

    Raises:
        DataError: names were given, and not one per output.
    """
    if given is None and (found is None or len(found) != outputs):
        return ()
    order = base_order(found or (), given, outputs)
    return tuple(TargetClass(name, order[name]) for name in given or found or ())


def _restricted(
    opened: Model,
    classes: str | Path | Sequence[str | int],
    given: Sequence[str] | None,
    found: Sequence[str] | None,
) -> Model:
    """The base with the outputs of these classes alone, in their order."""
    outputs = opened.spec.timm_args["num_classes"]
    known = found or list({i: n for n, i in imagenet_names(outputs).items()}.values())
    if not known:
        raise DataError(
            f"it is not known which of the base's {outputs} outputs is which class; "
            f"give its class names in order with --base-classes FILE, or images of all its classes with --data"
        )
    order = base_order(known, given, outputs)
    chosen = resolve(listed(classes, {*known, *order}), known, order)
    network = with_classes(opened.network, [c.base_index for c in chosen])
    return Model(network, derived_spec(opened.spec, network, "subset", chosen))
