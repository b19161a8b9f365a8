"""What is asked of `export` and `evaluate`, checked before torch is imported: by names, numbers and paths alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from edgevit.data.request import check_data
from edgevit.errors import CheckpointError, OptionError, UnknownNameError
from edgevit.models.device import check_device_name
from edgevit.models.request import check_base, check_model_folder
from edgevit.numbers import COUNT, check_number

Part = Literal["test", "validation"]
PARTS: tuple[Part, ...] = ("test", "validation")
OPSETS = range(17, 21)  # 17 brings LayerNormalization; JetPack 6's parser reads up to 20


def check_part(part: str) -> None:
    """Raise UnknownNameError if the data has no such part to judge on."""
    if part not in PARTS:
        raise UnknownNameError("part of the data", part, PARTS)


def check_judging(
    data: str | Path | None,
    classes: str | Path | Sequence[str | int] | None = None,
    base_classes: str | Path | Sequence[str] | None = None,
    *,
    part: str,
    max_images: int | None,
    batch_size: int,
    device: str,
) -> None:
    """Refuse images, and ways to judge a model on them, that cannot be.

    Raises:
        UnknownNameError: no such part, device or class.
        OptionError: a number out of range.
        DataError: the images, or a file of classes, are not there.
    """
    check_part(part)
    check_device_name(device)
    check_number("--batch-size", batch_size, COUNT)
    if max_images is not None:
        check_number("--max-images", max_images, COUNT)
    if data is not None:
        check_data(data, classes, base_classes)


def check_judged(
    model: str | Path,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a model in whatever form, a timm name, a folder or an .onnx file, that cannot be opened.

    Raises:
        CheckpointError: it is not there, or has no weights.
        OptionError: options that do not go with it.
    """
    if Path(model).suffix != ".onnx":
        check_base(model, checkpoint=checkpoint, pretrained=pretrained, model_args=model_args)
        return
    given = {
        "checkpoint": checkpoint, "pretrained": pretrained, "model_args": model_args, "preprocessing": preprocessing,
    }  # fmt: skip
    if extra := [name for name, value in given.items() if value]:
        raise OptionError(f"{model} brings its own weights and preprocessing; leave out {', '.join(extra)}")
    if not Path(model).is_file():
        raise CheckpointError(f"there is no {model}; check the path, or write it with edgevit export")


def check_export(model: str | Path, *, batch: int | Literal["dynamic"], opset: int) -> None:
    """Refuse an export that cannot be made.

    Raises:
        CheckpointError: there is no whole model folder.
        OptionError: a number out of range.
    """
    if batch != "dynamic" and (not isinstance(batch, int) or batch < 1):
        raise OptionError(f"batch {batch!r} is neither a number of images nor 'dynamic'; try 1")
    if opset not in OPSETS:
        raise OptionError(
            f"opset {opset} is not one of {OPSETS[0]} to {OPSETS[-1]}, which JetPack's parsers read; try 20"
        )
    check_model_folder(model)
