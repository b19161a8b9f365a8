"""A model repository of Triton Inference Server: NAME/config.pbtxt, NAME/labels.txt and NAME/1/."""

from __future__ import annotations

import json
from pathlib import Path

from edgevit.records.engine import EngineTensor
from edgevit.records.precisions import FP32
from edgevit.serving.model import ServedModel

MOST_IMAGES = 8  # largest batch of an ONNX file with a dynamic batch
_LABELS = "labels.txt"
_TYPES = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}


def triton_config(served: ServedModel, *, labels: bool) -> str:
    """config.pbtxt. With max_batch_size 0, `dims` states the fixed batch, and Triton adds none."""
    most = served.engine.batches[2] if served.engine else MOST_IMAGES
    lines = [
        f"name: {json.dumps(served.name, ensure_ascii=False)}",
        f'platform: "{"tensorrt_plan" if served.engine else "onnxruntime_onnx"}"',
        f"max_batch_size: {most if served.is_dynamic else 0}",
        f"input [ {_tensor(served.images)} ]",
        f"output [ {', '.join(_tensor(output, labels=labels) for output in served.outputs)} ]",
        *(["dynamic_batching { }"] if served.is_dynamic else []),
    ]
    return "\n".join(lines) + "\n"


def _tensor(tensor: EngineTensor, *, labels: bool = False) -> str:
    dims = ", ".join(str(size) for size in tensor.shape if size >= 0)
    label = f' label_filename: "{_LABELS}"' if labels else ""
    return f"{{ name: {json.dumps(tensor.name)} data_type: {_TYPES[tensor.dtype]} dims: [ {dims} ]{label} }}"


def write_triton(served: ServedModel, folder: Path) -> list[str]:
    """Write the repository; return what the README says of it."""
    model, classes = folder / served.name, served.export.classes
    (model / "1").mkdir(parents=True)
    served.copy(model / "1" / ("model.plan" if served.engine else "model.onnx"))
    # With a fixed batch Triton would classify all values as those of one image.
    labels = bool(classes) and (served.is_dynamic or served.images.shape[0] == 1)
    if labels:
        served.check_classes("triton", "\n")
        names = {entry.column: entry.name for entry in classes}
        lines = (f"{names.get(column, '')}\n" for column in range(served.outputs[0].shape[1]))
        (model / _LABELS).write_text("".join(lines), encoding="utf-8")
    (model / "config.pbtxt").write_text(triton_config(served, labels=labels), encoding="utf-8")
    return [
        "    tritonserver --model-repository=$PWD",
        "",
        f"`{served.images.name}` takes {served.images.dtype} images that the client has prepared as below; "
        f"its outputs are {served.outputs[0].dtype}.",
        *(
            ["Triton's classification extension takes fp32 only: name classes in the client, or package fp32."]
            if labels and served.outputs[0].dtype != FP32.dtype
            else []
        ),
        *(
            ["Outputs with an empty label are none of the target classes: choose among the others."]
            if labels and served.outputs[0].shape[1] > len(classes)
            else []
        ),
    ]
