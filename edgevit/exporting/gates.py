"""Checks of exported files against the model. Each returns its part of export.json, or raises ExportError."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import onnx
import torch
from torch import Tensor

from edgevit.errors import ExportError
from edgevit.exporting.images import Judging
from edgevit.exporting.request import Tolerances
from edgevit.network.accuracy import count_correct, from_counts
from edgevit.network.output import Logits, Output
from edgevit.progress import Progress
from edgevit.records.export import AccuracyCheck, FileAccuracy, Parity
from edgevit.records.precisions import precision_of

_Predict = Callable[[Tensor], Tensor]

# Operators of a decomposed Vision Transformer, all in TensorRT 8.5 and later. Excluded: Attention, which JetPack's
# parsers lack, and Cast, which splits fused kernels and is allowed only around modules in fp32.
OPERATORS = frozenset(
    """
    Add Sub Mul Div Pow Sqrt Erf Gelu Tanh Sigmoid Relu Softmax LayerNormalization MatMul Gemm Conv ReduceMean ReduceMax
    Reshape Transpose Concat Expand Slice Split Squeeze Unsqueeze Gather Shape Constant Identity
    TopK GatherElements ReduceSum Reciprocal
    """.split()  # noqa: SIM905
)
# Operators of heads behind a Vision Transformer, all in TensorRT 8.5 and later (docs/operators.md of onnx-tensorrt).
HEAD_OPERATORS = frozenset(
    """
    ConvTranspose Resize BatchNormalization InstanceNormalization MaxPool AveragePool GlobalAveragePool GlobalMaxPool
    LeakyRelu PRelu Elu Selu Celu HardSigmoid HardSwish Softplus Softsign LogSoftmax LpNormalization
    Clip Pad Tile Flatten DepthToSpace SpaceToDepth GatherND ScatterND ScatterElements Range ConstantOfShape
    Max Min Mean Sum Neg Abs Sign Exp Log Sin Cos Tan Atan Floor Ceil Round CumSum Einsum Cast
    ReduceL1 ReduceL2 ReduceMin ReduceProd ReduceSumSquare ReduceLogSum ReduceLogSumExp ArgMax ArgMin
    Equal Greater GreaterOrEqual Less LessOrEqual Not And Or Xor Where GridSample
    """.split()  # noqa: SIM905
)
# Operators that find padding in ids.
TEXT_OPERATORS = frozenset({"Equal", "And", "Where"})


def check_graph(
    path: Path, opset: int, *, islands: Collection[str] = (), operators: Collection[str] | None = None
) -> dict[str, int]:
    """Check that the file is valid ONNX of this opset with supported operators only; return their counts.

    `islands` are the modules of an fp16 file in fp32: only they may cast. `operators` replace the default operators.

    Raises:
        ExportError: it is not.
    """
    try:
        # By path, which also works beyond 2 GiB, and needs no second copy in memory.
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        hint = "try --opset 20, or export the original model with another opset"
        raise ExportError(f"{path.name} is not valid ONNX: {reason}; {hint}") from error
    model = onnx.load(str(path), load_external_data=False)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    if opsets != {"": opset}:
        raise ExportError(f"{path.name} has opset {opsets.get('')}, expected {opset}; try --opset 20")
    if partial := [node.name for node in model.graph.node if node.op_type == "Shape" and node.attribute]:
        raise ExportError(
            f"{path.name} takes a part of a shape in {partial[0]}, where TensorRT 8 takes the whole; "
            "report the name of the base model"
        )
    counts = Counter(node.op_type for node in model.graph.node)
    casting = {node.name.partition("/")[0] for node in model.graph.node if node.op_type == "Cast"}
    allowed = set(OPERATORS if operators is None else operators)
    allowed |= {"Cast"} if casting and casting <= set(islands) else set()
    if unknown := sorted(counts.keys() - allowed):
        raise ExportError(
            f"{path.name} has {', '.join(unknown)}, which may not run, or be slow, on a board; try --opset 20, "
            f"or report the base model's name"
        )
    return dict(sorted(counts.items()))


def _check_finite(output: Output, precision: str, outputs: Tensor) -> None:
    if not torch.isfinite(outputs).all():
        count = int((~torch.isfinite(outputs)).sum())
        option = precision_of(precision).skipping
        hint = f"try {option}" if option else "derive the model again"
        raise ExportError(f"{count} of {outputs.numel()} {output.noun} in {precision} are NaN or infinite; {hint}")


def check_parity(
    output: Output, precision: str, reference: Tensor, predict: _Predict, images: Tensor, source: str, tolerance: float
) -> Parity:
    """Compare the outputs of a file with those of the model on a few arbitrary images.

    Raises:
        ExportError: they differ by more than the tolerance, or are not finite.
    """
    expected = reference.double()
    outputs = predict(images).double().reshape(expected.shape)  # of several blocks the tokens are in one row
    _check_finite(output, precision, outputs)
    difference = outputs - expected
    error = float(difference.norm() / expected.norm().clamp_min(torch.finfo(torch.float64).tiny))
    if not error <= tolerance:  # true of NaN, too
        option = precision_of(precision).skipping
        raise ExportError(
            f"{output.noun} in {precision} are off by {error:.2g} of the model's own, at most {tolerance:.2g} "
            "is allowed; " + (f"allow more with --fp16-tolerance, or try {option}" if option else "try --opset 20")
        )
    return Parity(
        error=error,
        tolerance=tolerance,
        largest_difference=float(difference.abs().max()),
        logits_scale=float(expected.square().mean().sqrt()),
        images=len(images),
        source=source,
    )


def check_accuracy(
    reference: _Predict,
    files: Mapping[str, _Predict],
    judging: Judging,
    tolerances: Tolerances,
    *,
    batch_size: int,
    workers: int,
    progress: Progress,
) -> AccuracyCheck:
    """Run the model and each file (by precision) on images, and compare.

    The class of one image may always differ, as it can be near a decision boundary.

    Raises:
        ExportError: a file agrees too little with the model, or an output is not finite.
    """
    output, names = judging.output, judging.class_names
    counted = ("torch", *files) if isinstance(output, Logits) else ()
    counts = {name: torch.zeros(3, len(names), dtype=torch.int64) for name in counted}
    matches = dict.fromkeys(files, 0.0)
    done = 0
    with progress.stage("accuracy", len(judging.split), "image") as stage, torch.inference_mode():
        for images, labels in judging.split.batches(batch_size, workers):
            outputs = {"torch": reference(images).cpu().float()}
            answers = output.answers(outputs["torch"])
            for precision, predict in files.items():
                outputs[precision] = predict(images).reshape(outputs["torch"].shape)
                _check_finite(output, precision, outputs[precision])
                matches[precision] += float(output.score(outputs[precision], answers).sum())
            done += len(images)
            if isinstance(output, Logits):
                for name, logits in outputs.items():
                    counts[name] += count_correct(output, logits, labels)
            stage.update(done, **{f"accuracy_{n}": float(c[1].sum()) / done for n, c in counts.items()})
    accuracy = {name: from_counts(names, of_name) for name, of_name in counts.items()}
    results = {}
    for precision in files:
        least = tolerances.agreement(precision)
        _check_agreement(output, precision, matches[precision], done, least)
        top1, per_class = (accuracy[precision].top1, accuracy[precision].per_class()) if accuracy else (None, {})
        results[precision] = FileAccuracy(top1, matches[precision] / done, least, per_class)
    of_torch = accuracy["torch"].top1 if accuracy else None
    return AccuracyCheck(judging.data, judging.part, done, of_torch, results, part_images=judging.part_images)


def _check_agreement(output: Output, precision: str, matches: float, images: int, least: float) -> None:
    if isinstance(output, Logits):
        enough = images - matches <= max(1, math.floor((1 - least) * images + 1e-9))  # as (1 - 0.9) * 50 < 5
        extent = f"on {matches:.0f} of {images} images"
    else:
        enough, extent = matches / images >= least, f"to {matches / images:.2%} on {images} images"
    if not enough:
        option = precision_of(precision).skipping
        raise ExportError(
            f"{precision} agrees with the model {extent}, {least:.1%} is required; "
            f"allow less with --min-agreement" + (f", or try {option}" if option else "")
        )
