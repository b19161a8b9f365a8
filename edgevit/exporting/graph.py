"""Write a torch network as an ONNX file: decomposed attention, scale on Q, no data of this machine.

Each node is named by its module, `blocks.3.attn.qkv/MatMul`. TensorRT names its layers after them, so that a build can
keep modules in fp32, and layers of an engine can be assigned to modules.
"""

from __future__ import annotations

import ast
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op
from torch import Tensor, nn

from edgevit.errors import ExportError
from edgevit.exporting.halving import convert
from edgevit.network.classifier import depths_in, tokens_of
from edgevit.network.detector import Pyramid
from edgevit.network.network import Network
from edgevit.records.export import Batch
from edgevit.records.model import TokenOutput, token_names
from edgevit.records.precisions import FP32

INPUT, IDS = "images", "ids"  # name of the input of images, and of texts
PROTOBUF_LIMIT_BYTES = 2_000_000_000  # limit of a protobuf message; larger models have an external file of weights
_NATIVE_OPSET = 18  # oldest operator set of torch's exporter
_NATIVE_LAYER_NORM = 17  # the first operator set with LayerNormalization
_OLD_IR_VERSION = 8  # version of ONNX's format with these operator sets, which old parsers read
_BEYOND = np.iinfo(np.int64).max  # after the last dimension of any shape
_SCOPES = "pkg.torch.onnx.name_scopes"  # the exporter's metadata: modules of a node, outermost first
_CHATTY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


def _attention(  # type: ignore[no-untyped-def]
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Translate scaled dot product attention.

    The exporter's translation scales Q and K each by the root of the scale and reshapes K by shape arithmetic; NVIDIA's
    compiler is known to fuse this form. Only what stands around a supported network, such as a text tower, has a mask
    of booleans, or one that is causal.
    """
    factor = op.CastLike(op.Constant(value_float=scale or query.shape[-1] ** -0.5), query)  # folded by the optimiser
    axes = [*range(len(key.shape))]
    scores = op.MatMul(op.Mul(query, factor), op.Transpose(key, perm=[*axes[:-2], axes[-1], axes[-2]]))
    if is_causal:
        attn_mask = op.Constant(value=ir.tensor(np.tri(query.shape[-2], key.shape[-2], dtype=bool)))
    if is_causal or (attn_mask is not None and attn_mask.dtype == ir.DataType.BOOL):
        zero, lowest = (op.CastLike(op.Constant(value_float=value), query) for value in (0.0, -np.inf))
        attn_mask = op.Where(attn_mask, zero, lowest)
    if attn_mask is not None:
        scores = op.Add(scores, attn_mask)
    return op.MatMul(op.Softmax(scores, axis=-1), value)


def _layer_norm(input, normalized_shape, weight, bias, eps=1e-5, cudnn_enable=True):  # type: ignore[no-untyped-def]
    """Translate layer normalisation to primitives, for parsers without the operator."""
    axes = op.Constant(value_ints=[*range(-len(normalized_shape), 0)])
    centred = op.Sub(input, op.ReduceMean(input, axes))
    variance = op.ReduceMean(op.Mul(centred, centred), axes)
    least = op.CastLike(op.Constant(value_float=eps), input)
    normed = op.Div(centred, op.Sqrt(op.Add(variance, least)))
    scaled = normed if weight is None else op.Mul(normed, weight)
    return scaled if bias is None else op.Add(scaled, bias)


def _mish(input):  # type: ignore[no-untyped-def]
    """Translate Mish, which no parser before TensorRT 10 has."""
    return op.Mul(input, op.Tanh(op.Softplus(input)))


def _sort(input, stable=True, dim=-1, descending=False):  # type: ignore[no-untyped-def]
    """Translate a stable sort: ONNX's TopK puts the lower index of equal values first."""
    return op.TopK(input, op.Constant(value_ints=[input.shape[dim]]), axis=dim, largest=int(descending), sorted=1)


def _translations(opset: int) -> dict[Any, Any]:
    table = {
        torch.ops.aten.scaled_dot_product_attention.default: _attention,
        torch.ops.aten.mish.default: _mish,
        torch.ops.aten.sort.stable: _sort,  # token selection uses it, and the exporter does not know it
    }
    return table if opset >= _NATIVE_LAYER_NORM else {**table, torch.ops.aten.layer_norm.default: _layer_norm}


def _lower(model: Any, opset: int) -> None:
    """Convert a graph of operator set 18 to 16 or 17, in place.

    Operator set 18 changed two operators of a Vision Transformer: the axes of a reduction became an input, and Split
    got an attribute with the number of its outputs. Resize, of heads, got two that mostly say what it did before.
    `check_graph` checks the result by the older rules.
    """
    for node in model.graph:
        if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum" and len(node.inputs) > 1:
            axes = node.inputs[1].const_value.numpy().tolist()
            node.resize_inputs(1)
            node.attributes["axes"] = ir.AttrInt64s("axes", axes)
            node.attributes.pop("noop_with_empty_axes", None)
        elif node.op_type == "Split":
            node.attributes.pop("num_outputs", None)
        elif node.op_type == "Resize":
            for name, before in (("keep_aspect_ratio_policy", "stretch"), ("antialias", 0)):
                if name in node.attributes and node.attributes[name].value == before:
                    del node.attributes[name]
    for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
        del model.graph.initializers[name]
    model.opset_imports[""] = opset
    model.ir_version = _OLD_IR_VERSION


def plain_shapes(graph: ir.Graph) -> None:
    """Replace each Shape with `start` or `end` by Shape and Slice, in place.

    The parser of TensorRT 8 ignores `start` and `end` of Shape and gives the whole shape (importer of Shape in the
    sources of onnx-tensorrt): a class token, expanded to the batch, would get six dimensions.
    """
    for node in [node for node in graph if node.op_type == "Shape" and node.attributes]:
        bounds = {"start": 0, "end": _BEYOND} | {
            name: attribute.as_int() for name, attribute in node.attributes.items()
        }
        node.attributes.clear()
        part = node.outputs[0]
        limits = []
        for name, bound in bounds.items():
            tensor = ir.tensor(np.array([bound]), name=f"{part.name}.{name}")
            limits.append(
                ir.Value(
                    name=tensor.name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor
                )
            )
            graph.initializers[f"{part.name}.{name}"] = limits[-1]
        sliced = ir.node("Slice", [part, *limits])
        sliced.outputs[0].name, part.name = part.name, f"{part.name}.whole"
        sliced.outputs[0].shape, sliced.outputs[0].type = part.shape, part.type
        whole = node.inputs[0].shape if node.inputs[0] is not None else None
        part.shape = ir.Shape([len(whole)]) if whole is not None else None
        ir.convenience.replace_all_uses_with(part, sliced.outputs[0])
        sliced.replace_input_with(0, part)
        graph.insert_after(node, sliced)


@contextmanager
def exporter_boundary(name: str) -> Iterator[None]:
    """Silence the exporter, and convert its errors to ExportError; `name` is the exported model in messages.

    Raises:
        ExportError: the exporter failed.
    """
    loggers = [logging.getLogger(logger) for logger in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except torch.onnx.OnnxExporterError as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ExportError(f"cannot export {name}: {reason[:200]}; try --opset 20, or another torch") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _module_of(node: Any, modules: Mapping[str, nn.Module], module_of: Mapping[Any, str]) -> str:
    """The module of a node; a node of the exporter's optimiser has the module of its first input."""
    if _SCOPES not in node.metadata_props:
        return next((module_of[i.producer()] for i in node.inputs if i is not None and i.producer() in module_of), "")
    scopes = [scope for scope in ast.literal_eval(node.metadata_props[_SCOPES]) if scope in modules]
    return scopes[-1] if scopes else ""


def _name_nodes(model: Any, module: nn.Module) -> None:
    """Name each node by its module and operator, numbered if there are several; deterministic."""
    modules, counts, module_of = dict(module.named_modules()), Counter[str](), dict[Any, str]()
    for node in model.graph:
        module_of[node] = scope = _module_of(node, modules, module_of)
        name = f"{scope or 'model'}/{node.op_type}"
        node.name = f"{name}_{counts[name]}" if counts[name] else name
        counts[name] += 1


def _clear_metadata(model: Any) -> None:
    """Remove the exporter's metadata: stack traces with paths of this machine, which differ between runs."""
    graph = model.graph
    values = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    for holder in (model, graph, *values):
        holder.metadata_props.clear()
    for node in graph:
        for holder in (node, *node.outputs):
            holder.metadata_props.clear()


@contextmanager
def _outputs_apart(network: Network, images: Tensor) -> Iterator[list[str]]:
    """Have a network give the levels of a pyramid, or class token and patches, apart within the context.

    Yields:
        the names of its outputs.
    """
    module: Any = network.module
    whole, tokens = module.forward, tokens_of(network)
    if isinstance(network.module, Pyramid):
        levels = network.module.levels
        names = [*levels(images)]
        module.forward = lambda images: tuple(levels(images).values())
    elif tokens is not None and network.output.kind == "features":
        names = [*token_names(tokens, depths := depths_in(network))]
        module.forward = lambda images: _tokens_apart(whole(images), tokens, depths)
    else:
        yield [network.output.noun]
        return
    try:
        yield names
    finally:
        del module.forward


def _tokens_apart(outputs: Tensor, tokens: TokenOutput, depths: Sequence[int]) -> tuple[Tensor, ...]:
    """Features [B, N, d] or [B, d], or [B, K, ...] after several blocks, in the order of `token_names`."""
    of_depths = outputs.unbind(1) if depths else (outputs,)
    if tokens != "class,patches":
        return of_depths
    return tuple(part for of_depth in of_depths for part in (of_depth[:, 0], of_depth[:, 1:]))


def trace(network: Network, *, input_size: tuple[int, ...], batch: Batch, opset: int) -> ir.Model:
    """Trace the network as a graph in fp32, which takes a second; its conversions take milliseconds.

    Below opset 18 it has old operators only, below 17 layer normalisation is decomposed, too.

    Raises:
        ExportError: the exporter failed, or the network's code takes the number of images as a constant.
    """
    # With an example of one image the exporter would treat the batch as a constant.
    texts = len(input_size) == 1
    images = torch.zeros(2 if batch == "dynamic" else batch, *input_size, dtype=torch.int64 if texts else None)
    with exporter_boundary("the network"), network.of_one_size(), _outputs_apart(network, images[:1]) as names:
        program = torch.onnx.export(
            network.module,
            (images,),
            dynamo=True,
            opset_version=max(opset, _NATIVE_OPSET),
            input_names=[IDS if texts else INPUT],
            output_names=names,
            dynamic_shapes=({0: torch.export.Dim("batch")},) if batch == "dynamic" else None,
            custom_translation_table=_translations(opset),
            verbose=False,
        )
        assert program is not None  # None only from torch's older exporter
        ends = (*program.model.graph.inputs, *program.model.graph.outputs)
        if batch == "dynamic" and any(end.shape is not None and isinstance(end.shape[0], int) for end in ends):
            # torch falls back to this without a word.
            raise ExportError(
                f"the network's code makes a file of {len(images)} images alone, as with len(images) in a head; give "
                "--batch 1, or derive from code with images.shape[0] in its place"
            )
        if opset < _NATIVE_OPSET:
            _lower(program.model, opset)
        plain_shapes(program.model.graph)
        _name_nodes(program.model, network.module)
        _clear_metadata(program.model)
        return program.model


def save_graph(model: ir.Model, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a file with this metadata only; a large model has an external file of weights."""
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    ir.save(model, path, external_data=f"{path.name}.data" if size > PROTOBUF_LIMIT_BYTES else None)


def write_onnx(
    network: Network,
    path: Path,
    *,
    input_size: tuple[int, ...],
    batch: Batch,
    opset: int,
    metadata: Mapping[str, str],
    precision: str = FP32.name,
) -> None:
    """Write one file of a network whose weights are in fp32.

    Raises:
        ExportError: the exporter failed.
    """
    model = trace(network, input_size=input_size, batch=batch, opset=opset)
    convert(model.graph, precision)
    save_graph(model, path, metadata)
