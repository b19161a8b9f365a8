"""`edgevit.base`: an unpruned base as a model folder, to be exported, measured and compared with what is derived."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

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
from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.request import BaseRequest
from edgevit.derivation.session.base_check import check_opened
from edgevit.derivation.session.card import base_card
from edgevit.derivation.session.imitation import unlabelled_model
from edgevit.derivation.session.in_memory import IN_MEMORY, as_files
from edgevit.derivation.session.opening import Opened, open_for, resumable, unfinished
from edgevit.derivation.session.start import start_from
from edgevit.derivation.solve.head import open_task_for
from edgevit.errors import DataError, OptionError
from edgevit.network.classifier import with_classes
from edgevit.network.folder import save
from edgevit.network.model import Headless, Model, derived_spec
from edgevit.network.opening import open_network
from edgevit.progress import Progress, Silent, WithoutRepeats
from edgevit.records.derivation import FittedHead
from edgevit.records.model import TargetClass
from edgevit.records.unfinished import partial_folder
from edgevit.request import takes_options
from edgevit.train.compute import close_compute
from edgevit.train.settings import fill


@takes_options(BaseRequest, "name", prepare=partial(as_files, base="name"), also=IN_MEMORY)
def base(request: BaseRequest, progress: Progress | None = None) -> Model:
    """Write a base as the model folder `out`: all its outputs, or with `classes` those alone, as a derived model's.

    The names of outputs are those of `base_classes`, of a model folder that is given for `name`, or, where `data` has
    a class for every output, of the data; with `classes`, also ImageNet's. Images of `data` check that the base
    knows its classes, and that no other preprocessing makes it more accurate, as in `edgevit.derive`. A base without a
    classifier gets a linear head, fitted to these images; without `data` it is written as it is.

    Raises:
        OptionError: also of an option that there is not.
        EdgeVitError: whatever is wrong, in one line; nothing that was there is touched.
    """
    request.check()
    progress = progress or Silent()
    opened = open_network(request.name, **request.opening(), progress=progress)
    head: FittedHead | None = None
    hint: str | None = None
    output = request.output
    if output == "classes" and isinstance(opened, Model) and opened.spec.builder:
        output = opened.spec.own_output
    if output != "classes":
        model = unlabelled_model(opened, output, progress)
    elif isinstance(opened, Headless) and request.data is request.classes is request.base_classes is None:
        progress.note(f"{opened.timm_name} has no classifier: its outputs are features; to fit one give --data")
        model = opened.described()
    elif isinstance(opened, Headless):
        model, head, hint = _with_head(opened, request, progress)
    else:
        model = _with_names(opened, request, progress)
        if request.data is not None and not request.checked:
            hint = _checked(opened, model.spec.class_names, request, progress)
    origin = None if head is None else f"It was given {head.format()}."
    if (builder := model.spec.builder) is not None and builder.backbone_alone:
        origin = f"{builder.alone_text[0].upper()}{builder.alone_text[1:]}."
    if request.training.steps:
        model, choice = _trained(model, request, progress)
        origin = "\n".join(filter(None, (origin, f"{choice}.")))
    if (head is not None or request.training.steps) and (split := _split_options(request)):
        progress.warn(
            f"{request.out} has learnt from images as {split} splits them, which it does not say: give that to "
            "edgevit evaluate and edgevit derive, too, or they hold out images that it has seen"
        )
    card = base_card(request.out.name, model.spec, model.plain_loader(), origin, hint)
    save(model, request.out, overwrite=request.overwrite, card=card)
    if request.training.steps:
        shutil.rmtree(partial_folder(request.out), ignore_errors=True)
    return model


def _trained(model: Model, request: BaseRequest, progress: Progress) -> tuple[Model, str]:
    """Train a base on its classes; return that, or the base where it has less loss, and the choice as a sentence.

    Raises:
        OptionError: the classes of the base's outputs are not known.
        DataError: the data lacks one of them.
        Interrupted: Ctrl-C; the same request with `resume` goes on.
    """
    names = list(model.spec.class_names)
    if not names:
        raise OptionError("--steps trains the base on its classes, which are not known; give --base-classes FILE")
    request = replace(request, classes=names, base_classes=None)
    training = fill(replace(request.training, teacher="none"), gentle=True)
    opened = open_for(model, request, "subset", open_task_for(model, request, progress), WithoutRepeats(progress))
    whole = Budget("macs", model.spec.macs, model.spec.macs, "the whole base")
    with unfinished(request, opened.resume_key(training), opened.passes.compute) as folder:
        problem = opened.problem(whole, make_policy("fused"), training, training, folder)
        with resumable(folder, is_main=problem.compute.is_main):
            start, record = start_from("better", problem, is_trained=True)
    assert record is not None, "it trained"
    progress.note(record.format_base())
    network = start.network.cpu().eval()
    return Model(network, derived_spec(opened.base.spec, network, "subset", opened.task.classes)), record.format_base()


def _split_options(request: BaseRequest) -> str:
    """The options that split the images in another way than their defaults, as they are typed."""
    default = BaseRequest(name=request.name, out=request.out)
    options = {
        "--seed": (request.training.seed, default.training.seed),
        "--validation-fraction": (request.validation_fraction, default.validation_fraction),
        "--group-by": (request.group_by, default.group_by),
    }
    return " ".join(f"{name} {shlex.quote(str(now))}" for name, (now, usual) in options.items() if now != usual)


def _hint(opened: Opened, request: BaseRequest, progress: Progress) -> str | None:
    """The hint at other preprocessing that the user accepted; None: there is none, or a derivation checked the base.

    Raises:
        DataError: the base is near chance, or does better with other preprocessing, and that is not accepted.
    """
    if request.checked:
        return None
    return preprocessing_hint(check_opened(opened, request, progress), len(opened.task.classes))


def _checked(base: Model, names: Sequence[str], request: BaseRequest, progress: Progress) -> str | None:
    """Check the base on the classes that it shares with the data; return the hint that the user accepted."""
    assert request.data is not None
    source = open_source(request.data)
    if not names and folders_are_imagenet(source.class_names, base.spec.outputs):
        names = source.class_names
    outputs, names = len(names), [name for name in names if name in source.class_names]
    if len(names) < 2:
        if outputs:
            progress.warn(
                f"the base is not checked on images: {request.data} has {len(names)} of its {outputs} classes, and "
                "two are needed"
            )
        return None
    splitting = Splitting(source, request.validation_fraction, request.training.seed, request.group_by)
    try:
        for name in names:
            splitting.parts(name)
    except DataError as error:
        progress.warn(f"the base is not checked on images: {error}")
        return None
    request = replace(request, classes=names)
    opened = open_for(base, request, "subset", open_task_for(base, request, progress), WithoutRepeats(progress))
    hint = _hint(opened, request, progress)
    close_compute()
    return hint


def _with_head(base: Headless, request: BaseRequest, progress: Progress) -> tuple[Model, FittedHead, str | None]:
    """Fit a head for the classes of the data to a base without one; return the hint that the user accepted, too.

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
    return Model(model.cpu(), replace(model.spec, classes=opened.task.classes)), head, hint


def _with_names(opened: Model, request: BaseRequest, progress: Progress) -> Model:
    """Name the outputs of a base, as far as the names are known; restrict it to `classes` if they are given."""
    outputs = opened.spec.outputs
    source = open_source(request.data) if request.data is not None else None
    data_names = source.class_names if source else None
    names = base_list(request.base_classes, data_names or (), outputs) or opened.spec.output_names
    labels = opened.release.labels
    if names is None and (names := label_names(labels, data_names or (), outputs, whole=request.classes is None)):
        origin: ClassesFrom = "config.json"
    else:
        origin = "folders" if source and source.files else "data"
    data_names = data_names or names
    if request.classes is not None:
        model = _restricted(opened, request.classes, names, data_names)
    else:
        classes = _all_classes(names, data_names, outputs)
        model = Model(opened, replace(opened.spec, classes=classes) if classes else opened.spec)
        if source and not model.spec.classes:
            progress.warn(
                f"the data has {len(source.class_names)} classes and the base {outputs} outputs, so that it does not "
                "name them; give --base-classes FILE"
            )
    assumed = source is not None and names is None and not folders_are_imagenet(source.class_names, outputs)
    if model.spec.classes and (assumed or origin == "config.json"):
        columns = [(label.name, label.base_index) for label in model.spec.classes]
        progress.note(order_line(columns, outputs, origin))
    return model


def _all_classes(
    names: Sequence[str] | None, data_names: Sequence[str] | None, outputs: int
) -> tuple[TargetClass, ...]:
    """The class of every output; empty where they are unknown.

    Raises:
        DataError: names are given, but not one per output.
    """
    if names is None and (data_names is None or len(data_names) != outputs):
        return ()
    order = base_order(data_names or (), names, outputs)
    return tuple(TargetClass(name, order[name]) for name in names or data_names or ())


def _restricted(
    opened: Model,
    classes: str | Path | Sequence[str | int],
    names: Sequence[str] | None,
    data_names: Sequence[str] | None,
) -> Model:
    """The base with the outputs of these classes alone, in their order."""
    outputs = opened.spec.timm_args["num_classes"]
    candidates = data_names or list({i: n for n, i in imagenet_names(outputs).items()}.values())
    if not candidates:
        raise DataError(
            f"it is not known which of the base's {outputs} outputs is which class; "
            f"give its class names in order with --base-classes FILE, or images of all its classes with --data"
        )
    order = base_order(candidates, names, outputs)
    chosen = resolve(listed(classes, {*candidates, *order}), candidates, order)
    network = with_classes(opened, [c.base_index for c in chosen])
    return Model(network, derived_spec(opened.spec, network, "subset", chosen))
