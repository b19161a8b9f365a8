"""Read an ONNX file that edgevit did not write, and check that a board could run it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from edgevit.errors import CheckpointError, ExportError, OptionError, UnknownNameError
from edgevit.exporting.graph import PROTOBUF_LIMIT_BYTES
from edgevit.exporting.request import OPSETS
from edgevit.records.export import Batch
from edgevit.records.precisions import FP16, FP32, INT8
from edgevit.records.release import refuse_lfs_pointer

_STANDARD_DOMAINS = ("", "ai.onnx")
QUANTISED = ("QuantizeLinear", "DequantizeLinear")
_INTEGER = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")


@dataclass(frozen=True)
class Interface:
    """The input of a model of images."""

    name: str  # name of the input
    batch: Batch
    sizes: tuple[int | None, int | None, int | None]  # channels, height, width; None: dynamic


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Convert parse errors of invalid or truncated ONNX files to CheckpointError.

    Raises:
        CheckpointError: the file is invalid or truncated.
    """
    try:
        yield
    except DecodeError as error:
        raise CheckpointError(f"{file} is not an ONNX file, or is damaged; check the path, or copy it again") from error
    except (OSError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(
            f"{file} is not a complete ONNX file: {reason[:200]}; copy it again, with its external files"
        ) from error


def check_nodes(file: Path, model: onnx.ModelProto) -> int:
    """Check that the model is valid ONNX with operators that a board can run; return the operator set."""
    if not model.graph.node:
        raise CheckpointError(f"{file} has no nodes, so it is not a model; check the path")
    operators = {
        (node.domain, node.op_type) for node in (*model.graph.node, *(n for f in model.functions for n in f.node))
    }
    function_domains = {function.domain for function in model.functions}
    if strange := sorted(
        f"{domain}.{name}" for domain, name in operators if domain not in (*_STANDARD_DOMAINS, *function_domains)
    ):
        raise ExportError(
            f"{file} has {', '.join(strange[:3])}, which TensorRT does not support; export the model without the "
            "optimisations of the program that adds them"
        )
    if integer := sorted({name for _, name in operators if name in _INTEGER}):
        raise ExportError(
            f"{file} is quantised by {', '.join(integer)}, which TensorRT does not support; quantise it with "
            f"{' and '.join(QUANTISED)}, or measure it as it is with `edgevit bench {shlex.quote(str(file))}`"
        )
    opset = next((entry.version for entry in model.opset_import if entry.domain in _STANDARD_DOMAINS), 0)
    if opset > OPSETS[-1]:
        raise ExportError(
            f"{file} has operator set {opset}, and JetPack's parsers read up to {OPSETS[-1]}; export the model with "
            f"opset_version={OPSETS[-1]}"
        )
    with _reading(file):
        onnx.checker.check_model(str(file), full_check=True)
    return opset


def precision_in(model: onnx.ModelProto) -> str:
    """The precision of a file, by its weights and operators."""
    if any(node.op_type in QUANTISED for node in model.graph.node):
        return INT8.name
    types = {tensor.data_type for tensor in model.graph.initializer}
    return FP16.name if onnx.TensorProto.FLOAT16 in types else FP32.name


def select_output(file: Path, graph: onnx.GraphProto, name: str | None) -> None:
    """Remove all outputs of a graph except the one of this name, in place; None: change nothing.

    Raises:
        UnknownNameError: the graph has no such output.
    """
    if name is None:
        return
    named = {value.name: value for value in graph.output}
    if name not in named:
        raise UnknownNameError(f"output of {file}", name, sorted(named))
    selected = named[name]
    del graph.output[:]
    graph.output.append(selected)


def read_interface(file: Path, graph: onnx.GraphProto) -> Interface:
    """Check that the graph has one input, of a batch of images, and one output."""
    weights = {weight.name for weight in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    for kind, values in (("input", inputs), ("output", list(graph.output))):
        if len(values) != 1:
            named = ", ".join(value.name for value in values) or "none"
            attempt = f"export it with only {'images as input' if kind == 'input' else 'one output'}"
            if kind == "output" and values:
                attempt = f"name the one to export, such as --output-name {shlex.quote(values[0].name)}"
            raise CheckpointError(f"{file} has {len(values)} {kind}s ({named}), and one is expected; {attempt}")
    tensor = inputs[0].type.tensor_type
    shape = [dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim]  # -1 or 0: dynamic
    if tensor.elem_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        raise CheckpointError(f"{file} takes images of {kind}; give the model in fp32 or fp16")
    if len(shape) != 4 or shape[1] not in (None, 3):
        raise CheckpointError(f"{file} takes {shape}, and images are batch, 3, height, width; give a model of images")
    return Interface(inputs[0].name, shape[0] or "dynamic", (shape[1], shape[2], shape[3]))


def resolve_batch(file: Path, fixed: Batch, requested: Batch) -> Batch:
    """The fixed batch of the file, otherwise the requested one."""
    if fixed == "dynamic" or requested in ("dynamic", fixed):
        return requested if fixed == "dynamic" else fixed
    raise OptionError(f"{file} has a fixed batch of {fixed}, and --batch {requested} was asked for; leave --batch out")


def resolve_size(file: Path, interface: Interface, requested: Sequence[int] | None) -> list[int] | None:
    """The size of the images: of the file where it is fixed, otherwise as requested; None: unknown."""
    for fixed, size in zip(interface.sizes, requested or (), strict=requested is not None):
        if fixed is not None and requested and fixed != size:
            expected = "x".join("?" if side is None else str(side) for side in interface.sizes)
            raise OptionError(f"{file} takes images of {expected}, and --input-size is {'x'.join(map(str, requested))}")
    if requested:
        return list(requested)
    return None if None in interface.sizes else [size for size in interface.sizes if size is not None]


def read_file(file: Path) -> onnx.ModelProto:
    """Read the model with its external weights."""
    with _reading(file), file.open("rb") as opened:
        begin = opened.read(9)
        refuse_lfs_pointer(file)
    if begin.startswith(b"PK\x03\x04") or begin[8:9] == b"{":
        raise CheckpointError(
            f"{file} contains weights without a graph, despite its name; try `edgevit base NAME --checkpoint FILE "
            "--out DIR` with a suffix of weights"
        )
    with _reading(file):
        model = onnx.load(file)
        if model.ByteSize() > PROTOBUF_LIMIT_BYTES:
            raise ExportError(
                f"{file} and its weights are larger than 2 GB, the limit of an engine; export a smaller model"
            )
    return model
