from __future__ import annotations

from typing import Annotated

from edgevit.cli import arguments
from edgevit.cli.arguments import OUTPUT, SHAPE, TRAINING, option
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag


def main(
    base: arguments.Base,
    *,
    checkpoint: arguments.Checkpoint = None,
    pretrained: arguments.Pretrained = False,
    model_arg: arguments.ModelArg = None,
    data: arguments.Data,
    classes: arguments.Classes = None,
    base_classes: arguments.BaseClasses = None,
    validation_fraction: arguments.ValidationFraction = 0.1,
    skip_bad_images: arguments.SkipBadImages = False,
    accept_weak_base: arguments.AcceptWeakBase = False,
    mean: arguments.Mean = None,
    std: arguments.Std = None,
    crop_pct: arguments.CropPct = None,
    interpolation: arguments.Interpolation = None,
    smallest: Annotated[
        float,
        option(
            "--smallest-rate",
            panel=SHAPE,
            help="How much smaller than the base the smallest slice is, in MACs: 0.75 leaves a quarter.",
        ),
    ] = 0.75,
    rate: Annotated[
        float | None, option("--rate", panel=SHAPE, help="Earlier name of --smallest-rate.", hidden=True)
    ] = None,
    set_: Annotated[
        list[str] | None,
        option(
            "--set",
            panel=SHAPE,
            metavar="supernet.OPTION=VALUE",
            help="How it is made, such as supernet.points=5; edgevit methods supernet lists all; repeatable.",
        ),
    ] = None,
    shape: arguments.Shape = "fused",
    ffn_multiple: arguments.FfnMultiple = None,
    steps: Annotated[
        int | None,
        option(panel=TRAINING, help="Number of optimiser steps.  [default: supernet.epochs passes over the images]"),
    ] = None,
    batch_size: arguments.BatchSize = 256,
    lr: arguments.LearningRate = 1e-4,
    weight_decay: arguments.WeightDecay = 0.05,
    schedule: arguments.Schedule = "cosine",
    warmup_steps: arguments.WarmupSteps = None,
    clip_norm: arguments.ClipNorm = 0.0,
    grad_accum: arguments.GradAccum = 1,
    precision: arguments.Precision = "fp32",
    augment: arguments.Augment = "crop",
    evaluations: Annotated[
        int,
        option(
            panel=TRAINING, help="Number of accuracy checks of the whole network and its smallest slice in training."
        ),
    ] = 10,
    device: arguments.Device = "auto",
    workers: arguments.Workers = 0,
    seed: arguments.Seed = 42,
    out: arguments.Out,
    resume: Annotated[
        bool, option("--resume", panel=OUTPUT, help="Go on with an interrupted training, from its last saved step.")
    ] = False,
    overwrite: arguments.Overwrite = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Train one network from which models of every size are cut at once: edgevit derive --method skd."""
    from edgevit.derive.options import parse_assignments
    from edgevit.derive.request import SupernetRequest
    from edgevit.train.settings import Training

    console = Console(json=json, quiet=quiet, verbose=verbose)
    request = SupernetRequest(
        base=base,
        data=data,
        out=out,
        classes=classes,
        rate=smallest if rate is None else rate,
        options=parse_assignments("supernet", set_ or ()),
        shape=shape,
        ffn_multiple=ffn_multiple,
        checkpoint=checkpoint,
        pretrained=pretrained,
        model_args=arguments.assignments(model_arg),
        preprocessing=arguments.preprocessing(mean, std, crop_pct, interpolation),
        base_classes=base_classes,
        training=Training(
            steps=steps,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            schedule=schedule,  # type: ignore[arg-type]  # Training.check refuses others
            warmup_steps=warmup_steps,
            clip_norm=clip_norm,
            grad_accum=grad_accum,
            precision=precision,  # type: ignore[arg-type]
            device=device,
            workers=workers,
            seed=seed,
            augment=augment,  # type: ignore[arg-type]
            evaluations=evaluations,
        ),
        validation_fraction=validation_fraction,
        skip_bad_images=skip_bad_images,
        accept_weak_base=accept_weak_base,
        resume=resume,
        overwrite=overwrite,
    )
    request.check()  # before torch is imported

    from edgevit.derive.supernet import run

    made = run(request, console.progress)
    if not made.is_main:
        return  # of several processes one speaks
    from edgevit.cli.show import curve_table

    console.show(curve_table(made.record))
    middle = made.curve[-1].rate / 2
    console.show(f"wrote {out}. Next: edgevit derive --method skd --supernet {out} --rate {middle:.2g} --out DIR")
    from edgevit.folder.supernet import SUPERNET_KIND

    console.result({"folder": str(out), **SUPERNET_KIND.content(made.record)})
