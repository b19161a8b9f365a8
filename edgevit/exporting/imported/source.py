"""The folder of an imported ONNX file, as a source of files and engines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from edgevit.errors import CheckpointError, ExportError, OptionError
from edgevit.exporting.graph import save_graph
from edgevit.exporting.halving import FLOAT, convert
from edgevit.exporting.images import Subject
from edgevit.exporting.precision import LARGEST, WITHOUT, check_weights
from edgevit.exporting.session import OnnxModel, largest_values
from edgevit.exporting.source import Form, Predict, Source
from edgevit.records.belonging import file_fault
from edgevit.records.export import Batch, ExportedModel, Padding, Range
from edgevit.records.imported import ImportedDocument
from edgevit.records.model_folder import ModelFolder


def subject_of_imported(document: ImportedDocument, origin: str) -> Subject:
    return Subject(
        class_names=tuple(c.name for c in document.classes),
        class_columns=tuple(c.base_index for c in document.classes),
        outputs=document.outputs if document.output_kind == "logits" else 0,
        preprocessing=document.preprocessing,
        seed=document.data.seed if document.data else document.seed,
        validation_fraction=document.data.validation_fraction if document.data else document.validation_fraction,
        group_by=document.data.group_by if document.data else None,
        record=document.data,
        rejection=document.rejection,
        output_kind=document.output_kind,
        origin=origin,
    )


_LARGEST_FLOAT = torch.finfo(torch.float32).max  # recorded instead of infinity and NaN, which JSON does not have
_OPSET_OF_IS_INF = 10


@dataclass(frozen=True)
class ImportedSource:
    """An imported ONNX file with nodes named by module."""

    path: Path  # path of model.onnx
    document: ImportedDocument
    subject: Subject

    @property
    def described(self) -> ExportedModel:
        return ExportedModel(None, self.document.weights_sha256, self.document.file)

    @property
    def norms(self) -> tuple[str, ...]:
        return self.document.norms

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(block.name for block in self.document.blocks)

    @property
    def has_attention(self) -> tuple[bool, ...]:
        return tuple(True for _ in self.document.blocks)

    @property
    def fusable(self) -> tuple[bool, ...]:
        return tuple(block.fusable for block in self.document.blocks)

    @cached_property
    def operators(self) -> frozenset[str]:
        return frozenset({"Cast", *(node.op_type for node in ir.load(self.path).graph)})

    def predictor(self, device: str) -> Predict:
        return OnnxModel(self.path, device=device).predict

    def padded(self) -> tuple[Source, Padding]:
        raise OptionError("heads of an ONNX file cannot be padded; leave --pad-heads out")

    def check_range(self, images: Tensor) -> Range:
        """Measure the output of each node, and list the nodes that overflow, which may be kept in fp32.

        In a file with infinite constants, such as of a mask before a softmax, infinities are intended, and ignored.
        """
        model = ir.load(self.path)
        of_floats = {name: value for name, value in model.graph.initializers.items() if value.dtype == FLOAT}
        weights = {name: torch.tensor(v.const_value.numpy()) for name, v in of_floats.items() if v.const_value}
        masked = any(bool(weight.isinf().any()) for weight in weights.values())
        named = ((name, weight.masked_fill(weight.isinf(), 0)) for name, weight in weights.items())
        largest, subnormal, lost = check_weights(named, WITHOUT)
        names = _measure_outputs(model.graph, masked=masked and self.document.opset >= _OPSET_OF_IS_INF)
        values = largest_values(ir.to_proto(model).SerializeToString(), self.path, images, self.document.batch)
        peaks: dict[str, float] = {}
        for name, peak in zip(names, values, strict=True):  # the largest output of a node
            finite = peak if math.isfinite(peak) else _LARGEST_FLOAT
            peaks[name] = max(peaks.get(name, 0.0), finite)
        over = tuple(name for name, peak in peaks.items() if peak > LARGEST)
        largest_node = max(peaks, key=peaks.__getitem__)
        return Range(largest, subnormal, lost, peaks[largest_node], largest_node, over)

    @property
    def origin(self) -> dict[str, str]:
        return {}

    def graph(self, batch: Batch, opset: int) -> ir.Model:
        if opset != self.document.opset:
            raise ExportError(
                f"{self.document.file} has operator set {self.document.opset}, and the board needs {opset}; "
                f"export the original model with that, such as by torch.onnx.export(..., opset_version={opset})"
            )
        return ir.load(self.path)

    def write(self, path: Path, form: Form, metadata: Mapping[str, str]) -> None:
        model = self.graph(form.batch, form.opset)
        if form.precision != self.document.precision:
            convert(model.graph, form.precision, form.fp32_modules)
        save_graph(model, path, metadata)


def _measure_outputs(graph: ir.Graph, *, masked: bool) -> list[str]:
    """Replace the outputs of the graph by the largest magnitude of each value; return the names of their nodes.

    If `masked`, infinities count as zeros.
    """
    names = []
    zero = ir.Value(name="no.magnitude", shape=ir.Shape(()), type=ir.TensorType(FLOAT))
    zero.const_value = ir.Tensor(np.zeros((), np.float32), name=zero.name)
    if masked:
        graph.initializers["no.magnitude"] = zero
    graph.outputs.clear()
    for node in [*graph]:
        for value in node.outputs:
            if value.dtype != FLOAT:
                continue
            nodes = [ir.node("Abs", [value])]
            if masked:
                nodes.append(ir.node("IsInf", [value]))
                nodes.append(ir.node("Where", [nodes[1].outputs[0], zero, nodes[0].outputs[0]]))
            nodes.append(ir.node("ReduceMax", [nodes[-1].outputs[0]], attributes={"keepdims": 0}))
            for added in nodes:
                kind = ir.DataType.BOOL if added.op_type == "IsInf" else FLOAT
                added.outputs[0].name, added.outputs[0].type = f"{value.name}.{added.op_type}", ir.TensorType(kind)
            peak = nodes[-1].outputs[0]
            peak.shape = ir.Shape(())
            graph.extend(nodes)
            graph.outputs.append(peak)
            names.append(node.name or "")
    return names


def open_imported(folder: Path) -> ImportedSource:
    """Open the folder of an imported ONNX file.

    Raises:
        CheckpointError: a file is missing or altered.
    """
    files = ModelFolder(folder)
    document, path = files.imported(), files.imported_onnx
    if not path.is_file():
        raise CheckpointError(f"{folder} is not complete: {path.name} is missing; import the ONNX file again")
    if fault := file_fault(path, document.weights_sha256, files.imported_file):
        raise CheckpointError(f"{fault}; copy the folder again, or import the ONNX file again")
    return ImportedSource(path, document, subject_of_imported(document, str(files.imported_file)))
