"""Options of a base, checked by paths before torch is imported."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from edgevit.errors import CheckpointError, OptionError, UnsupportedModelError
from edgevit.network.arguments import check_arguments
from edgevit.network.builder import check_builder, is_builder
from edgevit.numbers import FINITE, check_number
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import WEIGHTS_ALONE, suffix_of
from edgevit.records.release import CONFIG, is_release, weights_of
from edgevit.request import MODEL, PREPROCESSING, Given, Nested, Option, assignments

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")

BASE = Option(
    "Name of a model of timm or torchvision, such as deit_base_patch16_224 or vit_b_16; path of a model folder or of "
    "weights; or FILE.py:FUNCTION, which builds a module.",
    None,
)
_HUBS, _LOCAL = ("hf-hub:", "hf_hub:"), "local-dir:"


def three(option: str) -> Callable[[str, Given], list[float]]:
    """Read three numbers, one per colour, or one for all."""

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
        "Argument for timm's constructor of the base, such as img_size=32; repeatable.",
        MODEL,
        name="--model-arg",
        metavar="NAME=VALUE",
        repeated=True,
        read=assignments("--model-arg", "img_size=32"),
    ),
]


@dataclass(frozen=True)
class GivenPreprocessing:
    """Overrides of the preprocessing of the base, in timm's names."""

    mean: Annotated[
        list[float] | None,
        Option("Mean to subtract from pixels between 0 and 1.", PREPROCESSING, metavar="R,G,B", read=three("--mean")),
    ] = None
    std: Annotated[
        list[float] | None,
        Option("Standard deviation to divide pixels by.", PREPROCESSING, metavar="R,G,B", read=three("--std")),
    ] = None
    crop_pct: Annotated[
        float | None,
        Option("Share of the image that the centre crop keeps: 0.9, or 1 for no crop.", PREPROCESSING),
    ] = None
    interpolation: Annotated[
        str | None, Option("Interpolation for resizing: bilinear, bicubic, lanczos or nearest.", PREPROCESSING)
    ] = None
    exif: Annotated[
        str | None,
        Option(
            "Treatment of the EXIF orientation: apply, or ignore (as timm and torchvision do).  [default: ignore]",
            PREPROCESSING,
        ),
    ] = None
    value_range: Annotated[
        float | None,
        Option(
            "Pixel value of white in images deeper than 8 bits, such as 4095 for 12 bits.  [default: the format's own]",
            PREPROCESSING,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BaseOptions:
    """Options of opening a base."""

    checkpoint: Annotated[
        Path | str | None,
        Option(
            "Weights of the base: safetensors, a PyTorch state dict, or a folder written by timm or transformers. "
            "config.json, preprocessor_config.json and processor_config.json beside the weights are read as well.",
            MODEL,
            common=True,
        ),
    ] = None
    pretrained: Annotated[
        bool,
        Option(
            "Download the pretrained weights of the base: timm's, torchvision's, or those of hf-hub:OWNER/NAME.",
            MODEL,
            common=True,
        ),
    ] = False
    model_args: ModelArgs = field(default_factory=dict)
    preprocessing: Annotated[Mapping[str, Any], Nested(GivenPreprocessing)] = field(default_factory=dict)

    def opening(self) -> dict[str, Any]:
        """The arguments of `open_network`, of which some requests have no new head."""
        names = ("checkpoint", "pretrained", "model_args", "preprocessing", "new_head")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def check_base(self, base: str | Path) -> None:
        """Check that the base can be opened with these options; see `check_openable`."""
        check_preprocessing(self.preprocessing)
        check_openable(base, checkpoint=self.checkpoint, pretrained=self.pretrained, model_args=self.model_args)


def check_preprocessing(settings: Given) -> None:
    """Raise OptionError for invalid settings of a preprocessing."""
    for name in ("mean", "std"):
        for value in settings.get(name) or ():
            check_number(f"--{name}", value, FINITE)
            if name == "std" and not value > 0:
                raise OptionError(f"--std {value:g} is not above 0; a standard deviation is, such as 0.229,0.224,0.225")
            if abs(value) > 1:
                raise OptionError(
                    f"--{name} {value:g} is of pixels up to 255, and here they lie in [0, 1]; divide by 255"
                )
    if (crop := settings.get("crop_pct")) is not None:
        check_number("--crop-pct", crop, "(0, 1]", "0.9 keeps the central 90 %")
    if (interpolation := settings.get("interpolation")) is not None and interpolation not in _INTERPOLATIONS:
        raise OptionError(f"--interpolation {interpolation} is unknown; try bilinear or bicubic")
    if (exif := settings.get("exif")) is not None and exif not in ("ignore", "apply"):
        raise OptionError(f"--exif {exif} is unknown; it is apply or ignore")
    if (value_range := settings.get("value_range")) is not None:
        check_number("--value-range", value_range, "(0, inf)", "4095 is white of 12 bits")


def check_model_folder(folder: str | Path) -> None:
    """Check that a model folder is complete and has a valid model.json.

    Raises:
        CheckpointError: it is not.
    """
    folder = Path(folder)
    if not folder.is_dir():
        fault = "is a file, not a model folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder} {fault}; check the path of the model folder")
    files = ModelFolder(folder)
    if files.is_imported:
        raise CheckpointError(
            f"{folder} holds an ONNX file, which can be exported, measured and evaluated, and not derived from; give "
            "what it was made of, such as a timm name with --checkpoint"
        )
    for file in (files.spec_file, files.weights_file):
        if not file.is_file():
            hint = "derive it again"
            if files.weights_file.is_file():
                hint = f"copy it, or of weights that timm or transformers wrote their {CONFIG}, or derive it again"
            raise CheckpointError(f"{folder} is not a complete model folder: {file.name} is missing; {hint}")
    files.document()


def hub_repository(base: str | Path) -> str | None:
    """Return OWNER/NAME of hf-hub:OWNER/NAME; None for timm's own, which timm itself reads, and for other bases."""
    hub = next((hub for hub in _HUBS if str(base).startswith(hub)), None)
    if hub is None or os.path.exists(base) or (name := str(base).removeprefix(hub)).startswith("timm/"):
        return None
    return name


def plain_base(base: str | Path, *, downloads: bool = True) -> str | Path:
    """Remove the prefix of a hub from timm's name: NAME of timm/NAME and hf-hub:timm/NAME.

    Args:
        downloads: whether the command has --pretrained, as the message says it.

    Raises:
        CheckpointError: it is a repository of another owner.
    """
    text = str(base)
    if os.path.exists(text):
        return base
    if text.startswith(_LOCAL):
        return Path(text.removeprefix(_LOCAL))
    name = text
    for hub in _HUBS:
        name = name.removeprefix(hub)
    if name.startswith("timm/") and name.count("/") == 1:
        return name.removeprefix("timm/")
    if name != text:
        means = "with --pretrained alone; give it, or get them by" if downloads else "by other commands; get them by"
        raise CheckpointError(
            f"{text} is a repository whose files are downloaded {means} "
            f"`hf download {shlex.quote(name)} --local-dir DIR`, and give DIR"
        )
    return base


def check_openable(
    base: str | Path,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
) -> None:
    """Check that a base can be opened, except for its name, as timm imports torch.

    Raises:
        CheckpointError: no such model folder or weights, or no weights are given.
        OptionError: options exclude each other, or an argument is unknown.
        UnsupportedModelError: no family supports networks of this name.
    """
    check_arguments(model_args or {})
    if pretrained and hub_repository(base) is not None:
        if checkpoint is not None:
            raise OptionError(f"{base} is weights itself; leave --checkpoint out")
        return
    base = plain_base(base)
    if is_builder(base):
        check_builder(base, pretrained=pretrained, model_args=model_args or ())
        if checkpoint is not None:
            weights_of(Path(checkpoint))
        return
    if is_release(Path(base)):
        if checkpoint or pretrained:
            raise OptionError(f"{base} is weights itself; leave --checkpoint and --pretrained out")
        weights_of(Path(base))
        return
    if Path(base).is_dir():
        if checkpoint or pretrained or model_args:
            raise OptionError(
                f"{base} is a model folder and brings its own weights and arguments; leave those options out"
            )
        check_model_folder(base)
        return
    if suffix_of(base) == ".onnx":
        raise CheckpointError(
            f"{base} is an ONNX file, which can be exported, measured and evaluated, and not derived from; give the "
            "weights that it was made of"
        )
    if Path(base).is_file():
        raise CheckpointError(
            f"{base} is a file, and no weights by its name ({', '.join(WEIGHTS_ALONE)}); check the path"
        )
    if os.sep in str(base):
        raise CheckpointError(f"no model folder at {base}; check the path")
    if str(base).startswith("naflexvit"):
        raise UnsupportedModelError(
            f"cannot prune {base}: timm's NaFlexVit packs images of any size, which edgevit cannot read; try "
            "vit_base_patch16_224"
        )
    if checkpoint is not None:
        if pretrained:
            raise OptionError("--checkpoint and --pretrained exclude each other; give one of them")
        weights_of(Path(checkpoint))
    elif pretrained and (model_args or {}).get("num_classes"):  # 0: without
        raise OptionError(
            "--pretrained weights bring their own classifier; leave num_classes out, or give --checkpoint"
        )
    elif not pretrained:
        raise CheckpointError(
            f"{base} is no folder here, and a network of timm's needs weights: give --checkpoint FILE, or --pretrained "
            "where there is a connection"
        )
