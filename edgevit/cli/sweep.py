from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edgevit.cli import arguments
from edgevit.cli.command import asks
from edgevit.cli.console import NARROW, Console, JsonFlag, QuietFlag, VerboseFlag, console_width
from edgevit.errors import EdgeVitError
from edgevit.imports import importing

if TYPE_CHECKING:
    from rich.table import Table

    from edgevit.jobs.sweep.record import Sweep, SweepPoint
    from edgevit.jobs.sweep.request import SweepRequest
    from edgevit.records.derivation import JudgedPart

# What the score of maps against masks is, by the output.
_SCORES = {"map": "overlap with masks", "map:foreground": "IoU with masks", "map:classes": "right pixels"}


@asks(request="edgevit.jobs.sweep.request:SweepRequest")
def main(
    context: typer.Context,
    request: SweepRequest,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
) -> None:
    """Prune at several ratios without training, and compare accuracy and latency.

    The same command continues an interrupted sweep, also with more --rates.
    """
    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before torch is imported

    with importing():
        from edgevit.jobs.sweep.run import sweep

    record, out = sweep(request, console.progress), request.out
    show_sweep(console, out, record)
    console.show(arguments.page_line(out))
    chosen = record.chosen()
    if chosen is None:
        lower = f"{request.rates[0] / 2:.2g}"
        command = arguments.repeated(context, "sweep", rates=lower)
        console.show(f"Next: a lower rate, {command}")
    else:
        distilled = out / f"{chosen.folder}-distilled"
        command = arguments.repeated(
            context, "derive", rate=chosen.rate, out=distilled, threads=None
        )  # it measures none
        console.show(f"Next: distil it, {command}")
    console.result({"folder": str(out), **asdict(record), "chosen": chosen and chosen.folder})


def show_sweep(console: Console, folder: Path, sweep: Sweep) -> None:
    """Show the table, and the model that the sweep recommends."""
    from edgevit.cli.compare import NOTES
    from edgevit.data.pairs import FEW
    from edgevit.records.model_folder import ModelFolder

    console.show(_sweep_table(folder, sweep))
    points = (*sweep.points, *sweep.ready_made)
    for figure in sorted({point.latency.figure for point in points if point.latency} & NOTES.keys()):
        console.show(NOTES[figure])
    for reason in sweep.left_out:
        console.show(f"left out: {reason}")
    if replaced := [point.folder for point in points if not point.is_of(ModelFolder(folder / point.folder))]:
        console.warn(
            f"{', '.join(replaced)}: another model than the one that was swept, whose figures these are; give the same "
            "`edgevit sweep` again, or report on the folder"
        )
    if (reference := sweep.reference) is None:
        return
    if sweep.finetuned:
        console.show(f"The models are {sweep.finetuned.start.format()}")
    if not sweep.has_labels:
        console.show(_likeness_line(sweep))
        return
    chosen, base = sweep.chosen(), "fine-tuned base" if reference is sweep.finetuned else "base"
    if (model := chosen or max(sweep.derived, key=lambda point: point.top1, default=None)) is None:
        return
    loss, may_be = sweep.loss(model), f"whose loss against the {base} may be chance"
    verdict = f"is the smallest model {may_be}" if chosen else f"is the most accurate, and there is no model {may_be}"
    console.show(f"{model.folder} {verdict}: {loss.text(sweep.part)}")
    if (refused := sweep.worse_in_a_class()) is not None and (worst := sweep.loss(refused).worst_alone) is not None:
        console.show(f"{refused.folder} is as accurate on all of them and smaller, but {worst.text()}")
    if (tested := model.on("test")) and (of_base := reference.on("test")) and sweep.part == "validation":
        console.show(
            f"On the {tested.images} test images, which `edgevit report` shows, the {base} has {of_base.top1:.2%} and "
            f"{model.folder} {tested.top1:.2%}"
        )
    for point in sweep.ready_made:
        if sweep.outdoes(point, model):
            console.show(_ready_made_line(point, model))
    if recalled := sweep.recalled():
        part = "the models are judged on the test images" if sweep.part == "test" else "judge on test: --split test"
        console.warn(f"{recalled}; {part}")
    elif loss.most - loss.share > FEW:
        on_test = ", or judge on the test images with --split test" if sweep.part == "validation" else ""
        console.warn(f"{loss.images} {sweep.part} images tell little: give more, as by --validation-fraction{on_test}")
    if (hint := _accepted_hint(folder, sweep)) is not None:
        console.warn(hint)


def _likeness_line(sweep: Sweep) -> str:
    """Say which model the next command distils, where no label says how good it is."""
    features, measure = sweep.is_of_features, "agreement"
    if features:
        measure = "of the same nearest images"
    elif sweep.output == "boxes":
        measure = "of the base's AP of boxes" if sweep.finds_boxes else "of the pyramid's variance right"
    least = f"{sweep.near:.0%} {measure}"
    labels = "; with labels, --probe knn,linear compares accuracies" if features else ""
    if all(point.likeness is None for point in sweep.derived):
        return f"{sweep.derived[0].images} test images are too few to compare their nearest: give 100 or more"
    if (chosen := sweep.chosen()) is None:
        return f"No model has {least}, and none is proposed{labels}"
    return f"{chosen.folder} is the smallest model with {least} or more, which does not say that it is enough{labels}"


def _ready_made_line(point: SweepPoint, model: SweepPoint) -> str:
    """Say that a ready-made model is as accurate as a derived one, and not slower."""
    assert point.latency is not None and model.latency is not None
    costs = {"MACs": (model.macs, point.macs), "parameters": (model.params, point.params)}
    fewer = [name for name, (derived, ready_made) in costs.items() if derived < ready_made]
    gain = f"only for {' and '.join(fewer)}" if fewer else "in none of these figures"
    top1 = f"{point.top1:.2%} against {model.top1:.2%}"
    ratios = f"{point.latency.ratio:.2f} of the base's latency against {model.latency.ratio:.2f}"
    return (
        f"{point.folder}.onnx is ready-made, at least as accurate as {model.folder} ({top1}) and not slower "
        f"({ratios}): deriving pays {gain}"
    )


def _accepted_hint(folder: Path, sweep: Sweep) -> str | None:
    """The hint about the base's preprocessing from the first model that can be read."""
    from edgevit.data.neighbours import hint_in
    from edgevit.records.model_folder import ModelFolder

    for point in sweep.derived:
        with suppress(EdgeVitError):
            if (record := ModelFolder(folder / point.folder).derivation()) is not None:
                return hint_in(record)
    return None


def _sweep_table(folder: Path, sweep: Sweep) -> Table:
    from rich.table import Table

    from edgevit.data.shares import share_text
    from edgevit.text import format_count

    images, qualities = sweep.points[0].images if sweep.points else 0, _quality_columns(sweep)
    figure = next((point.latency.figure for point in sweep.points if point.latency), "p50")
    threads = "" if sweep.threads is None else f", {sweep.threads} thread{'s' if sweep.threads > 1 else ''}"
    trained = "no training" if sweep.finetuned is None else "no training after the cut"
    title = (
        f"{folder}: {trained}; {', '.join(qualities)} on {images} {sweep.part} images, latency of one image on this "
        f"machine's CPU{threads}; with 95 % intervals"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    for heading in (*qualities, "MACs", "parameters", f"{figure} ms", "of the base's"):
        table.add_column(heading, justify="right")

    def add(*cells: str) -> None:
        # Where the width is that of an old terminal, an interval has a line of its own.
        table.add_row(*(cell.replace(" (", "\n(") if console_width() < NARROW else cell for cell in cells))

    for point in sweep.points:
        cost = (format_count(point.macs), format_count(point.params))
        add(point.folder, *(text(point) for text in qualities.values()), *cost, *_latency_cells(point, sweep.base))
        if point.rate is None:
            if (finetuned := sweep.finetuned) is not None:  # as large and as fast as the base
                add("base, fine-tuned", share_text(finetuned.top1, finetuned.images), *cost, "", "")
            table.add_section()
    table.add_section()
    for point in sweep.ready_made:
        cost = (format_count(point.macs), format_count(point.params))
        cells = [text(point) for text in qualities.values()]
        add(f"{point.folder}.onnx, ready-made", *cells, *cost, *_latency_cells(point, sweep.base))
    return table


def _quality_columns(sweep: Sweep) -> dict[str, Callable[[SweepPoint], str]]:
    """The columns that say how good a model is, and their texts."""
    from edgevit.data.shares import share_text

    if sweep.output == "classes":
        return {"top-1": lambda point: share_text(point.top1, point.images)}
    if sweep.base is not None and sweep.base.probes:
        return {f"top-1 by {name}": partial(_probe_cell, name, sweep.part) for name in sweep.base.probes}
    if sweep.output == "boxes":
        return {
            "AP of boxes": _precision_cell,
            "error of the pyramid": lambda point: "" if point.boxes is None else f"{point.boxes.error:.2%}",
        }
    if not sweep.is_of_features:
        agreement = {"agreement": lambda point: "" if point.map is None else f"{point.map.agreement:.1%}"}
        return {**agreement, **_score_columns(sweep)}
    return {
        "cosine": lambda point: "" if point.similarity is None else f"{point.similarity.cosine:.4f}",
        "same neighbours": lambda point: "-" if point.likeness is None else f"{point.likeness:.1%}",
    }


def _score_columns(sweep: Sweep) -> dict[str, Callable[[SweepPoint], str]]:
    """The columns of how well maps match masks; empty: the data has none."""
    judged = [point.targets for point in (*sweep.points, *sweep.ready_made) if point.targets is not None]
    if not judged:
        return {}
    own = any(score.own for score in judged)
    columns: dict[str, Callable[[SweepPoint], str]]
    columns = {"own score" if own else _SCORES[sweep.output]: partial(_score_cell, "score", ".4g" if own else ".2%")}
    if any(score.mean_iou is not None for score in judged):
        columns["mean IoU"] = partial(_score_cell, "mean_iou", ".2%")
    if any(score.error is not None for score in judged):
        columns["mean error"] = partial(_score_cell, "error", ".4f")
    return columns


def _score_cell(name: str, form: str, point: SweepPoint) -> str:
    value = getattr(point.targets, name, None)
    return "-" if value is None else format(value, form)


def _precision_cell(point: SweepPoint) -> str:
    return "-" if point.boxes is None or point.boxes.derived is None else f"{point.boxes.derived.boxes.ap:.1%}"


def _probe_cell(name: str, part: JudgedPart, point: SweepPoint) -> str:
    from edgevit.data.shares import share_text

    right = (point.probes or {})[name][part]
    return share_text(right.right / right.images, right.images)


def _latency_cells(point: SweepPoint, base: SweepPoint | None) -> tuple[str, str]:
    from edgevit.board.comparison import three_digits

    if (measured := point.latency) is None:
        return "-", "-"
    has_interval = measured.low is not None and measured.high is not None
    interval = f" ({measured.low:.2f} to {measured.high:.2f})" if has_interval else ""
    return three_digits(measured.ms), f"{measured.ratio:.2f}{interval}" if point is not base else ""
