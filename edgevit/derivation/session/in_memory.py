"""Modules, arrays and loaders in place of a base and a folder of images, as the public functions take them."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from torch import nn

from edgevit.data.in_memory import PreparedImages, write_images, write_targets
from edgevit.network.from_module import path_of
from edgevit.network.model import Headless
from edgevit.network.opening import open_network
from edgevit.network.output import Map

IN_MEMORY = {"base": nn.Module, "name": nn.Module, "model": nn.Module, "data": Any}  # types besides paths


def as_files(keywords: Mapping[str, Any], function: str, *, base: str = "base") -> dict[str, Any]:
    """Write a module and images that are not files to the cache; return the keywords with their paths.

    Args:
        base: the keyword that may be a module.

    Images of a loader are read without resizing. Classes have the data set's names, or their numbers. A map
    is evaluated by targets, which a loader has in place of labels.

    Raises:
        TypeError: the base or the data is of another kind.
        UnsupportedModelError, DataError: as `path_of` and `write_images` say.
    """
    changed, module = dict(keywords), keywords.get(base)
    of_module = isinstance(module, nn.Module)
    if not (module is None or of_module or isinstance(module, (str, PathLike, type))):
        raise TypeError(f"{function} takes a path, a timm name or a module, not {type(module).__name__}")
    if module is not None:
        changed[base] = path_of(module, function)
    data = changed.get("data")
    if data is None or isinstance(data, (str, PathLike)) or module is None:
        return changed
    opening = {key: changed[key] for key in ("checkpoint", "pretrained", "model_args") if key in changed}
    options = {key: changed.get(key) for key in ("mean", "std")}
    opened = open_network(changed[base], preprocessing=options, **({} if of_module else opening))
    settings = opened.preprocessing
    prepared = PreparedImages(settings["input_size"], settings["mean"], settings["std"])
    labelled = changed.get("output", "classes") == "classes"
    if base == "model" and not isinstance(opened, Headless) and isinstance(opened.output, Map):
        images, labelled = write_targets(data, prepared, function=function), False
    else:
        images = write_images(data, prepared, function=function, labelled=labelled)
    changed["data"] = images.folder
    if images.resized:
        changed.setdefault("crop_pct", 1.0)
    outputs = 0 if isinstance(opened, Headless) else opened.spec.outputs
    if labelled and outputs and not getattr(opened, "classes", None) and len(images.class_names) <= outputs:
        names = [*images.class_names, *(f"output {i}" for i in range(len(images.class_names), outputs))]
        changed.setdefault("base_classes", names)
    return changed
