"""From a torch network to an ONNX file: decomposed attention, scale on Q, no trace of this machine.

Every node is named by the module it comes from, `blocks.3.attn.qkv/MatMul`: TensorRT carries these names into its
layers, so that a board can be told which to keep in fp32 and what it says of a layer can be traced back.
"""

from __future__ import annotations

import ast
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op
from torch import nn

from edgevit.errors import ExportError
from edgevit.exporting.halving import convert
from edgevit.network.families import family_like
from edgevit.records.export import Batch
from edgevit.records.precisions import FP32

INPUT, OUTPUT = "images", "logits"
PROTOBUF_LIMIT_BYTES = (
    2_000_000_000  # a protobuf message ends at 2 GiB; larger models keep their weights beside the file
)
NATIVE_OPSET = 18  # torch's exporter writes this and newer
NATIVE_LAYER_NORM = 17  # the first operator set with LayerNormalization
OLD_IR_VERSION = 8  # of ONNX when these operator sets were current: what old parsers were built to read
_BEYOND = np.iinfo(np.int64).max  # behind the last dimension of any shape
_SCOPES = "pkg.torch.onnx.name_scopes"  # the exporter's note of the modules that a node lies in, outermost first
_CHATTY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


def _attention(  # type: ignore[no-untyped-def]
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Translate scaled dot product attention.

    The exporter's own translation scales Q and K by the root of the scale each and reshapes K through shape arithmetic;
    this is the form that NVIDIA's compiler is known to fuse, and what a reader of the graph expects.
    """
    assert attn_mask is None and not is_causal, "no Vision Transformer here masks its attention"
    factor = op.CastLike(op.Constant(value_float=scale or query.shape[-1] ** -0.5), query)  # folded by the optimiser
    scores = op.MatMul(op.Mul(query, factor), op.Transpose(key, perm=[0, 1, 3, 2]))
    return op.MatMul(op.Softmax(scores, axis=-1), value)


def _layer_norm(input, normalized_shape, weight, bias, eps=1e-5, cudnn_enable=True):  # type: ignore[no-untyped-def]
    """Translate layer normalisation over the last axis to primitives, for parsers that have no operator for it."""
    assert len(normalized_shape) == 1 and weight is not None and bias is not None, "as every Vision Transformer has it"
    axis = op.Constant(value_ints=[-1])
    centred = op.Sub(input, op.ReduceMean(input, axis))
    variance = op.ReduceMean(op.Mul(centred, centred), axis)
    least = op.CastLike(op.Constant(value_float=eps), input)
    return op.Add(op.Mul(op.Div(centred, op.Sqrt(op.Add(variance, least))), weight), bias)


def _sort(input, stable=True, dim=-1, descending=False):  # type: ignore[no-untyped-def]
    """Translate a stable sort: of equal values ONNX's TopK takes the one with the lower index first."""
    return op.TopK(input, op.Constant(value_ints=[input.shape[dim]]), axis=dim, largest=int(descending), sorted=1)


def _translations(opset: int) -> dict[Any, Any]:
    table = {
        torch.ops.aten.scaled_dot_product_attention.default: _attention,
        torch.ops.aten.sort.stable: _sort,  # by which tokens are chosen, and which the exporter does not know
    }
    return table if opset >= NATIVE_LAYER_NORM else {**table, torch.ops.aten.layer_norm.default: _layer_norm}


def _lower(model: Any, opset: int) -> None:
    """Turn a graph of operator set 18 into one of 16 or 17, in place.

    Of the operators that a Vision Transformer decomposes to, 18 changed two: the axes of a reduction became an input,
    and Split got a number of outputs, which is that of its outputs. `check_graph` holds the result to the older rules.
    """
    for node in model.graph:
        if node.op_type in ("ReduceMean", "ReduceMax") and len(node.inputs) > 1:
            axes = node.inputs[1].const_value.numpy().tolist()
            node.resize_inputs(1)
            node.attributes["axes"] = ir.AttrInt64s("axes", axes)
            node.attributes.pop("noop_with_empty_axes", None)
        elif node.op_type == "Split":
            node.attributes.pop("num_outputs", None)
    for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
        del model.graph.initializers[name]
    model.opset_imports[""] = opset
    model.ir_version = OLD_IR_VERSION


def plain_shapes(graph: ir.Graph) -> None:
    """Take the part of a shape that is asked for in an operation of its own, in place, wherever Shape itself takes it.

    The parser of TensorRT 8 does not look at `start` and `end` of Shape and gives the whole shape instead (importer of
    Shape in onnx-tensorrt's sources): a class token, expanded to the batch, would get six dimensions.
    """
    for node in [node for node in graph if node.op_type == "Shape" and node.attributes]:
        bounds = {"start": 0, "end": _BEYOND} | {name: given.as_int() for name, given in node.attributes.items()}
        node.attributes.clear()
        part = node.outputs[0]
        held = []
        for name, bound in bounds.items():
            tensor = ir.tensor(np.array([bound]), name=f"{part.name}.{name}")
            held.append(
                ir.Value(
                    name=tensor.name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor
                )
            )
            graph.initializers[f"{part.name}.{name}"] = held[-1]
        taken = ir.node("Slice", [part, *held])
        taken.outputs[0].name, part.name = part.name, f"{part.name}.whole"
        taken.outputs[0].shape, taken.outputs[0].type = part.shape, part.type
        whole = node.inputs[0].shape if node.inputs[0] is not None else None
        part.shape = ir.Shape([len(whole)]) if whole is not None else None
        ir.convenience.replace_all_uses_with(part, taken.outputs[0])
        taken.replace_input_with(0, part)
        graph.insert_after(node, taken)


@contextmanager
def exporter_boundary(what: str) -> Iterator[None]:
    """Keep the exporter quiet, and turn what it raises into one line.

    Raises:
        ExportError: the exporter failed.
    """
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except torch.onnx.OnnxExporterError as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ExportError(f"cannot export {what}: {reason[:200]}; try --opset 20, or another torch") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _module_of(node: Any, modules: Mapping[str, nn.Module], found: Mapping[Any, str]) -> str:
    """The module a node lies in; one that the exporter's optimiser made lies where its first input comes from."""
    if _SCOPES not in node.metadata_props:
        return next((found[i.producer()] for i in node.inputs if i is not None and i.producer() in found), "")
    known = [scope for scope in ast.literal_eval(node.metadata_props[_SCOPES]) if scope in modules]
    return known[-1] if known else ""


def _name_nodes(model: Any, network: nn.Module) -> None:
    """Name every node by its module and operator, numbered where there are several; the same in every run."""
    modules, seen, found = dict(network.named_modules()), Counter[str](), dict[Any, str]()
    for node in model.graph:
        found[node] = module = _module_of(node, modules, found)
        name = f"{module or 'model'}/{node.op_type}"
        node.name = f"{name}_{seen[name]}" if seen[name] else name
        seen[name] += 1


def _forget_origin(model: Any) -> None:
    """Remove the exporter's notes: they hold stack traces with this machine's paths, and no two runs agree on them."""
    graph = model.graph
    values = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    for holder in (model, graph, *values):
        holder.metadata_props.clear()
    for node in graph:
        for holder in (node, *node.outputs):
            holder.metadata_props.clear()


def trace(network: nn.Module, *, input_size: tuple[int, int, int], batch: Batch, opset: int) -> ir.Model:
    """The network as a graph in fp32; this takes a second, what is made of the graph milliseconds.

    Below opset 18 it is of old operators only, below 17 layer normalisation is decomposed, too.

    Raises:
        ExportError: the exporter failed.
    """
    # An example of one image would make the exporter take the batch for a constant.
    images = torch.zeros(2 if batch == "dynamic" else batch, *input_size)
    with exporter_boundary("the network"), family_like(network).of_one_size(network):
        program = torch.onnx.export(
            network,
            (images,),
            dynamo=True,
            opset_version=max(opset, NATIVE_OPSET),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},) if batch == "dynamic" else None,
            custom_translation_table=_translations(opset),
            verbose=False,
        )
        assert program is not None  # it is None only for torch's older exporter
        if opset < NATIVE_OPSET:
            _lower(program.model, opset)
        plain_shapes(program.model.graph)
        _name_nodes(program.model, network)
        _forget_origin(program.model)
        return program.model


def save_graph(model: ir.Model, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a file with this metadata and no other; the weights of a large one lie beside it."""
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    ir.save(model, path, external_data=f"{path.name}.data" if size > PROTOBUF_LIMIT_BYTES else None)


def write_onnx(
    network: nn.Module,
    path: Path,
    *,
    input_size: tuple[int, int, int],
    batch: Batch,
    opset: int,
    metadata: Mapping[str, str],
    precision: str = FP32.name,
) -> None:
    """Write one file of a network in fp32.

    Raises:
        ExportError: the exporter failed.
    """
    model = trace(network, input_size=input_size, batch=batch, opset=opset)
    convert(model.graph, precision)
    save_graph(model, path, metadata)
