from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgevit.cli import arguments
from edgevit.cli.arguments import COMPUTING, DATA, option
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.export.evaluate import Evaluation
    from edgevit.folder.derivation import RejectedRecord


def main(
    model: Annotated[
        str,
        typer.Argument(help="Name of a timm model, path of a model folder, or an .onnx file that edgevit exported."),
    ],
    checkpoint: arguments.Checkpoint = None,
    pretrained: arguments.Pretrained = False,
    model_arg: arguments.ModelArg = None,
    data: Annotated[
        str | None,
        option(
            panel=DATA,
            help="Folder of class folders, or of train/ and val/ with these, or a CIFAR folder; or the name digits.  "
            "[default: the images that a model folder was derived from]",
        ),
    ] = None,
    classes: arguments.Classes = None,
    base_classes: arguments.BaseClasses = None,
    split: arguments.Split = "test",
    seed: Annotated[
        int | None,
        option(panel=DATA, help="Seed by which images are split into parts.  [default: the model's own, or 42]"),
    ] = None,
    max_images: Annotated[
        int | None,
        option(panel=DATA, help="Number of images to judge on, spread evenly over the classes.  [default: all]"),
    ] = None,
    skip_bad_images: arguments.SkipBadImages = False,
    mean: arguments.Mean = None,
    std: arguments.Std = None,
    crop_pct: arguments.CropPct = None,
    interpolation: arguments.Interpolation = None,
    batch_size: Annotated[int, option(panel=COMPUTING, help="Images per inference.")] = 32,
    workers: arguments.Workers = 0,
    device: arguments.Device = "auto",
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Measure the accuracy of a base, a model folder or an ONNX file on images of its classes."""
    console = Console(json=json, quiet=quiet, verbose=verbose)

    from dataclasses import asdict

    from edgevit.export.request import check_judged, check_judging

    given: dict[str, Any] = {
        "checkpoint": checkpoint,
        "pretrained": pretrained,
        "model_args": arguments.assignments(model_arg),
        "preprocessing": arguments.preprocessing(mean, std, crop_pct, interpolation),
    }
    check_judged(model, **given)  # before torch is imported
    check_judging(data, classes, base_classes, part=split, max_images=max_images, batch_size=batch_size, device=device)

    from edgevit.export.evaluate import evaluate

    result = evaluate(
        model,
        data,
        classes=classes,
        base_classes=base_classes,
        **given,
        part=split,
        seed=seed,
        skip_bad_images=skip_bad_images,
        max_images=max_images,
        batch_size=batch_size,
        workers=workers,
        device=device,
        progress=console.progress,
    )
    console.show(classes_table(result))
    if result.rejected is not None:
        console.show(rejected_line(result.rejected))
    console.result(asdict(result))


def classes_table(result: Evaluation) -> Table:
    from rich.table import Table

    from edgevit.data.accuracy import share_text

    rows = {f"choosing among the {len(result.per_class)}": result.top1}
    if result.outputs > len(result.per_class):
        rows[f"choosing among all {result.outputs}"] = result.top1_full
    overall = (share_text(share, result.images) for share in rows.values())
    title = f"{result.model} ({result.form}) on {result.images} {result.part} images of {result.data}"
    table = Table(title=title, title_justify="left", show_footer=True)
    table.add_column("class", footer="\n".join(rows))
    table.add_column("images", justify="right", footer="\n".join([str(result.images)] * len(rows)))
    table.add_column("top-1 (95 % interval)", justify="right", footer="\n".join(overall))
    for name, accuracy in result.per_class.items():
        images = result.images_per_class[name]
        table.add_row(name, str(images), "" if accuracy is None else share_text(accuracy, images))
    return table


def rejected_line(seen: RejectedRecord) -> str:
    """How often the model calls an image `other`."""
    from edgevit.data.accuracy import share_text

    right = share_text(seen.right / max(seen.images, 1), seen.images)
    known = f"called other: {share_text(seen.share, seen.images)} of these images; {right} are called rightly"
    if seen.foreign_share is None:
        return f"{known}; the data has no other classes"
    foreign = share_text(seen.foreign_share, seen.foreign_images)
    return f"{known}; {foreign} of {seen.foreign_images} images of other classes"
