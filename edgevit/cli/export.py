from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgevit.cli import arguments
from edgevit.cli.arguments import option
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.errors import OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.folder.engine import EngineRecord
    from edgevit.folder.export import ExportRecord

MIB = 1 << 20
FILES, CHECKS, ENGINE = "Files", "Checks that must pass", "Engine on the board"


def main(
    model: Annotated[Path, typer.Argument(help="Model folder; the files go to export/ in it.")],
    batch: Annotated[
        str, option(panel=FILES, help="Images per inference: a number, or dynamic for any number.")
    ] = "dynamic",
    opset: Annotated[int, option(panel=FILES, help="ONNX operator set, 17 to 20.")] = 20,
    pad_heads: Annotated[
        bool,
        option(
            "--pad-heads",
            panel=FILES,
            help="Pad heads with zeros so that TensorRT fuses every attention; the model's answers stay.",
        ),
    ] = False,
    fp16: Annotated[bool, option(panel=FILES, help="Write and check model.fp16.onnx, too.")] = True,
    data: Annotated[
        Path | None,
        option(
            panel=arguments.DATA,
            help="Images to measure accuracy on.  [default: those that the model was derived from]",
        ),
    ] = None,
    accuracy: Annotated[
        bool,
        option(panel=arguments.DATA, help="Measure accuracy on images, and how often the files agree with torch."),
    ] = True,
    split: arguments.Split = "test",
    max_images: Annotated[
        int | None,
        option(
            panel=arguments.DATA,
            help="Number of images to measure on, spread evenly over the classes.  [default: all; 500 on a board]",
        ),
    ] = None,
    skip_bad_images: arguments.SkipBadImages = False,
    fp16_tolerance: Annotated[
        float,
        option(
            panel=CHECKS, help="Error of the fp16 logits that is allowed, as a share of the length of torch's logits."
        ),
    ] = 2e-2,
    min_agreement: Annotated[
        float, option(panel=CHECKS, help="Share of images on which the fp16 file has to agree with torch.")
    ] = 0.99,
    batch_size: Annotated[int, option(panel=arguments.COMPUTING, help="Images per inference of the checks.")] = 32,
    workers: arguments.Workers = 0,
    device: Annotated[
        str, option(panel=arguments.COMPUTING, help="Where the checks compute: auto, cpu, cuda, cuda:1 or mps.")
    ] = "auto",
    trt: Annotated[bool, option("--trt", panel=ENGINE, help="Build a TensorRT engine on the board, too.")] = False,
    board: arguments.Board = None,
    ssh_config: arguments.SshConfig = None,
    profile: Annotated[
        str | None, option(panel=arguments.BOARD, help="Board profile that must match, by name or path.")
    ] = None,
    batches: Annotated[
        str,
        option(
            panel=ENGINE,
            metavar="LEAST,CHOSEN,MOST",
            help="Images per inference that the engine takes; it is fastest with the middle number.",
        ),
    ] = "1,1,8",
    workspace: Annotated[
        int | None,
        option(
            panel=ENGINE,
            help="Memory in MiB that TensorRT may try kernels with.  [default: by what the board has free]",
        ),
    ] = None,
    optimization_level: Annotated[
        int | None,
        option(
            panel=ENGINE, help="Effort of the build, 0 to 5, with TensorRT 8.6 and newer.  [default: TensorRT's own]"
        ),
    ] = None,
    rebuild: Annotated[
        bool, option("--rebuild", panel=ENGINE, help="Build the engine even if nothing has changed.")
    ] = False,
    engine_drop: Annotated[
        float,
        option(panel=CHECKS, help="Loss of top-1 accuracy against fp32 that the engine may have: 0.01 is one point."),
    ] = 0.01,
    engine_class_drop: Annotated[
        float,
        option(panel=CHECKS, help="Loss of accuracy that the engine may have in any one class: 0.05 is five points."),
    ] = 0.05,
    engine_agreement: Annotated[
        float, option(panel=CHECKS, help="Share of images on which the engine has to agree with fp32.")
    ] = 0.98,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Export a model folder to ONNX, in fp32 and fp16, and check the files against the model.

    With --trt, also build an engine on the board, and keep it only if it classifies there as fp32 does here.
    """
    console = Console(json=json, quiet=quiet, verbose=verbose)
    for name, value in (("board", board), ("ssh-config", ssh_config), ("profile", profile), ("rebuild", rebuild)):
        if value and not trt:
            raise OptionError(f"--{name} is for an engine; give --trt, too")
    fixed = None if batch == "dynamic" else _count(batch)
    span = _three(batches)

    from edgevit.export.request import check_export, check_judging

    check_export(model, batch=fixed or "dynamic", opset=opset)  # before torch is imported
    check_judging(data, part=split, max_images=max_images, batch_size=batch_size, device=device)
    if profile is not None:
        from edgevit.board.profiles import load_profile

        load_profile(profile)

    from edgevit.export.gates import Tolerances
    from edgevit.export.onnx import export
    from edgevit.folder.model_folder import ModelFolder

    asked: dict[str, Any] = {
        "batch": fixed or "dynamic",
        "opset": opset,
        "pad_heads": pad_heads,
        "fp16": fp16,
        "data": data,
        "accuracy": accuracy,
        "part": split,
        "max_images": max_images,
        "batch_size": batch_size,
        "workers": workers,
        "device": device,
        "skip_bad_images": skip_bad_images,
        "tolerances": Tolerances(fp16_error=fp16_tolerance, fp16_agreement=min_agreement),
    }
    if not trt:
        report, engine = export(model, **asked, progress=console.progress), None
    else:
        from edgevit.board.connection import open_board
        from edgevit.engines.build import build_engine
        from edgevit.engines.gate import GateTolerances
        from edgevit.engines.options import IMAGES, Options

        options = Options(
            batches=span,
            workspace_bytes=None if workspace is None else workspace * MIB,
            optimization_level=optimization_level,
            rebuild=rebuild,
            max_images=IMAGES if max_images is None else max_images,
            tolerances=GateTolerances(engine_drop, engine_class_drop, engine_agreement),
            profile=profile,
            export=asked,
        )
        with open_board(board, ssh_config=ssh_config) as opened:
            engine = build_engine(model, opened, options, console.progress)
        report = ModelFolder(model).export.record()
    show(console, report, engine)
    console.show(next_command(model, board, trt=trt))


def next_command(model: Path, board: str | None, *, trt: bool) -> str:
    from shlex import quote

    where = f" --board {quote(board)}" if board else ""
    runner = " --runner tensorrt" if trt and not board else ""
    return f"Next: edgevit bench {quote(str(model))}{where}{runner}"


def show(console: Console, report: ExportRecord, engine: EngineRecord | None) -> None:
    console.show(files_table(report))
    if report.fusion:
        f = report.fusion
        console.show(
            f"attention fused in {f.fused} of {f.blocks} blocks by {f.compiler} {f.version} for {f.target}: {f.note}"
        )
    if engine:
        console.show(engine_table(engine))
    for text in (*report.warnings, *(engine.warnings if engine else ())):
        console.warn(text)
    from edgevit.folder.engine import ENGINE_KIND
    from edgevit.folder.export import EXPORT_KIND

    built = {"engine": {"path": str(engine.path), **ENGINE_KIND.content(engine)}} if engine else {}
    console.result({**EXPORT_KIND.content(report), **built})


def _count(batch: str) -> int:
    if not batch.isdecimal() or int(batch) < 1:
        raise OptionError(f"--batch {batch} is neither a number of images nor 'dynamic'; try 1")
    return int(batch)


def _three(batches: str) -> tuple[int, int, int]:
    parts = batches.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise OptionError(f"--batches {batches} is not three numbers of images; try 1,1,8")
    least, chosen, most = map(int, parts)
    return least, chosen, most


def files_table(report: ExportRecord) -> Table:
    from rich.table import Table

    from edgevit.data.accuracy import share_text
    from edgevit.folder.names import onnx_name

    table = Table(title=str(report.folder), title_justify="left")
    table.add_column("file")
    for heading in ("MB", "relative error of logits", "top-1", "agrees with torch"):
        table.add_column(heading, justify="right")
    if checked := report.accuracy:
        table.caption = (
            f"top-1 of torch {share_text(checked.torch, checked.images)}, on {checked.images} {checked.part} images"
        )
        table.caption_justify = "left"
    for label, parity in report.parity.items():
        name = onnx_name(label)
        seen = checked.files.get(label) if checked else None
        table.add_row(
            name,
            f"{report.files[name].bytes / 1e6:.1f}",
            f"{parity.error:.1e}",
            share_text(seen.top1, checked.images) if seen and checked else "",
            f"{seen.agreement:.2%}" if seen else "",
        )
    return table


def engine_table(engine: EngineRecord) -> Table:
    from rich.table import Table

    seen = engine.accuracy
    table = Table(title=str(engine.path), title_justify="left", caption_justify="left")
    table.caption = f"on {engine.fingerprint}, for batches {engine.batches[0]} to {engine.batches[2]}" + (
        f"; top-1 on {seen.images} {seen.part} images" if seen else ""
    )
    table.add_column("computes in")
    for heading in ("top-1 here", "on the board", "agree", "worst class", "fused", "MB", "build s"):
        table.add_column(heading, justify="right")
    worst = ""
    if seen:
        one = seen.per_class[seen.worst_class]
        worst = f"{seen.worst_class} {one.board - one.host:+.1%}"
    table.add_row(
        engine.rung,
        f"{seen.host:.2%}" if seen else "",
        f"{seen.board:.2%}" if seen else "",
        f"{seen.agreement:.2%}" if seen else "",
        worst,
        "" if engine.fused is None else f"{engine.fused} of {engine.blocks}",
        f"{engine.bytes / 1e6:.1f}",
        f"{engine.build_seconds:.1f}",
    )
    return table
