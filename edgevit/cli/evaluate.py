from __future__ import annotations

from typing import TYPE_CHECKING

from edgevit.cli.command import asks
from edgevit.cli.console import Console, JsonFlag, QuietFlag, VerboseFlag
from edgevit.imports import importing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from edgevit.engines.request import EvaluateRequest
    from edgevit.exporting.evaluate import Evaluation
    from edgevit.records.derivation import DetectionRecord, MapScore, RejectedRecord, SimilarityRecord


@asks(request="edgevit.engines.request:EvaluateRequest")
def main(
    request: EvaluateRequest, *, json: JsonFlag = False, quiet: QuietFlag = False, verbose: VerboseFlag = False
) -> None:
    """Measure the accuracy of a base, a model folder, an ONNX file or an engine on images of its classes.

    An engine runs on the board that it was built for, or on this machine. Features of an ONNX file or an engine are
    compared with those of its model folder, and those of a model folder with its base's where that is at hand; --probe
    tells what features are worth on labelled images. Maps are compared with those in masks/, of the same names as the
    images in images/, where the data has these folders. Of a detector the average precision is measured, on images with
    annotations in COCO's format.
    """
    from dataclasses import asdict

    console = Console(json=json, quiet=quiet, verbose=verbose)
    request.check()  # before torch is imported

    with importing():
        from edgevit.engines.run import evaluate

    result = evaluate(request, console.progress)
    if result.probes is not None:
        console.show(_probes_line(result, result.probes))
    elif result.similarity is not None:
        console.show(similarity_line(result, result.similarity))
    elif result.detections is not None:
        console.show(_detections_table(result, result.detections))
    elif result.targets is not None:
        console.show(_targets_line(result, result.targets))
    else:
        console.show(_classes_table(result) if result.agreement is None else agreement_line(result))
    if result.rejected is not None:
        console.show(_rejected_line(result.rejected))
    console.result(asdict(result))


def _title(result: Evaluation) -> str:
    return f"{result.model} ({result.form}) on {result.images} {result.part} images of {result.data}"


def agreement_line(result: Evaluation) -> str:
    """How far outputs without classes agree with the model folder."""
    return f"{_title(result)}: agrees to {result.agreement:.2%} with its model folder"


def _targets_line(result: Evaluation, targets: MapScore) -> str:
    """How well maps match their targets."""
    score = f"agrees to {targets.score:.2%} with the target maps"
    if targets.own:
        score = f"a score of {targets.score:.4g} by the target maps, as the module defines it"
    iou = "" if targets.mean_iou is None else f", mean IoU {targets.mean_iou:.2%}"
    error = "" if targets.error is None else f", mean absolute error {targets.error:.4g}"
    return f"{_title(result)}: {score}{iou}{error}"


def _probes_line(result: Evaluation, probes: Mapping[str, float]) -> str:
    """What features are worth."""
    from edgevit.data.shares import share_text

    shares = ", ".join(f"{name} {share_text(share, result.images)}" for name, share in probes.items())
    return f"{_title(result)}: {shares}"


def similarity_line(result: Evaluation, record: SimilarityRecord) -> str:
    """How like the base's the features are."""
    text = f"{_title(result)}: a cosine of {record.cosine:.4f} to the base's features"
    if record.same_neighbours is None:
        return text
    return f"{text}, and {record.same_neighbours:.1%} of an image's ten nearest images are the base's"


def _detections_table(result: Evaluation, record: DetectionRecord) -> Table:
    """The average precision of a detector, by class."""
    from rich.table import Table

    table = Table(title=f"{_title(result)}: {record.objects} objects", title_justify="left", show_footer=True)
    table.add_column("class", footer="mean\nat an overlap of 0.5")
    kinds = {"boxes": record.boxes, "masks": record.masks}
    judged = {name: of_kind for name, of_kind in kinds.items() if of_kind is not None}
    for name, of_kind in judged.items():
        table.add_column(f"AP of {name}", f"{of_kind.ap:.1%}\n{of_kind.ap50:.1%}", justify="right")
    for name in record.boxes.per_class:
        shares = [of_kind.per_class[name] for of_kind in judged.values()]
        table.add_row(name, *("no objects" if share is None else f"{share:.1%}" for share in shares))
    return table


def _classes_table(result: Evaluation) -> Table:
    from rich.table import Table

    from edgevit.data.shares import share_text

    rows = {f"choosing among the {len(result.per_class)}": result.top1}
    if result.outputs > len(result.per_class):
        rows[f"choosing among all {result.outputs}"] = result.top1_full
    overall = [share_text(share, result.images) for share in rows.values() if share is not None]
    if len(set(result.images_per_class.values())) > 1:  # top-1 is then mostly that of the frequent classes
        measured = [accuracy for accuracy in result.per_class.values() if accuracy is not None]
        rows["mean of the classes"] = sum(measured) / len(measured)
        overall.append(f"{100 * sum(measured) / len(measured):.2f} %")
    table = Table(title=_title(result), title_justify="left", show_footer=True)
    table.add_column("class", footer="\n".join(rows))
    table.add_column("images", justify="right", footer="\n".join([str(result.images)] * len(rows)))
    table.add_column("top-1 (95 % interval)", justify="right", footer="\n".join(overall))
    for name, accuracy in result.per_class.items():
        images = result.images_per_class[name]
        table.add_row(name, str(images), "" if accuracy is None else share_text(accuracy, images))
    return table


def _rejected_line(record: RejectedRecord) -> str:
    """The share of images that the model calls `other`."""
    from edgevit.data.shares import share_text

    right = share_text(record.right / max(record.images, 1), record.images)
    target_text = f"called other: {share_text(record.share, record.images)} of these images; {right} are called rightly"
    if record.foreign_share is None:
        return f"{target_text}; the data has no other classes"
    foreign = share_text(record.foreign_share, record.foreign_images)
    return f"{target_text}; {foreign} of {record.foreign_images} images of other classes"
