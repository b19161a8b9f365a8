"""What is given as a model, checked before torch is imported: by paths alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from edgevit.errors import CheckpointError, OptionError
from edgevit.folder.model_folder import ModelFolder
from edgevit.numbers import FINITE, check_number
from edgevit.request import MODEL, PREPROCESSING, Given, Nested, Option, assignments

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")

BASE = Option("Name of a timm model, such as deit_base_patch16_224, or path of a model folder.", None)


def three(option: str) -> Callable[[str, Given], list[float]]:
    """Read three numbers, one for each colour, or one for all of them."""

    def read(text: str, _: Given) -> list[float]:
        try:
            values = [float(part) for part in text.split(",")]
        except ValueError:
            values = []
        if len(values) not in (1, 3):
            raise OptionError(f"{option} {text} is not one number or three; try {option} 0.5,0.5,0.5")
        return values * 3 if len(values) == 1 else values

    return read


ModelArgs = Annotated[
    Mapping[str, Any],
    Option(
        "Argument that timm makes the base with, such as img_size=32; repeatable.",
        MODEL,
        name="--model-arg",
        metavar="NAME=VALUE",
        repeated=True,
        read=assignments("--model-arg", "img_size=32"),
    ),
]


@dataclass(frozen=True)
class GivenPreprocessing:
    """What may take the place of the base's own preprocessing, in timm's names."""

    mean: Annotated[
        list[float] | None,
        Option(
            "Mean that is subtracted from pixels between 0 and 1.",
            PREPROCESSING,
            metavar="R,G,B",
            read=three("--mean"),
        ),
    ] = None
    std: Annotated[
        list[float] | None,
        Option(
            "Standard deviation that pixels are divided by.",
            PREPROCESSING,
            metavar="R,G,B",
            read=three("--std"),
        ),
    ] = None
    crop_pct: Annotated[
        float | None,
        Option("Share of the image that the centre crop keeps: 0.9, or 1 for no crop.", PREPROCESSING),
    ] = None
    interpolation: Annotated[
        str | None, Option("How images are resized: bilinear, bicubic, lanczos or nearest.", PREPROCESSING)
    ] = None
    exif: Annotated[
        str | None,
        Option(
            "Whether pictures that a camera stored turned are put upright: apply, or ignore, as timm and torchvision.  "
            "[default: ignore]",
            PREPROCESSING,
        ),
    ] = None
    value_range: Annotated[
        float | None,
        Option(
            "The value of white in pictures deeper than 8 bits, such as 4095 for 12 bits in a PNG of 16.  "
            "[default: the format's own]",
            PREPROCESSING,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BaseOptions:
    """How a base is opened."""

    checkpoint: Annotated[
        Path | str | None,
        Option("Weights of the base, as a safetensors file or a plain state dict of PyTorch.", MODEL),
    ] = None
    pretrained: Annotated[bool, Option("Download timm's own weights of the base; needs a network.", MODEL)] = False
    model_args: ModelArgs = field(default_factory=dict)
    preprocessing: Annotated[Mapping[str, Any], Nested(GivenPreprocessing)] = field(default_factory=dict)

    def opening(self) -> dict[str, Any]:
        """The arguments with which `open_base` opens it."""
        names = ("checkpoint", "pretrained", "model_args", "preprocessing")
        return {name: getattr(self, name) for name in names}

    def check_base(self, base: str | Path) -> None:
        """Refuse a base that cannot be opened with these options; see `check_openable`."""
        check_preprocessing(self.preprocessing)
        check_openable(base, checkpoint=self.checkpoint, pretrained=self.pretrained, model_args=self.model_args)


def check_preprocessing(given: Given) -> None:
    """Raise OptionError if images cannot be preprocessed so."""
    for name in ("mean", "std"):
        for value in given.get(name) or ():
            check_number(f"--{name}", value, FINITE)
            if name == "std" and not value > 0:
                raise OptionError(f"--std {value:g} is not above 0; a standard deviation is, such as 0.229,0.224,0.225")
            if abs(value) > 1:
                raise OptionError(
                    f"--{name} {value:g} is of pixels up to 255, and here they lie in [0, 1]; divide by 255"
                )
    if (crop := given.get("crop_pct")) is not None:
        check_number("--crop-pct", crop, "(0, 1]", "0.9 keeps the central 90 %")
    if (how := given.get("interpolation")) is not None and how not in INTERPOLATIONS:
        raise OptionError(f"--interpolation {how} is unknown; try bilinear or bicubic")
    if (exif := given.get("exif")) is not None and exif not in ("ignore", "apply"):
        raise OptionError(f"--exif {exif} is unknown; it is apply or ignore")
    if (value_range := given.get("value_range")) is not None:
        check_number("--value-range", value_range, "(0, inf)", "4095 is white of 12 bits")


def check_model_folder(folder: str | Path) -> None:
    """Refuse a model folder that is not there, lacks a file, or has a model.json that contradicts itself.

    Raises:
        CheckpointError: it is.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file, not a model folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder} {what}; check the path of the model folder")
    files = ModelFolder(folder)
    if files.is_imported:
        raise CheckpointError(
            f"{folder} holds an ONNX file, which can be exported, measured and evaluated, and not derived from; give "
            "what it was made of, such as a timm name with --checkpoint"
        )
    for file in (files.spec_file, files.weights_file):
        if not file.is_file():
            raise CheckpointError(f"{folder} is not a complete model folder: {file.name} is missing; derive it again")
    files.document()


def check_openable(
    base: str | Path,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a base that cannot be opened. Whether timm knows its name takes timm, and that imports torch.

    Raises:
        CheckpointError: no such model folder or weights, or no weights are given at all.
        OptionError: options that exclude each other.
    """
    if Path(base).is_dir():
        if checkpoint or pretrained or model_args:
            raise OptionError(
                f"{base} is a model folder and brings its own weights and arguments; leave those options out"
            )
        check_model_folder(base)
        return
    if Path(base).is_file():
        raise CheckpointError(
            f"{base} is a file, not a model folder; if it holds weights, give timm's name of the network in its place, "
            f"and --checkpoint {shlex.quote(str(base))}"
        )
    if os.sep in str(base):
        raise CheckpointError(f"no model folder at {base}; check the path")
    if checkpoint is not None:
        if pretrained:
            raise OptionError("--checkpoint and --pretrained exclude each other; give one of them")
        if not Path(checkpoint).is_file():
            raise CheckpointError(f"no weights at {checkpoint}; check the path")
    elif pretrained and (model_args or {}).get("num_classes"):  # 0 leaves it out
        raise OptionError(
            "--pretrained weights bring their own classifier; leave num_classes out, or give --checkpoint"
        )
    elif not pretrained:
        raise CheckpointError(
            f"{base} is no folder here, and a network of timm's needs weights: give --checkpoint FILE, or --pretrained "
            "where there is a connection"
        )
