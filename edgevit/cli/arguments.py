"""Options that several commands take, and how their text becomes values."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from edgevit.errors import OptionError
from edgevit.numbers import FINITE, check_number

# Panels of --help, in the order in which options are listed.
MODEL, DATA, PREPROCESSING = "Model", "Data", "Preprocessing, where it is not the base's own"
SHAPE, TRAINING, COMPUTING = "Method and shape", "Training", "Computing"
BOARD, OUTPUT = "Board", "Output"


def option(*names: str, panel: str, help: str, **more: Any) -> Any:
    """An option of a command: a sentence in a panel, and what else typer.Option takes."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


_BASE = "Name of a timm model, such as deit_base_patch16_224, or path of a model folder."
Base = Annotated[str, typer.Argument(help=_BASE)]
OptionalBase = Annotated[str | None, typer.Argument(help=_BASE)]
Checkpoint = Annotated[
    Path | None,
    option(panel=MODEL, help="Weights of the base, as a safetensors file or a plain state dict of PyTorch."),
]
Pretrained = Annotated[
    bool, option("--pretrained", panel=MODEL, help="Download timm's own weights of the base; needs a network.")
]
ModelArg = Annotated[
    list[str] | None,
    option(
        panel=MODEL,
        metavar="NAME=VALUE",
        help="Argument that timm makes the base with, such as img_size=32; repeatable.",
    ),
]

_IMAGES = option(
    panel=DATA,
    help="Folder of class folders, or of train/ and val/ with these, or a CIFAR folder; or the name digits.",
)
Data = Annotated[str, _IMAGES]
OptionalData = Annotated[str | None, _IMAGES]
Classes = Annotated[
    str | None,
    option(
        panel=DATA,
        help="Target classes: names or indices in the base, separated by commas, or a file of them.  "
        "[default: all classes of the data]",
    ),
]
BaseClasses = Annotated[
    Path | None,
    option(
        panel=DATA,
        help="File that says which output of the base is which class: its class names in the order of its outputs, one "
        "per line; a name that holds a comma is put in double quotes, and # begins a comment.  "
        "[default: ImageNet's order, or the alphabet's]",
    ),
]
ValidationFraction = Annotated[
    float, option(panel=DATA, help="Share of the training images that is held out for every choice that is made.")
]
SkipBadImages = Annotated[
    bool, option("--skip-bad-images", panel=DATA, help="Leave out images that cannot be read, and say how many.")
]
AcceptWeakBase = Annotated[
    bool,
    option(
        "--accept-weak-base",
        panel=DATA,
        help="Go on although the base is hardly better than chance on its own classes.",
    ),
]
Split = Annotated[str, option(panel=DATA, help="Part of the images to judge on: test or validation.")]
Mean = Annotated[
    str | None,
    option(panel=PREPROCESSING, metavar="R,G,B", help="Mean that is subtracted from pixels between 0 and 1."),
]
Std = Annotated[
    str | None, option(panel=PREPROCESSING, metavar="R,G,B", help="Standard deviation that pixels are divided by.")
]
CropPct = Annotated[
    float | None,
    option(panel=PREPROCESSING, help="Share of the image that the centre crop keeps: 0.9, or 1 for no crop."),
]
Interpolation = Annotated[
    str | None, option(panel=PREPROCESSING, help="How images are resized: bilinear, bicubic, lanczos or nearest.")
]

Shape = Annotated[
    str,
    option(
        panel=SHAPE,
        help="Which widths blocks may have: fused (attention that TensorRT fuses, in steps of 8), fused4 (in steps of "
        "4), paper (as in Vulcan's released code) or free (any).",
    ),
]
FfnMultiple = Annotated[
    int | None,
    option(
        panel=SHAPE, help="Multiple that FFN widths are rounded to: 1, 8, 16, 32 or 64.  [default: the shape's own]"
    ),
]

LearningRate = Annotated[float, option(panel=TRAINING, help="Learning rate of AdamW at its highest.")]
WeightDecay = Annotated[float, option(panel=TRAINING, help="Weight decay of AdamW.")]
Schedule = Annotated[
    str, option(panel=TRAINING, help="How the learning rate goes on: cosine (falls to 0) or constant.")
]
WarmupSteps = Annotated[
    int | None,
    option(panel=TRAINING, help="Steps in which the learning rate rises to its highest.  [default: the method's own]"),
]
ClipNorm = Annotated[
    float, option(panel=TRAINING, help="Norm that a step's gradient is shortened to; 0 leaves gradients as they are.")
]
BatchSize = Annotated[
    int, option(panel=TRAINING, help="Images per optimiser step, over all processes and micro-batches.")
]
GradAccum = Annotated[
    int, option(panel=TRAINING, help="Parts that a step is computed in, one after the other, to save memory.")
]
Precision = Annotated[str, option(panel=TRAINING, help="Precision of training: fp32, bf16 or fp16 (on a GPU only).")]
Augment = Annotated[
    str, option(panel=TRAINING, help="How training images are changed: none, crop, or flip (crop and mirror).")
]

Device = Annotated[str, option(panel=COMPUTING, help="Where torch computes: auto, cpu, cuda, cuda:1 or mps.")]
Workers = Annotated[int, option(panel=COMPUTING, help="Processes that read images; 0 reads them in this one.")]
Seed = Annotated[int, option(panel=COMPUTING, help="Seed of every random choice, the split of the images among them.")]

Board = Annotated[
    str | None, option(panel=BOARD, metavar="USER@HOST", help="A Jetson, as ssh knows it.  [default: this machine]")
]
SshConfig = Annotated[Path | None, option(panel=BOARD, help="OpenSSH configuration to use.  [default: your own]")]
ProfileName = Annotated[
    str | None,
    option("--profile", panel=BOARD, help="Board profile that must match, by name or path; its budgets become gates."),
]

Out = Annotated[Path, option(panel=OUTPUT, help="Model folder to write; it must not exist yet.")]
Overwrite = Annotated[
    bool,
    option(
        "--overwrite", panel=OUTPUT, help="Replace the model folder that --out names, once the new one is complete."
    ),
]


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
