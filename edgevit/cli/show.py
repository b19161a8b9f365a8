from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgevit.cli.console import Console, JsonFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.records.derivation import DerivationRecord
    from edgevit.records.imported import ImportedDocument
    from edgevit.records.model import ModelSpec
    from edgevit.records.supernet import SupernetRecord


def main(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Model folder, folder of a sweep or of models, engine, file of profiled layers, or record of "
            "`edgevit characterize`.",
        ),
    ],
    json: JsonFlag = False,
) -> None:
    """Show the blocks, classes, accuracy and origin of a model, or the contents of another result."""
    from edgevit.cli.ls import show_models
    from edgevit.jobs.sweep.record import RECORD
    from edgevit.records.model_folder import ModelFolder
    from edgevit.records.names import suffix_of

    console = Console(json=json)
    suffix = suffix_of(folder)
    if suffix in (".engine", ".jsonl"):
        _show_file(console, folder)
    elif suffix == ".json":
        _show_suite_record(console, folder)
    elif (folder / RECORD).is_file():
        _show_rates(console, folder)
    elif ModelFolder(folder).is_imported:
        _show_imported(console, ModelFolder(folder).imported())
    elif ModelFolder(folder).is_model or not folder.is_dir() or not show_models(console, folder):
        _show_model(console, folder)


def _show_suite_record(console: Console, file: Path) -> None:
    """Show a record of `edgevit characterize`."""
    from edgevit.cli.characterize import show_suite
    from edgevit.jobs.suite.record import SUITE_KIND, read_suite_record

    record = read_suite_record(file)
    show_suite(console, record)
    console.result(SUITE_KIND.content(record))


def _show_rates(console: Console, folder: Path) -> None:
    """Show a sweep."""
    from edgevit.cli.sweep import show_sweep
    from edgevit.jobs.sweep.record import read_sweep

    sweep = read_sweep(folder)
    show_sweep(console, folder, sweep)
    console.result(asdict(sweep))


def _show_model(console: Console, folder: Path) -> None:
    """Show a model folder.

    Raises:
        CheckpointError: there is no model, or its derivation is of another one.
    """
    from edgevit.network.request import check_model_folder

    check_model_folder(folder)  # before torch is imported

    from edgevit.cli.tables import blocks_table, sizes_lines
    from edgevit.data.neighbours import hint_in
    from edgevit.errors import CheckpointError
    from edgevit.records.derivation import DERIVATION_KIND
    from edgevit.records.model import HINT
    from edgevit.records.model_folder import ModelFolder
    from edgevit.records.supernet import SUPERNET_KIND

    with importing():
        from edgevit.network.folder import load

    files = ModelFolder(folder)
    record, spec = files.derivation(), files.spec()
    model = None if spec.builder else load(folder)  # which would run the user's code
    if record is not None and (fault := record.fault(spec)):
        raise CheckpointError(f"{files.derivation_file} {fault}; {HINT}")
    supernet = files.supernet() if files.is_supernet else None
    content = {"model": asdict(spec), "derivation": record and DERIVATION_KIND.content(record)}
    console.result(content if supernet is None else {**content, "supernet": SUPERNET_KIND.content(supernet)})
    if model is not None:
        console.show(blocks_table(model, record))
    else:
        for line in sizes_lines(spec):
            console.show(line)
    classes = f"{len(spec.classes)} classes, {spec.head} head: {', '.join(spec.class_names)}"
    features = f"its outputs are {spec.outputs or spec.embed} {spec.output_text}"
    outputs = features if spec.output_kind == "features" else f"{spec.base.outputs} outputs"
    if spec.builder is not None:
        outputs = f"{spec.builder.network} of what {spec.builder.function} in builder.py makes: {spec.output_text}"
    console.show(f"{spec.timm_name}, {classes if spec.classes else outputs}")
    for text in (spec.embedding_text, spec.rest_text, spec.narrowed_rest_text):
        if text is not None:
            console.show(text)
    fusable, attentions = sum(b.fusable for b in spec.blocks), sum(b.has("attention") for b in spec.blocks)
    console.show(
        f"TensorRT can fuse the attention of {fusable} of {attentions} blocks; the base's weights have sha256 "
        f"{spec.base.weights_sha256[:12]}..."
    )
    if supernet is not None:
        _show_supernet(console, supernet, folder)
    if record is not None:
        _show_derivation(console, record, spec)
    origin = record or supernet
    if origin is not None and origin.fitted_head is not None:
        console.show(f"the base was given {origin.fitted_head.format()}")
    if origin is not None and (hint := hint_in(origin)) is not None:
        console.warn(hint)


def _show_supernet(console: Console, supernet: SupernetRecord, folder: Path) -> None:
    """Show the accuracy of a super-network's slices, and its origin."""
    console.show(curve_table(supernet))
    training = supernet.settings.training
    console.show(
        f"super-network of {supernet.base}, shape {supernet.settings.shape.name}, seed {training.seed}, "
        f"{training.steps} steps, made {supernet.created} with edgevit {supernet.versions['edgevit']}; "
        f"slices: edgevit derive --method skd --supernet {shlex.quote(str(folder))} --rate R --out DIR"
    )


def _show_derivation(console: Console, record: DerivationRecord, spec: ModelSpec) -> None:
    """Show the accuracy of a derived model, and its origin."""
    from edgevit.cli.tables import outcome

    for shown in outcome(spec, record):
        console.show(shown)
    seed = f"seed {record.training.seed}, " if record.training else ""
    console.show(
        f"method {record.method}, {record.budget.option}, shape {record.shape.name}, "
        f"{seed}{record.format_training()}, made {record.created} "
        f"with edgevit {record.versions['edgevit']} from {record.data.data if record.data else record.base}"
    )


def _show_file(console: Console, path: Path) -> None:
    """Show the layers of an engine, or of the profiles of a bench."""
    from edgevit.cli.layers import show_breakdowns, show_engine
    from edgevit.records.names import suffix_of

    if suffix_of(path) == ".engine":
        show_engine(console, path)
        return
    from edgevit.board.layers import load_profiles
    from edgevit.reporting.layers import break_down

    breakdowns = [break_down(profile) for profile in load_profiles(path)]
    show_breakdowns(console, breakdowns)
    console.result({"layers": list(map(asdict, breakdowns))})


def _show_imported(console: Console, document: ImportedDocument) -> None:
    """Show an imported ONNX file."""
    from edgevit.records.imported import IMPORTED_KIND

    console.result(IMPORTED_KIND.content(document))
    classes = ", ".join(f"{c.name} is output {c.base_index}" for c in document.classes) or "not known which is which"
    of_classes = f": {classes}" if document.output_kind == "logits" else ""
    console.show(f"{document.file}, opset {document.opset}, batch {document.batch}, {document.output_text}{of_classes}")
    fusable = sum(block.fusable for block in document.blocks)
    console.show(
        f"{len(document.blocks)} blocks and {len(document.norms)} layer normalisations were recognised; TensorRT can "
        f"fuse the attention of {fusable} blocks; the file had sha256 {document.file_sha256[:12]}..."
    )
    if document.assumed:
        console.show(document.assumed_text)


def curve_table(supernet: SupernetRecord) -> Table:
    """Accuracy of the measured slices, and of the base."""
    from rich.table import Table

    from edgevit.data.shares import share_text
    from edgevit.text import format_count

    images = supernet.data.images.validation
    table = Table("slice", "MACs", "parameters", f"top-1 on {images} validation images")
    for column in table.columns[1:]:
        column.justify = "right"
    for point in supernet.curve:
        name = f"rate {point.rate:.3f}" if point.rate else "whole"
        table.add_row(name, format_count(point.macs), format_count(point.params), share_text(point.top1, images))
    table.add_section()
    table.add_row("the base", "", "", share_text(supernet.base_top1, images))
    return table
