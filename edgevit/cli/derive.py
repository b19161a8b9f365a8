from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edgevit.cli import arguments
from edgevit.cli.arguments import COMPUTING, DATA, OUTPUT, SHAPE, TRAINING, option
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.derive import method_names
from edgevit.errors import OptionError

BUDGET = "Budget (one of them)"


def one_rate(text: str) -> float:
    """One number; several are another command's."""
    try:
        return float(text)
    except ValueError:
        if "," in text:
            raise typer.BadParameter(f"several rates: edgevit sweep --rates {text} ...") from None
        raise typer.BadParameter(f"{text!r} is not a number; try 0.6") from None


def main(
    context: typer.Context,
    base: arguments.OptionalBase = None,
    *,
    checkpoint: arguments.Checkpoint = None,
    pretrained: arguments.Pretrained = False,
    model_arg: arguments.ModelArg = None,
    data: arguments.OptionalData = None,
    classes: arguments.Classes = None,
    base_classes: arguments.BaseClasses = None,
    validation_fraction: arguments.ValidationFraction = 0.1,
    skip_bad_images: arguments.SkipBadImages = False,
    accept_weak_base: arguments.AcceptWeakBase = False,
    unlabelled: Annotated[
        Path | None,
        option(panel=DATA, help="Folder of more images, of any class, on which the model imitates its teacher."),
    ] = None,
    reject: Annotated[
        float | None,
        option(
            panel=DATA,
            help="Share of the target classes' images that may be called `other`, so that images of no target class "
            "are.  [default: no image is]",
        ),
    ] = None,
    mean: arguments.Mean = None,
    std: arguments.Std = None,
    crop_pct: arguments.CropPct = None,
    interpolation: arguments.Interpolation = None,
    rate: Annotated[
        float | None,
        option(
            panel=BUDGET,
            help="Share of the base's MACs to remove: 0.6 leaves 40 %.",
            parser=one_rate,
            metavar="FLOAT",
        ),
    ] = None,
    macs: Annotated[
        str | None, option(panel=BUDGET, help="Multiply-accumulates per image to keep, such as 6.8G.")
    ] = None,
    params: Annotated[str | None, option(panel=BUDGET, help="Parameters to keep, such as 34M.")] = None,
    ms: Annotated[
        float | None, option(panel=BUDGET, help="Milliseconds per image to keep, by the table in --cost-table.")
    ] = None,
    cost_table: Annotated[
        Path | None,
        option(
            panel=BUDGET,
            help="Table of measured milliseconds per width, as benchmarks/cost_table.py writes it, for --ms.",
        ),
    ] = None,
    method: Annotated[
        str, option(panel=SHAPE, help=f"How the model is derived: {', '.join(method_names())}; see edgevit methods.")
    ] = "forge",
    set_: Annotated[
        list[str] | None,
        option(
            "--set",
            panel=SHAPE,
            metavar="METHOD.OPTION=VALUE",
            help="Option of the method, such as forge.teacher=none; edgevit methods METHOD lists all; repeatable.",
        ),
    ] = None,
    supernet: Annotated[
        Path | None,
        option(panel=SHAPE, help="Super-network to cut a slice out of, in place of BASE, for --method skd."),
    ] = None,
    shape: arguments.Shape = "fused",
    ffn_multiple: arguments.FfnMultiple = None,
    head: Annotated[
        str,
        option(
            panel=SHAPE, help="Outputs of the model: subset (the target classes alone) or full (all of the base's)."
        ),
    ] = "subset",
    steps: Annotated[
        int | None,
        option(panel=TRAINING, help="Number of optimiser steps; 0 trains nothing.  [default: the method's own rule]"),
    ] = None,
    finetune_epochs: Annotated[
        int | None,
        option(
            panel=TRAINING,
            help="Passes over the training images after the cut, in place of --steps; for --method nuwa only.",
        ),
    ] = None,
    batch_size: arguments.BatchSize = 256,
    lr: arguments.LearningRate = 1e-4,
    weight_decay: arguments.WeightDecay = 0.05,
    schedule: arguments.Schedule = "cosine",
    warmup_steps: arguments.WarmupSteps = None,
    lr_by_loss: Annotated[
        bool | None,
        option(
            "--lr-by-loss/--no-lr-by-loss",
            panel=TRAINING,
            help="Lower the learning rate for a model that is like its teacher already.  [default: the method's own]",
        ),
    ] = None,
    clip_norm: arguments.ClipNorm = 0.0,
    grad_accum: arguments.GradAccum = 1,
    precision: arguments.Precision = "fp32",
    augment: arguments.Augment = "crop",
    evaluations: Annotated[
        int, option(panel=TRAINING, help="Number of accuracy checks on the validation part during training.")
    ] = 10,
    early_stop: Annotated[
        bool,
        option(panel=TRAINING, help="Stop early when accuracy stops improving, only with --schedule constant."),
    ] = True,
    finetune_base: Annotated[
        bool,
        option(
            "--finetune-base", panel=TRAINING, help="Also train the base itself on the classes, as a third baseline."
        ),
    ] = False,
    device: arguments.Device = "auto",
    workers: arguments.Workers = 0,
    seed: arguments.Seed = 42,
    cache: Annotated[
        bool, option(panel=COMPUTING, help="Use and keep what derivations can share; edgevit cache shows it.")
    ] = True,
    out: arguments.Out,
    resume: Annotated[
        bool, option("--resume", panel=OUTPUT, help="Go on with an interrupted derivation, from its last saved step.")
    ] = False,
    overwrite: arguments.Overwrite = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Derive a small class-specific model from a large base, inside a budget."""
    from edgevit.derive.options import parse_assignments
    from edgevit.derive.request import DeriveRequest
    from edgevit.train.settings import Training

    console = Console(json=json, quiet=quiet, verbose=verbose)
    options: dict[str, Any] = dict(parse_assignments(method, set_ or ()))
    if finetune_epochs is not None:
        if method != "nuwa":
            raise OptionError(f"--finetune-epochs is for --method nuwa, and the method is {method!r}; give --steps")
        if steps is not None:
            raise OptionError("--steps and --finetune-epochs exclude each other; give one of them")
        options["finetune_epochs"] = finetune_epochs
    request = DeriveRequest(
        base=base,
        data=data,
        classes=classes,
        out=out,
        rate=rate,
        macs=macs,
        params=params,
        ms=ms,
        cost_table=cost_table,
        method=method,
        options=options,
        shape=shape,
        ffn_multiple=ffn_multiple,
        head=head,
        checkpoint=checkpoint,
        pretrained=pretrained,
        model_args=arguments.assignments(model_arg),
        preprocessing=arguments.preprocessing(mean, std, crop_pct, interpolation),
        base_classes=base_classes,
        supernet=supernet,
        training=Training(
            steps=steps,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            schedule=schedule,  # type: ignore[arg-type]  # Training.check refuses others
            warmup_steps=warmup_steps,
            lr_by_loss=lr_by_loss,
            clip_norm=clip_norm,
            grad_accum=grad_accum,
            precision=precision,  # type: ignore[arg-type]
            device=device,
            workers=workers,
            seed=seed,
            augment=augment,  # type: ignore[arg-type]
            evaluations=evaluations,
            early_stop=early_stop,
        ),
        finetune_base=finetune_base,
        validation_fraction=validation_fraction,
        skip_bad_images=skip_bad_images,
        unlabelled=unlabelled,
        reject=reject,
        accept_weak_base=accept_weak_base,
        resume=resume,
        overwrite=overwrite,
        cache=cache,
    )
    request.check()  # before torch is imported

    from edgevit.derive.session import run

    derivation = run(request, console.progress)
    if not derivation.is_main:
        return  # of several processes one speaks
    spec = derivation.model.spec
    from edgevit.cli.tables import accuracy_table, blocks_table, classes_line, rejection_table
    from edgevit.folder.derivation import DERIVATION_KIND

    record = derivation.record
    console.show(blocks_table(derivation.model, record))
    if measured := record.accuracy.derived:
        console.show(accuracy_table(spec, record.accuracy))
        console.show(classes_line(record.accuracy))
        if spec.rejection is not None and measured.rejection is not None:
            console.show(rejection_table(spec.rejection, measured.rejection))
    timed = f", {record.budget.reached:.4g} ms by the cost table" if record.budget.quantity == "ms" else ""
    console.show(f"wrote {out}: {100 * spec.rate:.1f} % fewer MACs{timed}. Next: edgevit export {out}")
    unpruned = out.with_name("base")
    if base is not None and not unpruned.exists():
        told = arguments.repeated(context, "base", name=base, out=unpruned)
        console.show(f"To set it against its base: {told}")
    console.result(
        {
            "folder": str(out),
            "macs": spec.macs,
            "params": spec.params,
            "rate": spec.rate,
            **DERIVATION_KIND.content(record),
        }
    )
