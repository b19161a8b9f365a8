from __future__ import annotations

import shlex
from typing import Annotated

from edgevit.cli import arguments
from edgevit.cli.arguments import option
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag


def main(
    name: arguments.Base,
    *,
    checkpoint: arguments.Checkpoint = None,
    pretrained: arguments.Pretrained = False,
    model_arg: arguments.ModelArg = None,
    data: arguments.OptionalData = None,
    classes: Annotated[
        str | None,
        option(
            panel=arguments.DATA,
            help="Classes whose outputs are kept: names or indices, separated by commas, or a file of them.  "
            "[default: all]",
        ),
    ] = None,
    base_classes: arguments.BaseClasses = None,
    validation_fraction: arguments.ValidationFraction = 0.1,
    skip_bad_images: arguments.SkipBadImages = False,
    mean: arguments.Mean = None,
    std: arguments.Std = None,
    crop_pct: arguments.CropPct = None,
    interpolation: arguments.Interpolation = None,
    device: arguments.Device = "auto",
    workers: arguments.Workers = 0,
    seed: arguments.Seed = 42,
    out: arguments.Out,
    overwrite: arguments.Overwrite = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Write an unpruned base as a model folder, to export, measure and compare like a derived one.

    No image is read: --data only gives the names of the outputs. A base without a classifier gets a linear head, which
    is fitted to the images of --data.
    """
    from dataclasses import asdict

    from edgevit.derive.allocate.budget import readable
    from edgevit.derive.request import BaseRequest
    from edgevit.train.settings import Training

    console = Console(json=json, quiet=quiet, verbose=verbose)
    request = BaseRequest(
        name=name,
        out=out,
        data=data,
        classes=classes,
        checkpoint=checkpoint,
        pretrained=pretrained,
        model_args=arguments.assignments(model_arg),
        preprocessing=arguments.preprocessing(mean, std, crop_pct, interpolation),
        base_classes=base_classes,
        training=Training(device=device, workers=workers, seed=seed),
        validation_fraction=validation_fraction,
        skip_bad_images=skip_bad_images,
        overwrite=overwrite,
    )
    request.check()  # before torch is imported

    from edgevit.derive.base import run

    spec = run(request, console.progress).spec
    outputs = spec.timm_args["num_classes"]
    named = f": {', '.join(spec.class_names)}" if 0 < len(spec.classes) <= 20 else ""
    images = f" --data {shlex.quote(data)}" if data else ""
    console.show(
        f"wrote {out}: {spec.timm_name}, {outputs} of {spec.base.outputs} outputs{named}; "
        f"{readable(spec.macs)} MACs, {readable(spec.params)} parameters. "
        f"Next: edgevit export {shlex.quote(str(out))}{images}"
    )
    console.result({"folder": str(out), **asdict(spec)})
