"""Modules, arrays and loaders in place of a base and a folder of images, as the public functions take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from os import PathLike
from typing import Any

from torch import nn

from edgevit.data.in_memory import write_images
from edgevit.network.checkpoint import Headless, open_network
from edgevit.network.from_module import path_of


def as_files(base: Any, options: Mapping[str, Any], function: str, data: Any = None) -> tuple[Any, dict[str, Any]]:
    """Write a module and images that are not files to the cache; return the base's path, and options with theirs.

    Images of a loader are read without resizing. Classes have the data set's names, or their numbers.

    Raises:
        TypeError: the base or the data is of another kind.
        UnsupportedModelError, DataError: as `path_of` and `write_images` say.
    """
    changed = dict(options)
    if data is not None:
        changed["data"] = data
    of_module = isinstance(base, nn.Module)
    if not (base is None or of_module or isinstance(base, (str, PathLike, type)) or is_dataclass(base)):
        raise TypeError(f"{function} takes a path, a timm name or a module, and was given a {type(base).__name__}")
    base = path_of(base, function)
    data = changed.get("data")
    if data is None or isinstance(data, (str, PathLike)):
        return base, changed
    opening = {key: changed[key] for key in ("checkpoint", "pretrained", "model_args") if key in changed}
    opened = open_network(base, **({} if of_module else opening))
    settings = {**opened.preprocessing, **{key: changed[key] for key in ("mean", "std") if changed.get(key)}}
    labelled = changed.get("output", "classes") == "classes"
    images = write_images(data, mean=settings["mean"], std=settings["std"], function=function, labelled=labelled)
    changed["data"] = images.folder
    if images.resized:
        changed.setdefault("crop_pct", 1.0)
    outputs = 0 if isinstance(opened, Headless) else opened.spec.outputs
    if labelled and outputs and not getattr(opened, "classes", None) and len(images.class_names) <= outputs:
        names = [*images.class_names, *(f"output {i}" for i in range(len(images.class_names), outputs))]
        changed.setdefault("base_classes", names)
    return base, changed
