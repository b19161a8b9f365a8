from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgevit.cli import arguments
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.errors import OptionError

if TYPE_CHECKING:
    pass

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
    out: Annotated[Path, typer.Option(help="Model folder to write; it must not exist.")],
    base: Annotated[
        str | None, typer.Argument(help="timm name, such as deit_base_patch16_224, or a model folder.")
    ] = None,
    data: arguments.OptionalData = None,
    classes: arguments.Classes = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Share of the MACs to remove.", rich_help_panel=BUDGET, parser=one_rate, metavar="FLOAT"),
    ] = None,
    macs: Annotated[str | None, typer.Option(help="MACs to keep, such as 6.8G.", rich_help_panel=BUDGET)] = None,
    params: Annotated[str | None, typer.Option(help="Parameters to keep, such as 34M.", rich_help_panel=BUDGET)] = None,
    ms: Annotated[
        float | None, typer.Option(help="Milliseconds to keep, by --cost-table.", rich_help_panel=BUDGET)
    ] = None,
    cost_table: Annotated[
        Path | None, typer.Option(help="File of what each width takes, as measured.", rich_help_panel=BUDGET)
    ] = None,
    checkpoint: arguments.Checkpoint = None,
    pretrained: arguments.Pretrained = False,
    model_arg: arguments.ModelArg = None,
    base_classes: arguments.BaseClasses = None,
    mean: arguments.Mean = None,
    std: arguments.Std = None,
    crop_pct: arguments.CropPct = None,
    interpolation: arguments.Interpolation = None,
    method: Annotated[
        str, typer.Option(help="File name in derive/methods/.", rich_help_panel=arguments.SHAPE)
    ] = "forge",
    supernet: Annotated[
        Path | None,
        typer.Option(help="For --method skd, in place of BASE; needs no --data.", rich_help_panel=arguments.SHAPE),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.OPTION=VALUE", help="Repeatable.", rich_help_panel=arguments.SHAPE),
    ] = None,
    shape: arguments.Shape = "fused",
    ffn_multiple: arguments.FfnMultiple = None,
    head: Annotated[
        str,
        typer.Option(help="subset: only the target classes; full: all of the base's.", rich_help_panel=arguments.SHAPE),
    ] = "subset",
    steps: Annotated[
        int | None,
        typer.Option(help="Optimiser steps; the method's own rule if left out.", rich_help_panel=arguments.TRAINING),
    ] = None,
    finetune_epochs: Annotated[
        int | None,
        typer.Option(
            help="Instead of --steps: passes over the training images after the cut, for --method nuwa.",
            rich_help_panel=arguments.TRAINING,
        ),
    ] = None,
    batch_size: arguments.BatchSize = 256,
    lr: arguments.LearningRate = 1e-4,
    weight_decay: arguments.WeightDecay = 0.05,
    schedule: arguments.Schedule = "cosine",
    warmup_steps: arguments.WarmupSteps = 0,
    grad_accum: arguments.GradAccum = 1,
    precision: arguments.Precision = "fp32",
    augment: arguments.Augment = "crop",
    evaluations: Annotated[
        int, typer.Option(help="How often both accuracies are taken.", rich_help_panel=arguments.TRAINING)
    ] = 10,
    early_stop: Annotated[
        bool,
        typer.Option(
            help="Stop once trained and pruned accuracy have met, or the best no longer improves; "
            "for --schedule constant.",
            rich_help_panel=arguments.TRAINING,
        ),
    ] = True,
    device: arguments.Device = "auto",
    workers: arguments.Workers = 0,
    seed: int = 42,
    validation_fraction: arguments.ValidationFraction = 0.1,
    finetune_base: Annotated[bool, typer.Option(help="Also train the unpruned base: the third baseline.")] = False,
    skip_bad_images: arguments.SkipBadImages = False,
    unlabelled: Annotated[
        Path | None,
        typer.Option(help="Folder of images of any class, to be distilled with.", rich_help_panel=arguments.TRAINING),
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(help="Share of the target classes' images that may be called `other`; none if left out."),
    ] = None,
    accept_weak_base: arguments.AcceptWeakBase = False,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted derivation.")] = False,
    overwrite: arguments.Overwrite = False,
    cache: Annotated[bool, typer.Option(help="Use and keep what derivations can share: edgevit cache.")] = True,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Derive a small class-specific model from a large base, inside a budget."""
    from edgevit.derive.options import parse_assignments
    from edgevit.derive.request import DeriveRequest
    from edgevit.derive.training import Training

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

    from edgevit.derive.pipeline import run

    derivation = run(request, console.progress)
    if not derivation.is_main:
        return  # of several processes one speaks
    spec = derivation.model.spec
    from edgevit.cli.tables import accuracy_table, blocks_table, classes_line, rejection_table

    console.show(blocks_table(derivation.model, derivation.record))
    if derivation.record["accuracy"]["derived"]:
        console.show(accuracy_table(spec, derivation.record))
        console.show(classes_line(derivation.record["accuracy"]))
    if spec.rejection is not None:
        console.show(rejection_table(spec.rejection, derivation.record))
    budget = derivation.record["budget"]
    timed = f", {budget['reached']:.4g} ms by the cost table" if budget["quantity"] == "ms" else ""
    console.show(f"wrote {out}: {100 * spec.rate:.1f} % fewer MACs{timed}. Next: edgevit export {out}")
    unpruned = out.with_name("base")
    if base is not None and not unpruned.exists():
        told = arguments.repeated(context, "base", name=base, out=unpruned)
        console.show(f"To set it against its base: {told}")
    console.result(
        {"folder": str(out), "macs": spec.macs, "params": spec.params, "rate": spec.rate, **derivation.record}
    )
