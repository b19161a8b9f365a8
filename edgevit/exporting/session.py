"""Run an ONNX file in ONNX Runtime, and read its metadata."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from edgevit.agent.onnx_runtime import BROKEN_FUSION, GPU, describe_installed, import_onnxruntime
from edgevit.agent.runners import RunnerError
from edgevit.errors import CheckpointError, ExportError, OptionError
from edgevit.network.device import find_device
from edgevit.records.documents import Reader
from edgevit.records.export import Batch
from edgevit.records.release import refuse_lfs_pointer

T = TypeVar("T")
_READER = Reader(CheckpointError, hint="export the model again")
_Provider = tuple[str, dict[str, Any]]  # name of a provider, and its options
_INPUT_LIMIT_BYTES = 4 << 30
OUTPUT_KIND = "output"  # metadata key of files whose output is not logits
_LEVELS = '"boxes"'  # its value where each level of a detector's pyramid is an output
_TOKENS = '"features"'  # its value where class token and patches may be outputs
DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


def find_runtime() -> Any:
    """Import ONNX Runtime, which is optional.

    Raises:
        ExportError: it is missing, or two packages of it conflict.
    """
    try:
        return import_onnxruntime()
    except RunnerError as error:
        raise ExportError(str(error)) from error


def refuse_huge(path: Path, shape: Sequence[int]) -> None:
    """Raise CheckpointError if one input of this shape, in fp32, is too large."""
    if (size := 4 * math.prod(shape)) > _INPUT_LIMIT_BYTES:
        raise CheckpointError(
            f"{path} takes {'x'.join(map(str, shape))} values at once, {size / 1e9:.0f} GB, and "
            f"{_INPUT_LIMIT_BYTES / 1e9:.0f} GB is the limit; export it with a smaller batch, or smaller images"
        )


def open_session(model: Path | bytes, provider: _Provider = ("CPUExecutionProvider", {})) -> Any:
    """Open a file, or its content, without logs: errors are raised anyway, and logs change the terminal's colours."""
    runtime = find_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # fatal errors only
    source = model if isinstance(model, bytes) else str(model)
    return runtime.InferenceSession(source, options, providers=[provider], disabled_optimizers=[BROKEN_FUSION])


def _failures() -> tuple[type[Exception], ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as raised

    return (
        raised.Fail,
        raised.InvalidArgument,
        raised.InvalidGraph,
        raised.InvalidProtobuf,
        raised.NoSuchFile,
        raised.NotImplemented,
        raised.RuntimeException,
    )


def _provider(device: torch.device) -> _Provider:
    """ONNX Runtime's provider of a device; the CPU for unknown devices."""
    if device.type == "cuda":
        return "CUDAExecutionProvider", {"device_id": device.index or 0}
    return "CPUExecutionProvider", {}


@contextmanager
def runtime_boundary(path: Path, error_type: type[CheckpointError] | type[ExportError]) -> Iterator[None]:
    """Convert errors of ONNX Runtime to this type."""
    try:
        yield
    except _failures() as error:
        reason = str(error).strip().splitlines()[0]
        raise error_type(f"ONNX Runtime cannot run {path}: {reason[:200]}; export the model again") from error


def joined(outputs: Sequence[Tensor]) -> Tensor:
    """The outputs [B, ...] of a network as one tensor, one after the other in each image.

    A class token [B, d] and patches [B, N, d], of one or several blocks, become tokens [B, N', d]; the levels of a
    pyramid become [B, values].
    """
    if len(outputs) == 1:
        return outputs[0]
    widths = {output.shape[-1] for output in outputs}
    if len(widths) == 1 and all(output.ndim < 4 for output in outputs):
        return torch.cat([output.reshape(len(output), -1, *widths) for output in outputs], 1)
    return torch.cat([output.flatten(1) for output in outputs], 1)


class GraphModel:
    """Runs a graph in memory on batches of images."""

    def __init__(self, model: ir.Model) -> None:
        self.path = Path("a graph in memory")
        with runtime_boundary(self.path, ExportError):
            self.session = open_session(ir.to_proto(model).SerializeToString())
        self.input = self.session.get_inputs()[0].name

    def run(self, images: Tensor) -> list[Tensor]:
        """All outputs for images [B, C, H, W]."""
        with runtime_boundary(self.path, ExportError):
            return [torch.from_numpy(value) for value in self.session.run(None, {self.input: images.numpy()})]

    def predict(self, images: Tensor) -> Tensor:
        """The output [B, ...]; several as by `joined`."""
        return joined(self.run(images))


class OnnxModel:
    """Runs an ONNX file on batches of any size, even if its batch is fixed."""

    def __init__(self, path: Path, *, device: str = "cpu") -> None:
        """Open the file; `auto`: the GPU if both torch and ONNX Runtime can use it.

        Raises:
            CheckpointError: missing, truncated, or not a file that ONNX Runtime can run.
            ExportError: there is no ONNX Runtime.
            UnknownNameError, OptionError: no such device, or not on this machine.
        """
        if not path.is_file():
            raise CheckpointError(f"no ONNX file at {path}; check the path")
        refuse_lfs_pointer(path)
        onnxruntime = find_runtime()
        name, settings = _provider(find_device(device))
        if device == "auto" and name not in onnxruntime.get_available_providers():
            name, settings = _provider(torch.device("cpu"))
        with runtime_boundary(path, CheckpointError):
            self.session = open_session(path, (name, settings))
        # ONNX Runtime silently uses the CPU if a listed provider cannot start.
        if device != "auto" and self.session.get_providers()[0] != name:
            raise OptionError(
                f"ONNX Runtime cannot use {device} on this machine: {describe_installed()}; try {GPU} (edgevit[gpu]) "
                "alone, with its CUDA libraries, or --device cpu"
            )
        self.path = path
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        self.metadata: dict[str, str] = dict(self.session.get_modelmeta().custom_metadata_map)
        kind = self.metadata.get(OUTPUT_KIND)
        self.of_levels = kind == _LEVELS
        if len(inputs) != 1 or (len(outputs) != 1 and kind not in (_LEVELS, _TOKENS)):
            several = f" --output-name {shlex.quote(outputs[0].name)}" if len(outputs) > 1 else ""
            raise CheckpointError(
                f"{path} has {len(inputs)} inputs and {len(outputs)} outputs, and an image classifier has one of each; "
                + (
                    f"make a folder of it with `edgevit export {shlex.quote(str(path))} --out DIR{several}`"
                    if len(inputs) == 1 and outputs
                    else "export it with images as its only input and its logits as output"
                )
            )
        self.input, self.output, self.outputs = inputs[0], outputs[0], outputs
        shape, out = self.input.shape, self.output.shape
        sized = all(isinstance(size, int) for output in outputs for size in output.shape[1:])
        sized = sized and (len(out) == 2 or OUTPUT_KIND in self.metadata)
        dimensions = 2 if self.input.type == "tensor(int64)" else 4  # ids of texts, or images
        if len(shape) != dimensions or not sized or self.input.type not in DTYPES:
            raise CheckpointError(
                f"{path} maps {self.input.type} {shape} to {out} and is no classifier of images or texts; "
                "give a file that `edgevit export` wrote, or the folder that it makes of an ONNX file of images"
            )
        self.batch: int | None = shape[0] if isinstance(shape[0], int) else None
        refuse_huge(path, [size for size in shape if isinstance(size, int)])
        self.dtype = DTYPES[self.input.type]

    def described(self, key: str, kind: type[T]) -> T:
        """Read a JSON value of the metadata.

        Raises:
            CheckpointError: it is missing, so edgevit did not write the file; or it is of another type.
        """
        if key not in self.metadata:
            raise CheckpointError(
                f"{self.path} has no {key!r} in its metadata, so edgevit did not write it; make a folder of it with "
                f"`edgevit export {shlex.quote(str(self.path))} --out DIR`, and give that"
            )
        return _READER.parse(self.metadata[key], kind, f"{self.path}, {key!r} in its metadata,")

    def predict(self, images: Tensor) -> Tensor:
        """Outputs [B, ...] of images [B, C, H, W], in float32 on the CPU: several as by `joined`."""
        inputs = images.cpu().numpy().astype(self.dtype)
        step = self.batch or max(len(inputs), 1)
        parts = [self._run(inputs[i : i + step], step) for i in range(0, len(inputs), step)]
        return torch.cat(parts).float()

    def _run(self, inputs: Any, step: int) -> Tensor:
        count = len(inputs)
        if self.batch and count < step:
            inputs = np.concatenate([inputs, np.zeros((step - count, *inputs.shape[1:]), inputs.dtype)])
        with runtime_boundary(self.path, ExportError):
            outputs = self.session.run(None, {self.input.name: inputs})
        whole = joined([torch.from_numpy(output) for output in outputs])
        return (whole.flatten(1) if self.of_levels else whole)[:count]


def largest_values(model: bytes, path: Path, images: Tensor, batch: Batch) -> list[float]:
    """Run a graph with scalar outputs on the images; return the largest value of each output.

    Raises:
        CheckpointError: ONNX Runtime cannot run it; `path` is the original file.
    """
    step = len(images) if batch == "dynamic" else batch
    with runtime_boundary(path, CheckpointError):
        session = open_session(model)
        name, runs = session.get_inputs()[0].name, []
        for start in range(0, len(images), step):
            part = images[start : start + step].numpy()
            runs.append(session.run(None, {name: np.resize(part, (step, *part.shape[1:]))}))
    return [float(np.max(values)) for values in zip(*runs, strict=True)]
