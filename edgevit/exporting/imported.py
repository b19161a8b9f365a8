"""The folder of an ONNX file that edgevit did not make, as what files and engines are written of."""

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
from edgevit.records.export import ExportedModel, Padding, Range
from edgevit.records.imported import ImportedDocument
from edgevit.records.model_folder import ModelFolder


def subject_of_imported(document: ImportedDocument, said_by: str) -> Subject:
    return Subject(
        class_names=tuple(c.name for c in document.classes),
        class_columns=tuple(c.base_index for c in document.classes),
        outputs=document.outputs,
        preprocessing=document.preprocessing,
        seed=document.data.seed if document.data else document.seed,
        validation_fraction=document.data.validation_fraction if document.data else document.validation_fraction,
        group_by=document.data.group_by if document.data else None,
        record=document.data,
        rejection=document.rejection,
        said_by=said_by,
    )


LARGEST_FLOAT = torch.finfo(torch.float32).max  # what is told in place of infinity and NaN, which JSON does not have
OPSET_OF_IS_INF = 10


@dataclass(frozen=True)
class ImportedSource:
    """An imported ONNX file, whose nodes are named by module."""

    path: Path  # of model.onnx
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
        raise OptionError("heads of an ONNX file are not padded; leave --pad-heads out")

    def check_range(self, images: Tensor) -> Range:
        """Measure the output of every node; the nodes that overflow are named, and may be kept in fp32.

        Infinite constants, as of a mask before a softmax, are as meant, and fp16 has infinities, too: so no infinity
        counts in a file that has such.
        """
        model = ir.load(self.path)
        of_floats = {name: value for name, value in model.graph.initializers.items() if value.dtype == FLOAT}
        weights = {name: torch.tensor(v.const_value.numpy()) for name, v in of_floats.items() if v.const_value}
        masked = any(bool(weight.isinf().any()) for weight in weights.values())
        named = ((name, weight.masked_fill(weight.isinf(), 0)) for name, weight in weights.items())
        largest, subnormal, lost = check_weights(named, WITHOUT)
        names = _measure_outputs(model.graph, masked=masked and self.document.opset >= OPSET_OF_IS_INF)
        seen = largest_values(ir.to_proto(model).SerializeToString(), self.path, images, self.document.batch)
        peaks: dict[str, float] = {}
        for name, peak in zip(names, seen, strict=True):  # of a node with several outputs, the largest of all
            finite = peak if math.isfinite(peak) else LARGEST_FLOAT
            peaks[name] = max(peaks.get(name, 0.0), finite)
        over = tuple(name for name, peak in peaks.items() if peak > LARGEST)
        where = max(peaks, key=peaks.__getitem__)
        return Range(largest, subnormal, lost, peaks[where], where, over)

    def write(self, path: Path, form: Form, metadata: Mapping[str, str]) -> None:
        if form.opset != self.document.opset:
            raise ExportError(
                f"{self.document.file} has operator set {self.document.opset}, and {form.opset} is the newest here; "
                f"export it with that where it comes from, such as torch.onnx.export(..., opset_version={form.opset})"
            )
        model = ir.load(self.path)
        convert(model.graph, form.precision, form.fp32_modules)
        save_graph(model, path, metadata)


def _measure_outputs(graph: ir.Graph, *, masked: bool) -> list[str]:
    """Have the graph put out the largest magnitude of every value instead of the logits; return whose it is.

    Where `masked`, infinities count as zeros.
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
            made = [ir.node("Abs", [value])]
            if masked:
                made.append(ir.node("IsInf", [value]))
                made.append(ir.node("Where", [made[1].outputs[0], zero, made[0].outputs[0]]))
            made.append(ir.node("ReduceMax", [made[-1].outputs[0]], attributes={"keepdims": 0}))
            for one in made:
                kind = ir.DataType.BOOL if one.op_type == "IsInf" else FLOAT
                one.outputs[0].name, one.outputs[0].type = f"{value.name}.{one.op_type}", ir.TensorType(kind)
            peak = made[-1].outputs[0]
            peak.shape = ir.Shape(())
            graph.extend(made)
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
