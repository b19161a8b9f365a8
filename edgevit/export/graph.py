"""From a torch network to an ONNX file: decomposed attention, scale on Q, no casts, no trace of this machine."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
from onnxscript import opset18 as op
from torch import nn

from edgevit.errors import ExportError

Batch = int | Literal["dynamic"]
INPUT, OUTPUT = "images", "logits"
PROTOBUF_LIMIT_BYTES = (
    2_000_000_000  # a protobuf message ends at 2 GiB; larger models keep their weights beside the file
)
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


def _forget_origin(model: Any) -> None:
    """Remove the exporter's notes: they hold stack traces with this machine's paths, and no two runs agree on them."""
    graph = model.graph
    values = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    for holder in (model, graph, *values):
        holder.metadata_props.clear()
    for node in graph:
        for holder in (node, *node.outputs):
            holder.metadata_props.clear()


def write_onnx(
    network: nn.Module,
    path: Path,
    *,
    input_size: tuple[int, int, int],
    batch: Batch,
    opset: int,
    metadata: Mapping[str, str],
) -> None:
    """Write the network as it is: its dtype is the file's, from the images to the logits.

    Raises:
        ExportError: the exporter failed.
    """
    dtype = next(network.parameters()).dtype
    # An example of one image would make the exporter take the batch for a constant.
    images = torch.zeros(2 if batch == "dynamic" else batch, *input_size, dtype=dtype)
    with exporter_boundary(path.name):
        program = torch.onnx.export(
            network,
            (images,),
            dynamo=True,
            opset_version=opset,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},) if batch == "dynamic" else None,
            custom_translation_table={torch.ops.aten.scaled_dot_product_attention.default: _attention},
            verbose=False,
        )
        assert program is not None  # it is None only for torch's older exporter
        _forget_origin(program.model)
        program.model.metadata_props.update(metadata)
        size = sum(p.numel() * p.element_size() for p in network.parameters())
        program.save(path, external_data=size > PROTOBUF_LIMIT_BYTES)
