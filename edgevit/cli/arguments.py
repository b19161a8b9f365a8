"""Options that several commands take, and how their text becomes values."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from edgevit.errors import OptionError
from edgevit.numbers import FINITE, check_number

TRAINING, SHAPE = "Training", "Shape and method"  # panels of --help

Checkpoint = Annotated[Path | None, typer.Option(help="Weights of the base: safetensors, or a plain state dict.")]
Pretrained = Annotated[bool, typer.Option(help="Take timm's own weights from its hub; needs a network.")]
ModelArg = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Argument for timm, such as img_size=32; repeatable.")
]
_IMAGES = typer.Option(help="Image folder (train/ and val/, or class folders), CIFAR folder, or digits.")
Data = Annotated[str, _IMAGES]
OptionalData = Annotated[str | None, _IMAGES]
Classes = Annotated[
    str | None, typer.Option(help="Target classes: names or base indices, comma-separated, or a file; all if left out.")
]
BaseClasses = Annotated[
    Path | None,
    typer.Option(
        help="File with the base's class names in the order of its outputs, one per line, if not ImageNet's; "
        "a name that holds a comma in double quotes, and # begins a comment."
    ),
]
Mean = Annotated[str | None, typer.Option(metavar="R,G,B", help="Instead of the base's own normalisation mean.")]
Std = Annotated[str | None, typer.Option(metavar="R,G,B", help="Instead of its standard deviation.")]
CropPct = Annotated[float | None, typer.Option(help="Instead of its central share of the image.")]
Interpolation = Annotated[str | None, typer.Option(help="Instead of its interpolation: bilinear, bicubic ...")]
BatchSize = Annotated[int, typer.Option(help="Images per optimiser step, over all processes and micro-batches.")]
Workers = Annotated[int, typer.Option(help="Processes that read images.")]
Shape = Annotated[str, typer.Option(help="fused, fused4, paper or free.", rich_help_panel=SHAPE)]
FfnMultiple = Annotated[
    int | None, typer.Option(help="FFN widths are multiples of 8, 16, 32 or 64.", rich_help_panel=SHAPE)
]
LearningRate = Annotated[float, typer.Option(help="Learning rate.", rich_help_panel=TRAINING)]
WeightDecay = Annotated[float, typer.Option(rich_help_panel=TRAINING)]
Schedule = Annotated[str, typer.Option(help="constant or cosine.", rich_help_panel=TRAINING)]
WarmupSteps = Annotated[int, typer.Option(rich_help_panel=TRAINING)]
GradAccum = Annotated[int, typer.Option(help="Micro-batches per step.", rich_help_panel=TRAINING)]
Precision = Annotated[str, typer.Option(help="fp32, bf16 or fp16.", rich_help_panel=TRAINING)]
Augment = Annotated[str, typer.Option(help="none, crop, or flip (crop and mirror).", rich_help_panel=TRAINING)]
ValidationFraction = Annotated[float, typer.Option(help="Held out of the training images.")]
Device = Annotated[str, typer.Option(help="Where torch computes: auto, cpu, cuda, cuda:1, mps.")]
Board = Annotated[
    str | None,
    typer.Option(metavar="USER@HOST", help="A Jetson, as ssh knows it.  [default: this machine]"),
]
SshConfig = Annotated[Path | None, typer.Option(help="Another OpenSSH configuration than your own.")]
ProfileName = Annotated[
    str | None, typer.Option("--profile", help="Board profile that must match, by name or path; its budgets are gates.")
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace the model folder that --out names, once the new one is complete."),
]
AcceptWeakBase = Annotated[
    bool, typer.Option(help="Go on although the base is hardly better than chance on its own classes.")
]
SkipBadImages = Annotated[bool, typer.Option(help="Leave out and count images that cannot be read.")]


def kind_name(kind: type | tuple[str, ...]) -> str:
    """What an option takes, in words."""
    if isinstance(kind, tuple):
        return ", ".join(kind)
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]


def assignments(texts: list[str] | None, example: str = "--model-arg img_size=32") -> dict[str, Any]:
    """Turn `img_size=32` into {"img_size": 32}; a value that is no Python literal is text.

    Raises:
        OptionError: it is no assignment.
    """
    args: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise OptionError(f"{example.split()[0]} {text} is not of the form name=value; try {example}")
        try:
            args[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            args[name] = value
    return args


def _three(text: str, option: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    for value in values:
        check_number(f"--{option}", value, FINITE)
    if len(values) not in (1, 3):
        raise OptionError(f"--{option} {text} is not one number or three; try --{option} 0.5,0.5,0.5")
    return values * 3 if len(values) == 1 else values


def preprocessing(
    mean: str | None, std: str | None, crop_pct: float | None, interpolation: str | None
) -> dict[str, Any]:
    """Collect what replaces the base's own preprocessing, in timm's names."""
    given: dict[str, Any] = {
        "mean": None if mean is None else _three(mean, "mean"),
        "std": None if std is None else _three(std, "std"),
        "crop_pct": crop_pct,
        "interpolation": interpolation,
    }
    if any(not value > 0 for value in given["std"] or ()):
        raise OptionError(f"--std {std} is not above 0; a standard deviation is, such as 0.229,0.224,0.225")
    if crop_pct is not None and not 0 < crop_pct <= 1:
        raise OptionError(f"--crop-pct {crop_pct:g} is not in (0, 1]; 0.9 keeps the central 90 %")
    if interpolation not in (None, "nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"):
        raise OptionError(f"--interpolation {interpolation} is unknown; try bilinear or bicubic")
    return {name: value for name, value in given.items() if value is not None}


def repeated(context: typer.Context, command: str, /, **changed: Any) -> str:
    """Another edgevit command with what this one was given, as far as that one takes it, and with `changed`."""
    known: Any = context.parent.command.commands[command]  # type: ignore[union-attr]  # typer's own group
    given = {
        key: value
        for key, value in context.params.items()
        if (source := context.get_parameter_source(key)) is not None and source.name == "COMMANDLINE"
    } | changed
    words = ["edgevit", command]
    for parameter in sorted(known.params, key=lambda p: p.param_type_name == "option"):
        value = given.get(parameter.name)
        if value is None:
            continue
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            for one in value if isinstance(value, (list, tuple)) else (value,):
                words += [parameter.opts[0], str(one)]
    return shlex.join(words)
