"""Write a file in INT8: calibrate it, judge it on other images, and keep in floating point what costs too much.

It is judged on validation images, and, where these are few, on training images that it was not calibrated on. The test
part is never used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from edgevit.data.task import Split, Task
from edgevit.errors import ExportError
from edgevit.exporting.images import Judging
from edgevit.exporting.int8.calibrating import fits
from edgevit.exporting.int8.quantising import Quantised, quantise
from edgevit.exporting.losses import by_class, expected_losses, least_mean, proven_loss
from edgevit.exporting.request import Calibration, GateTolerances
from edgevit.exporting.session import GraphModel
from edgevit.network.output import Logits, Output
from edgevit.progress import Progress
from edgevit.records.export import Batch, Quantisation, QuantisedLayer, QuantisedStep

_LEAST_IMAGES = 16  # fewest images for calibration
_SENSITIVITY_IMAGES = 32
_JUDGED_IMAGES = 500  # number of images that judge a choice of layers, as for an engine
_MOST_VALUES = 1 << 28  # most values of the outputs of all judged images: 1 GB in fp32
_BATCH = 16


@dataclass(frozen=True)
class _Judge:
    """Compares graphs with the model in fp32."""

    output: Output
    names: Sequence[str]
    images: Sequence[Tensor]
    labels: Tensor
    reference: Tensor  # outputs of the fp32 model
    tolerances: GateTolerances
    held_out: int  # number of the images that are from the validation part

    def step(self, model: ir.Model, floating: int, share: float) -> QuantisedStep:
        """Judge a graph with so many layers in floating point and this share of MACs in INT8."""
        outputs = predicted(model, self.images)
        if not outputs.isfinite().all():
            return QuantisedStep(floating, share, None, 0.0, None, None, None, "gives NaN or infinity")
        output, place = self.output, "in INT8"
        agreeing = output.score(outputs, output.answers(self.reference))
        agreement = float(agreeing.mean())
        if not isinstance(output, Logits):
            least = least_mean(1 - agreeing)
            failure = f"agrees with fp32 to {agreement:.2%}" if least > 1 - self.tolerances.agreement else None
            return QuantisedStep(floating, share, None, agreement, None, 1 - agreement, least, failure)
        right, before = (output.score(values, self.labels) for values in (outputs, self.reference))
        expected = expected_losses(output.of(self.reference).softmax(1), output.answers(outputs))
        per_class = by_class(self.names, self.labels, before, right, agreeing)
        return QuantisedStep(
            floating,
            share,
            float(right.mean()),
            agreement,
            max(per_class, key=lambda name: per_class[name].lost / per_class[name].images),
            float(expected.mean()),
            least_mean(expected),
            proven_loss(self.names, self.labels, before - right, expected, self.tolerances, place),
        )


def predicted(model: ir.Model, images: Sequence[Tensor]) -> Tensor:
    """The outputs [B, ...] of a graph for batches of images."""
    run = GraphModel(model).predict
    return torch.cat([run(batch) for batch in images])


def _batches(split: Split, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """Images in batches that the graph takes."""
    size = _BATCH if batch == "dynamic" else batch
    return [pair for pair in split.batches(size) if batch == "dynamic" or len(pair[0]) == size]


def _other_training(task: Task, calibration: Split, count: int) -> Split:
    """At most `count` training images that are not of the calibration."""
    used = set(calibration.references)
    return task.train.at([i for i, image in enumerate(task.train.references) if image not in used]).subset(count)


def calibrated(
    graph: ir.Model,
    batch: Batch,
    judging: Judging,
    calibration: Calibration,
    tolerances: GateTolerances,
    progress: Progress,
) -> tuple[ir.Model, Quantisation]:
    """Quantise a graph in fp32 to INT8, as many linear layers as the tolerances allow.

    All linear layers are tried first. If that loses too much, layers return to floating point in the order of the
    divergence that each causes alone; their number is found by bisection.

    Raises:
        ExportError: there are too few training images, inputs are not finite, or no layer can be in INT8.
    """
    if not fits(graph):
        raise ExportError("the weights exceed 2 GB, which INT8 is not calibrated for; leave --precision int8 out")
    with progress.stage("calibrate INT8"):
        split = judging.task.calibration(calibration.images)
        images = [batch_images for batch_images, _ in _batches(split, batch)]
        if (count := sum(map(len, images))) < _LEAST_IMAGES:
            raise ExportError(
                f"{count} training images in {judging.data}, and INT8 is calibrated on {_LEAST_IMAGES} or more; give "
                "more with --data"
            )
        quantised = quantise(graph.clone(), images, calibration.method)
    shapes = [output.shape[1:] for output in graph.graph.outputs if output.shape is not None]
    values = sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)
    most = min(_JUDGED_IMAGES, max(_MOST_VALUES // values, _LEAST_IMAGES))
    validation = _batches(judging.task.validation.subset(most), batch)
    held_out = sum(len(pair[0]) for pair in validation)
    pairs = [*validation, *_batches(_other_training(judging.task, split, most - held_out), batch)]
    if not pairs:
        raise ExportError(f"{judging.data} has no images left that INT8 is judged on; give more with --data")
    judged, labels = [pair[0] for pair in pairs], torch.cat([pair[1] for pair in pairs])
    reference = predicted(graph, judged)
    judge = _Judge(judging.output, judging.class_names, judged, labels, reference, tolerances, held_out)
    return _with_layers_restored(quantised, judge, graph, images, calibration, judging, progress)


def _with_layers_restored(
    quantised: Quantised,
    judge: _Judge,
    graph: ir.Model,
    images: Sequence[Tensor],
    calibration: Calibration,
    judging: Judging,
    progress: Progress,
) -> tuple[ir.Model, Quantisation]:
    macs = {layer.name: layer.macs for layer in quantised.layers}
    total, steps = sum(macs.values()), dict[int, QuantisedStep]()
    losses: dict[str, float] = {}
    order: list[str] = []

    def share(floating: Sequence[str]) -> float:
        return 1 - sum(macs[name] for name in floating) / total

    def passes(number: int) -> bool:
        floating = order[:number]
        with progress.stage(f"judge INT8 with {number} of {len(macs)} linear layers in floating point"):
            steps[number] = judge.step(quantised.without(floating), number, share(floating))
        return steps[number].failure is None

    high = 0
    if not passes(0):
        progress.note(f"all linear layers in INT8: {steps[0].failure}; looking for those that cost most")
        losses = sensitivities(
            quantised, graph, images[: max(_SENSITIVITY_IMAGES // len(images[0]), 1)], judge.output, progress
        )
        order = sorted(losses, key=lambda name: -losses[name])
        low, high = 0, len(order)  # `low` fails, `high` passes, as all is in floating point
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if passes(middle) else (middle, high)
        if high == len(order):
            raise ExportError(
                f"no linear layer can be in INT8: {steps[low].failure}; allow more with --engine-drop, or leave "
                "--precision int8 out"
            )
    floating = set(order[:high])
    record = Quantisation(
        method=calibration.method,
        images=sum(map(len, images)),
        most_images=calibration.images,
        data=judging.data,
        rescaled=quantised.rescaled,
        layers=tuple(
            QuantisedLayer(layer.name, layer.macs / total, layer.name not in floating, losses.get(layer.name))
            for layer in quantised.layers
        ),
        validation_images=judge.held_out,
        other_images=len(judge.labels) - judge.held_out,
        fp32=_score(judge),
        steps=tuple(steps.values()),
        share=share(order[:high]),
    )
    return quantised.without(floating), record


def _score(judge: _Judge) -> float | None:
    if not isinstance(judge.output, Logits):
        return None
    return float(judge.output.score(judge.reference, judge.labels).mean())


def sensitivities(
    quantised: Quantised, graph: ir.Model, images: Sequence[Tensor], output: Output, progress: Progress
) -> dict[str, float]:
    """The mean divergence of the outputs from fp32 if one layer alone is in INT8, by its name."""
    names = [layer.name for layer in quantised.layers]
    reference = predicted(graph, images)
    losses = {}
    with progress.stage("sensitivity", len(names), "layer") as stage:
        for i, name in enumerate(names):
            outputs = predicted(quantised.without({*names} - {name}), images)
            losses[name] = float(output.divergence(reference, outputs).mean())
            stage.update(i + 1)
    return losses
