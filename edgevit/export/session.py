"""An ONNX file opened by ONNX Runtime, with what its metadata says of its classes and images."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from edgevit.agent.onnx_runtime import GPU, import_onnxruntime, what_is_installed
from edgevit.agent.runners import RunnerError
from edgevit.errors import CheckpointError, ExportError, OptionError
from edgevit.folder.documents import Reader
from edgevit.folder.export import Batch
from edgevit.models.device import find_device

T = TypeVar("T")
READER = Reader(CheckpointError, mend="export the model again")
DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def find_runtime() -> Any:
    """Import ONNX Runtime, which edgevit can be installed without.

    Raises:
        ExportError: there is none, or two packages of it have overwritten one another.
    """
    try:
        return import_onnxruntime()
    except RunnerError as error:
        raise ExportError(str(error)) from error


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


def _provider(device: torch.device) -> tuple[str, dict[str, Any]]:
    """ONNX Runtime's name of a device; what it has no name for runs on the CPU."""
    if device.type == "cuda":
        return "CUDAExecutionProvider", {"device_id": device.index or 0}
    return "CPUExecutionProvider", {}


@contextmanager
def runtime_boundary(path: Path, error_type: type[CheckpointError] | type[ExportError]) -> Iterator[None]:
    """Turn what ONNX Runtime raises into one line."""
    try:
        yield
    except _failures() as error:
        reason = str(error).strip().splitlines()[0]
        raise error_type(f"ONNX Runtime cannot run {path}: {reason[:200]}; export the model again") from error


# ONNX Runtime 1.23 fails in it, and 1.31 does not, on an fp16 file whose LayerNorm is decomposed and in fp32.
BROKEN_FUSION = "SimplifiedLayerNormFusion"


class OnnxModel:
    """Calling `predict` runs the file on batches of any size, also where its own batch is fixed."""

    def __init__(self, path: Path, *, device: str = "cpu") -> None:
        """Open the file; `auto` means the GPU where both torch and ONNX Runtime can use it.

        Raises:
            CheckpointError: missing, truncated, or not a file that ONNX Runtime can run.
            ExportError: there is no ONNX Runtime.
            UnknownNameError, OptionError: no such device, or not on this machine.
        """
        if not path.is_file():
            raise CheckpointError(f"no ONNX file at {path}; check the path")
        onnxruntime = find_runtime()
        name, settings = _provider(find_device(device))
        if device == "auto" and name not in onnxruntime.get_available_providers():
            name, settings = _provider(torch.device("cpu"))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        with runtime_boundary(path, CheckpointError):
            self.session = onnxruntime.InferenceSession(
                str(path), options, providers=[(name, settings)], disabled_optimizers=[BROKEN_FUSION]
            )
        # Asked for a provider that it lists but cannot start, ONNX Runtime silently runs on the CPU.
        if device != "auto" and self.session.get_providers()[0] != name:
            raise OptionError(
                f"ONNX Runtime cannot use {device} on this machine: {what_is_installed()}; try {GPU} (edgevit[gpu]) "
                "alone, with its CUDA libraries, or --device cpu"
            )
        self.path = path
        self.input = self.session.get_inputs()[0]
        self.output = self.session.get_outputs()[0]
        shape, out = self.input.shape, self.output.shape
        if len(shape) != 4 or len(out) != 2 or not isinstance(out[1], int) or self.input.type not in DTYPES:
            raise CheckpointError(
                f"{path} maps {self.input.type} {shape} to {out} and is no image classifier; "
                f"give a file that `edgevit export` wrote"
            )
        self.batch: int | None = shape[0] if isinstance(shape[0], int) else None
        self.dtype = DTYPES[self.input.type]
        self.metadata: dict[str, str] = dict(self.session.get_modelmeta().custom_metadata_map)

    def described(self, key: str, kind: type[T]) -> T:
        """Read one of the metadata's JSON values.

        Raises:
            CheckpointError: the file has none, so edgevit did not export it; or it is of another type.
        """
        if key not in self.metadata:
            raise CheckpointError(
                f"{self.path} has no {key!r} in its metadata, so edgevit did not write it; make a folder of it with "
                f"`edgevit export {shlex.quote(str(self.path))} --out DIR`, and give that"
            )
        return READER.parse(self.metadata[key], kind, f"{self.path}, {key!r} in its metadata,")

    def predict(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] to logits [B, outputs], float32 on the CPU whatever the file computes in."""
        inputs = images.cpu().numpy().astype(self.dtype)
        step = self.batch or max(len(inputs), 1)
        parts = [self._run(inputs[i : i + step], step) for i in range(0, len(inputs), step)]
        return torch.from_numpy(np.concatenate(parts).astype(np.float32))

    def _run(self, inputs: Any, step: int) -> Any:
        count = len(inputs)
        if self.batch and count < step:
            inputs = np.concatenate([inputs, np.zeros((step - count, *inputs.shape[1:]), inputs.dtype)])
        with runtime_boundary(self.path, ExportError):
            return self.session.run([self.output.name], {self.input.name: inputs})[0][:count]


def largest_values(model: bytes, path: Path, images: Tensor, batch: Batch) -> list[float]:
    """Run a graph whose outputs are single numbers, the larger the worse, on the images; return each one's largest.

    Raises:
        CheckpointError: ONNX Runtime cannot run it; `path` is where it comes from.
    """
    options = find_runtime().SessionOptions()
    options.log_severity_level = 3
    step = len(images) if batch == "dynamic" else batch
    with runtime_boundary(path, CheckpointError):
        session = find_runtime().InferenceSession(model, options, providers=["CPUExecutionProvider"])
        name, runs = session.get_inputs()[0].name, []
        for start in range(0, len(images), step):
            part = images[start : start + step].numpy()
            runs.append(session.run(None, {name: np.resize(part, (step, *part.shape[1:]))}))
    return [float(np.max(values)) for values in zip(*runs, strict=True)]
