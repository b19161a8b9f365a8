"""A configuration of DeepStream's nvinfer, and an ONNX file that takes images and gives classes as nvinfer does.

nvinfer computes y = net-scale-factor * (x - offsets[c]) of 8-bit values, with one factor for all channels. Its class is
the largest output, in fp32, that is above classifier-threshold. So the packaged file first multiplies each channel by
what is missing to its standard deviation, and gives probabilities of the target classes. Where the model calls an image
`other` they are zero, and nvinfer attaches no class.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgevit.errors import OptionError
from edgevit.records.model import PreprocessingFields
from edgevit.records.precisions import FP16, FP32
from edgevit.serving.model import ServedModel

FILE, LABELS, CONFIG = "model.onnx", "labels.txt", "config_infer.txt"
_MODES = {FP32.name: 0, FP16.name: 2}  # network-mode
_WHITE = 255
_FLOAT = ir.DataType.FLOAT


def nvinfer_scale(preprocessing: PreprocessingFields) -> tuple[float, list[float], list[float]]:
    """Return net-scale-factor, the offsets, and the factor by which each channel is to be multiplied after it."""
    mean, std = preprocessing["mean"], preprocessing["std"]
    return 1 / (_WHITE * std[0]), [_WHITE * value for value in mean], [std[0] / value for value in std]


def nvinfer_config(served: ServedModel) -> str:
    """config_infer.txt."""
    preprocessing = served.export.preprocessing
    factor, offsets, _ = nvinfer_scale(preprocessing)
    batch = 1 if served.is_dynamic else served.images.shape[0]
    letterbox = int(preprocessing["crop_mode"] == "border")
    properties = {
        "gpu-id": 0,
        "onnx-file": FILE,
        # Where DeepStream looks for the engine that it built of the file, and would write it.
        "model-engine-file": f"{FILE}_b{batch}_gpu0_{served.precision}.engine",
        "labelfile-path": LABELS,
        "infer-dims": ";".join(map(str, preprocessing["input_size"])),
        "batch-size": batch,
        "network-mode": _MODES[served.precision],
        "network-type": 1,
        "process-mode": 1,
        "gie-unique-id": 1,
        "model-color-format": 0,
        "net-scale-factor": f"{factor:.9g}",
        "offsets": ";".join(f"{value:.9g}" for value in offsets),
        "maintain-aspect-ratio": letterbox,
        "symmetric-padding": letterbox,
        "scaling-filter": 1,
        "classifier-threshold": 0,
    }
    return "\n".join(["[property]", *(f"{name}={value}" for name, value in properties.items())]) + "\n"


def nvinfer_graph(served: ServedModel) -> ir.Model:
    """The graph with fp32 images as nvinfer scales them, and with probabilities of the target classes."""
    model = ir.load(served.file)
    for name in [*model.metadata_props]:  # describes the exported file
        del model.metadata_props[name]
    _take_scaled(model.graph, nvinfer_scale(served.export.preprocessing)[2])
    _give_probabilities(model.graph, served)
    return model


def _constant(graph: ir.Graph, name: str, values: np.ndarray) -> ir.Value:
    name = f"nvinfer.{name}"
    tensor = ir.tensor(values, name=name)
    value = ir.Value(name=name, shape=ir.Shape(values.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.initializers[name] = value
    return value


class _Chain:
    """Nodes that are made one after another."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def add(self, operator: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        node = ir.node(operator, inputs, attributes=attributes, name=f"nvinfer/{operator}_{len(self.nodes)}")
        node.outputs[0].name = f"nvinfer.{operator.lower()}_{len(self.nodes)}.{inputs[0].name}"
        self.nodes.append(node)
        return node.outputs[0]


def _take_scaled(graph: ir.Graph, factors: list[float]) -> None:
    (images,) = graph.inputs
    scaled = ir.Value(name=images.name, shape=images.shape, type=ir.TensorType(_FLOAT))
    chain, value = _Chain(), scaled
    if any(factor != 1 for factor in factors):
        value = chain.add("Mul", value, _constant(graph, "factors", np.array(factors, np.float32)[None, :, None, None]))
    if images.dtype != _FLOAT:
        value = chain.add("Cast", value, to=images.dtype)
    if value is scaled:
        return
    ir.convenience.replace_all_uses_with(images, value)
    graph.inputs[0] = scaled
    graph.insert_before(next(iter(graph)), chain.nodes)


def _give_probabilities(graph: ir.Graph, served: ServedModel) -> None:
    """Replace logits [B, C] by probabilities of the target classes, zero where the model calls the image `other`."""
    chain, (value,) = _Chain(), graph.outputs
    columns = [entry.column for entry in served.export.classes]
    batch = value.shape[0] if value.shape is not None else None
    if value.dtype != _FLOAT:
        value = chain.add("Cast", value, to=_FLOAT)
    if columns != list(range(served.outputs[0].shape[1])):
        value = chain.add("Gather", value, _constant(graph, "columns", np.array(columns)), axis=1)
    logits, value = value, chain.add("Softmax", value, axis=1)
    if served.export.rejection is not None:
        # Of each column the logit less its logarithm of the softmax is the score; the first is that of all.
        scores = chain.add("Sub", logits, chain.add("LogSoftmax", logits, axis=1))
        score = chain.add("Gather", scores, _constant(graph, "first", np.array([0])), axis=1)
        least = _constant(graph, "threshold", np.array(served.export.rejection.threshold, np.float32))
        zero = _constant(graph, "zero", np.zeros((), np.float32))
        value = chain.add("Where", chain.add("Less", score, least), zero, value)
    value.name, value.shape = "nvinfer.probabilities", ir.Shape([batch, len(columns)])
    value.type = ir.TensorType(_FLOAT)
    graph.extend(chain.nodes)
    graph.outputs[0] = value


def write_deepstream(served: ServedModel, folder: Path) -> list[str]:
    """Write the files of nvinfer; return what the README says of them.

    Raises:
        OptionError: it is an engine, or a file in INT8.
        ExportError: as by `check_classes`.
    """
    if served.engine:
        raise OptionError(
            f"nvinfer scales images otherwise than {served.file.name} expects, and reads probabilities; give the model "
            "folder: DeepStream builds its engine of the packaged ONNX file"
        )
    if served.precision not in _MODES:
        raise OptionError(f"nvinfer cannot use {served.file.name}, in {served.precision}; try --precision fp16")
    served.check_classes("deepstream", ";")
    served.copy(folder / FILE)  # and any weights beside it
    ir.save(nvinfer_graph(served), folder / FILE)
    names = [entry.name for entry in served.export.classes]
    (folder / LABELS).write_text(";".join(names) + "\n", encoding="utf-8")  # one line for each output of the network
    (folder / CONFIG).write_text(nvinfer_config(served), encoding="utf-8")
    rejects = "" if served.export.rejection is None else " An image that the model calls `other` gets no class."
    return [
        f"    gst-launch-1.0 ... ! nvinfer config-file-path={CONFIG} ! ...",
        "",
        f"`{FILE}` differs from the exported file: it takes images as nvinfer scales them, and gives "
        f"probabilities.{rejects} DeepStream builds an engine of it, which edgevit has not judged.",
        "`process-mode=1` classifies whole frames; 2 classifies the objects of a detector (`operate-on-gie-id`).",
        "",
        "nvinfer's preprocessing differs from the model's:",
        "",
        *(f"- {line}" for line in _differences(served.export.preprocessing)),
    ]


def _differences(preprocessing: PreprocessingFields) -> list[str]:
    """The differences between the images that nvinfer prepares and those of the training."""
    share, mode = preprocessing["crop_pct"], preprocessing["crop_mode"]
    height, width = (math.floor(side / share) for side in preprocessing["input_size"][1:])
    resized = {"center": "to cover", "squash": "and stretched to", "border": "to fit into"}[mode]
    scaled = "into black borders" if mode == "border" else "and stretches it"
    return [
        f"The model's images are scaled {resized} {width}x{height}, and the middle is cut out. nvinfer scales the "
        f"whole frame {scaled}; crop frames before it, such as by `src-crop` of nvvideoconvert.",
        f"The model's images are scaled with antialiased {preprocessing['interpolation']} interpolation, nvinfer's "
        "with bilinear.",
    ]
