from __future__ import annotations

from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.engines.request import ExportRequest
    from edgevit.engines.run import Export
    from edgevit.records.engine import EngineRecord
    from edgevit.records.export import ExportRecord, Quantisation


@asks(request="edgevit.engines.request:ExportRequest")
def main(
    request: ExportRequest, *, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False
) -> None:
    """Export a model folder to ONNX, in fp32 and fp16, and check the files against the model.

    An ONNX file from another tool is checked, and its results are written to a folder next to it or to --out FOLDER.

    With --trt, also build an engine on the board, and keep it only if it classifies there as fp32 does here.
    """
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before torch is imported

    with importing():
        from edgevit.engines.run import export

    record = export(request, console.progress)
    show(console, record)
    console.show(next_command(request, record.engine))


def next_command(request: ExportRequest, built: EngineRecord | None) -> str:
    """The next command: a bench, and for an engine also an evaluation on the test images."""
    from shlex import quote

    board_options = {"board": request.board, "ssh-config": request.ssh_config}
    typed = "".join(f" --{name} {quote(str(value))}" for name, value in board_options.items() if value)
    runner = " --runner tensorrt" if built and not typed else ""
    bench = f"Next: edgevit bench {quote(str(request.folder))}{typed}{runner}"
    if built is None:
        return bench
    data = f" --data {quote(str(request.data))}" if request.data else "" if built.accuracy else " --data DIR"
    data += " --skip-bad-images" * (request.data is not None and request.skip_bad_images)
    return f"On test images: edgevit evaluate {quote(str(built.path))}{typed}{data}\n{bench}"


def show(console: Console, report: Export) -> None:
    engine = report.engine
    console.show(_files_table(report))
    if report.fusion:
        f = report.fusion
        # More fused attentions than blocks: it is not known to which blocks they belong.
        of = f"in {f.fused} of {f.blocks} blocks" if f.fused <= f.blocks else f"{f.fused} time{'s' * (f.fused != 1)}"
        console.show(f"attention fused {of} by {f.compiler} {f.version} for {f.target}: {f.note}")
    if report.quantisation:
        console.show(_int8_line(report.quantisation))
    if report.whole:
        console.show(_whole_line(report))
    if engine:
        console.show(engine_table(engine))
    for text in (*report.warnings, *(engine.warnings if engine else ())):
        console.warn(text)
    from edgevit.records.engine import ENGINE_KIND
    from edgevit.records.export import EXPORT_KIND

    built = {"engine": {"path": str(engine.path), **ENGINE_KIND.content(engine)}} if engine else {}
    console.result({**EXPORT_KIND.content(report), **built})


def _files_table(report: ExportRecord) -> Table:
    from rich.table import Table

    from edgevit.data.shares import share_text
    from edgevit.records.names import onnx_name

    itself = report.model.file or "torch"
    table = Table(title=str(report.folder), title_justify="left")
    table.add_column("file")
    names = [output.name for output in report.outputs]
    outputs = " and ".join(names) if len(names) <= 2 else f"{len(names)} outputs"
    checked = report.accuracy
    classifies = checked is not None and any(check.top1 is not None for check in checked.files.values())
    top1 = ["top-1"] if classifies else []
    for heading in ("MB", f"relative error of {outputs}", *top1, f"agrees with {itself}"):
        table.add_column(heading, justify="right")
    if checked and checked.torch is not None:
        table.caption = (
            f"top-1 of {itself} {share_text(checked.torch, checked.images)}, on {checked.images} {checked.part} images"
        )
        table.caption_justify = "left"
    for label, parity in report.parity.items():
        name = onnx_name(label)
        check = checked.files.get(label) if checked else None
        share = share_text(check.top1, checked.images) if check and checked and check.top1 is not None else ""
        table.add_row(
            name,
            f"{report.files[name].bytes / 1e6:.1f}",
            f"{parity.error:.1e}",
            *([share] if classifies else []),
            f"{check.agreement:.2%}" if check else "",
        )
    return table


def _int8_line(quantisation: Quantisation) -> str:
    count = sum(layer.int8 for layer in quantisation.layers)
    return (
        f"INT8 in {count} of {len(quantisation.layers)} linear layers, {quantisation.share:.1%} of their MACs; "
        f"calibrated on {quantisation.images} training images, and judged on {quantisation.validation_images} "
        f"validation and {quantisation.other_images} other training images by ONNX Runtime, whose INT8 kernels are not "
        "TensorRT's"
    )


def _whole_line(report: ExportRecord) -> str:
    assert report.whole is not None
    whole, size = report.whole, "x".join(map(str, report.inputs[0].shape[1:]))
    precision = ""
    if whole.torch is not None and whole.onnx is not None:
        precision = f", AP of boxes {whole.onnx:.1%} on {whole.judged_images} images, torch's {whole.torch:.1%}"
    return (
        f"{whole.file}: the whole detector, of one RGB image {size} from 0 to 1; finds {whole.same} of the "
        f"{whole.boxes} boxes that torch finds in {whole.images} images{precision}"
    )


def engine_table(engine: EngineRecord) -> Table:
    from rich.table import Table

    accuracy = engine.accuracy
    table = Table(title=str(engine.path), title_justify="left", caption_justify="left")
    measured, shares, worst = "top-1", ["", ""], ""
    if accuracy and accuracy.host_detections and accuracy.board_detections:
        measured, boxes = "AP of boxes", [accuracy.host_detections.boxes, accuracy.board_detections.boxes]
        shares = [f"{of_place.ap:.2%}" for of_place in boxes]
        before, after = (of_place.per_class for of_place in boxes)
        change = {name: (after[name] or 0) - ap for name, ap in before.items() if ap is not None}
        name = min(change, key=lambda name: change[name])
        worst = f"{name} {change[name]:+.1%}"
    elif accuracy and accuracy.host is not None and accuracy.board is not None:
        shares = [f"{accuracy.host:.2%}", f"{accuracy.board:.2%}"]
    if accuracy and accuracy.worst_class is not None:
        of_class = accuracy.per_class[accuracy.worst_class]
        worst = f"{accuracy.worst_class} {of_class.board - of_class.host:+.1%}"
    table.caption = f"on {engine.fingerprint}, for batches {engine.batches[0]} to {engine.batches[2]}" + (
        f"; {measured if shares[0] else 'agreement'} on {accuracy.images} {accuracy.part} images" if accuracy else ""
    )
    table.add_column("computes in")
    for heading in (f"{measured} here", "on the board", "agree", "worst class", "fused", "MB", "build s"):
        table.add_column(heading, justify="right")
    table.add_row(
        engine.precision_level,
        *shares,
        f"{accuracy.agreement:.2%}" if accuracy else "",
        worst,
        "" if engine.fused is None else f"{engine.fused} of {engine.blocks}",
        f"{engine.bytes / 1e6:.1f}",
        f"{engine.build_seconds:.1f}",
    )
    return table
