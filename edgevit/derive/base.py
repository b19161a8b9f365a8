"""`edgevit.base`: an unpruned base as a model folder, to be exported, measured and compared with what is derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgevit.data.classes import base_list, base_order, imagenet_names, listed, resolve
from edgevit.data.sources import open_source
from edgevit.derive.card import base_card
from edgevit.derive.request import BaseRequest
from edgevit.errors import DataError
from edgevit.folder.model import ClassLabel
from edgevit.models.checkpoint import Model, derived_spec, open_base, save
from edgevit.models.classifier import with_classes


def base(
    name: str | Path,
    *,
    out: str | Path,
    data: str | Path | None = None,
    classes: str | Path | Sequence[str | int] | None = None,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    base_classes: str | Path | Sequence[str] | None = None,
    overwrite: bool = False,
) -> Model:
    """Write a base as the model folder `out`: all its outputs, or with `classes` those alone, as a derived model's.

    The names of outputs are those of `base_classes`, of a model folder that is given for `name`, or, where `data` has
    a class for every output, of the data; with `classes`, also ImageNet's. No image is read.

    Raises:
        EdgeVitError: whatever is wrong, in one line; nothing that was there is touched.
    """
    request = BaseRequest(
        name=name,
        out=Path(out),
        data=data,
        classes=classes,
        checkpoint=checkpoint,
        pretrained=pretrained,
        model_args=model_args or {},
        preprocessing=preprocessing or {},
        base_classes=base_classes,
        overwrite=overwrite,
    )
    return run(request)


def run(request: BaseRequest) -> Model:
    """Do what is asked; `base` says what is raised."""
    request.check()
    opened = open_base(
        request.name,
        checkpoint=request.checkpoint,
        pretrained=request.pretrained,
        model_args=request.model_args,
        preprocessing=request.preprocessing,
    )
    outputs = opened.spec.timm_args["num_classes"]
    found = open_source(request.data).class_names if request.data is not None else None
    given = base_list(request.base_classes, found or (), outputs) or opened.spec.output_names
    found = found or given
    if request.classes is None:
        names = _all_names(given, found, outputs)
        model = Model(opened.network, replace(opened.spec, classes=names) if names else opened.spec)
    else:
        model = _restricted(opened, request.classes, given, found)
    save(model, request.out, {"README.md": base_card(request.out.name, model.spec)}, overwrite=request.overwrite)
    return model


def _all_names(given: Sequence[str] | None, found: Sequence[str] | None, outputs: int) -> tuple[ClassLabel, ...]:
    """The name of every output; nothing where they are not known.

    Raises:
        DataError: names were given, and not one per output.
    """
    if given is None and (found is None or len(found) != outputs):
        return ()
    order = base_order(found or (), given, outputs)
    return tuple(ClassLabel(name, order[name]) for name in given or found or ())


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
    labels = tuple(ClassLabel(c.name, c.base_index) for c in chosen)
    return Model(network, derived_spec(opened.spec, network, "subset", labels))
