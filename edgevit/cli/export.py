from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli import arguments
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.errors import OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.export.record import ExportReport


def main(
    model: Annotated[Path, typer.Argument(help="Model folder; the files go to its export/.")],
    batch: Annotated[str, typer.Option(help="Images per inference, or dynamic.")] = "dynamic",
    opset: Annotated[int, typer.Option(help="ONNX operator set, 17 to 20.")] = 20,
    pad_heads: Annotated[
        bool, typer.Option("--pad-heads", help="Zero-pad heads so that every attention block fuses; same function.")
    ] = False,
    fp16: Annotated[bool, typer.Option(help="Write and check model.fp16.onnx, too.")] = True,
    data: Annotated[
        Path | None, typer.Option(help="Images to measure accuracy on.  [default: the model's own]")
    ] = None,
    accuracy: Annotated[bool, typer.Option(help="Measure accuracy and top-1 agreement on real images.")] = True,
    split: Annotated[str, typer.Option(help="Part of the data: test or validation.")] = "test",
    max_images: Annotated[int | None, typer.Option(help="Measure on so many images only, evenly chosen.")] = None,
    fp16_tolerance: Annotated[float, typer.Option(help="Relative error of the fp16 logits allowed.")] = 2e-2,
    min_agreement: Annotated[float, typer.Option(help="Share of images with torch's top-1 required in fp16.")] = 0.99,
    batch_size: Annotated[int, typer.Option(help="For the accuracy only.")] = 32,
    workers: arguments.Workers = 0,
    device: Annotated[str, typer.Option(help="For the accuracy only: auto, cpu, cuda, cuda:1, mps.")] = "auto",
    skip_bad_images: arguments.SkipBadImages = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Export a model folder to ONNX, in fp32 and fp16, and check the files against the model."""
    console = Console(json=json, quiet=quiet, verbose=verbose)
    fixed = None if batch == "dynamic" else _count(batch)

    from edgevit.export.gates import Tolerances
    from edgevit.export.onnx import export

    report = export(
        model,
        batch=fixed or "dynamic",
        opset=opset,
        pad_heads=pad_heads,
        fp16=fp16,
        data=data,
        accuracy=accuracy,
        part=split,
        max_images=max_images,
        batch_size=batch_size,
        workers=workers,
        device=device,
        skip_bad_images=skip_bad_images,
        tolerances=Tolerances(fp16_error=fp16_tolerance, fp16_agreement=min_agreement),
        progress=console.progress,
    )
    console.show(files_table(report))
    if report.fusion:
        f = report.fusion
        console.show(
            f"attention fused in {f.fused} of {f.blocks} blocks by {f.compiler} {f.version} for {f.target}: {f.note}"
        )
    for text in report.warnings:
        console.warn(text)
    console.result(report.to_dict())


def _count(batch: str) -> int:
    if not batch.isdecimal() or int(batch) < 1:
        raise OptionError(f"--batch {batch} is neither a number of images nor 'dynamic'; try 1")
    return int(batch)


def files_table(report: ExportReport) -> Table:
    from rich.table import Table

    table = Table(title=str(report.folder), title_justify="left")
    table.add_column("file")
    for heading in ("MB", "logits off by", "top-1", "agrees with torch"):
        table.add_column(heading, justify="right")
    if checked := report.accuracy:
        table.caption = f"top-1 of torch {checked.torch:.2%}, on {checked.images} {checked.part} images"
        table.caption_justify = "left"
    for precision, parity in report.parity.items():
        name = f"model.{precision}.onnx"
        seen = checked.files[precision] if checked else None
        table.add_row(
            name,
            f"{report.files[name].bytes / 1e6:.1f}",
            f"{parity.error:.1e}",
            f"{seen.top1:.2%}" if seen else "",
            f"{seen.agreement:.2%}" if seen else "",
        )
    return table
