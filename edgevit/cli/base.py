from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from edgevit.cli import arguments
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag


def main(
    name: Annotated[str, typer.Argument(help="timm name, such as deit_base_patch16_224, or a model folder.")],
    out: Annotated[Path, typer.Option(help="Model folder to write; it must not exist.")],
    data: arguments.OptionalData = None,
    classes: Annotated[
        str | None, typer.Option(help="Keep these outputs alone: names or indices, comma-separated, or a file.")
    ] = None,
    checkpoint: arguments.Checkpoint = None,
    pretrained: arguments.Pretrained = False,
    model_arg: arguments.ModelArg = None,
    base_classes: arguments.BaseClasses = None,
    mean: arguments.Mean = None,
    std: arguments.Std = None,
    crop_pct: arguments.CropPct = None,
    interpolation: arguments.Interpolation = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Write an unpruned base as a model folder, to export, measure and compare like a derived one.

    No image is read: --data only gives the names of the outputs.
    """
    from dataclasses import asdict

    from edgevit.data.request import check_data
    from edgevit.folder.writing import refuse_existing
    from edgevit.models.request import check_base

    console = Console(json=json, quiet=quiet, verbose=verbose)
    model_args = arguments.assignments(model_arg)
    refuse_existing(out)  # what can be told before torch is imported
    check_base(name, checkpoint=checkpoint, pretrained=pretrained, model_args=model_args)
    if data is not None:
        check_data(data, classes, base_classes)

    from edgevit.derive.base import base
    from edgevit.derive.budget import readable

    spec = base(
        name,
        out=out,
        data=data,
        classes=classes,
        checkpoint=checkpoint,
        pretrained=pretrained,
        model_args=model_args,
        preprocessing=arguments.preprocessing(mean, std, crop_pct, interpolation),
        base_classes=base_classes,
    ).spec
    outputs = spec.timm_args["num_classes"]
    named = f": {', '.join(spec.class_names)}" if 0 < len(spec.classes) <= 20 else ""
    images = f" --data {shlex.quote(data)}" if data else ""
    console.show(
        f"wrote {out}: {spec.timm_name}, {outputs} of {spec.base.outputs} outputs{named}; "
        f"{readable(spec.macs)} MACs, {readable(spec.params)} parameters. "
        f"Next: edgevit export {shlex.quote(str(out))}{images}"
    )
    console.result({"folder": str(out), **asdict(spec)})
