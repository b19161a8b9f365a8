"""A TensorRT engine in use: opened, described, and given the memory that it works on.

What is used of TensorRT exists in every release from 8.5 to 11.1; where releases differ, `hasattr` decides.
"""

from __future__ import annotations

import math
import random
import re
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from .cuda import Cuda
from .runners import RunnerError

_LINE = (150, 90)  # characters of a message of TensorRT's that are shown, of its beginning and of its end
_INSTALL = (
    "TensorRT comes with JetPack: `sudo apt install python3-libnvinfer`, and a virtual environment sees it only if "
    "made with `--system-site-packages`"
)
_CONTAINER = "start the container with `--runtime nvidia`, or use this board's own Python"
_AGAIN = "build it again with `edgevit export --trt`"

# TensorRT's name of a type, ours, and its `struct` format.
_TYPES = {
    "FLOAT": ("float32", "f"),
    "HALF": ("float16", "e"),
    "INT8": ("int8", "b"),
    "UINT8": ("uint8", "B"),
    "BOOL": ("bool", "?"),
    "INT32": ("int32", "i"),
    "INT64": ("int64", "q"),
}

_ORIGIN = re.compile(r"^(?:\d+: )?\[[^]]*::[^]]*\]\s*")  # 1: [file.cpp::function::line]
# 10 and later name both releases; 8 names the numbers of their file formats.
_OTHER_VERSION = re.compile(r"expecting library version (\S+) got (?:\.\.)?([^\s,]+)")
_OTHER_FORMAT = re.compile(r"Current Version: (\d+), Serialized Engine Version: (\d+)")
_OTHER_DEVICE = re.compile(r"expecting compute (\S+) got compute ([^\s,]+)")


def import_tensorrt() -> Any:
    try:
        import tensorrt
    except ModuleNotFoundError as error:
        raise RunnerError(f"no TensorRT for this Python ({error}); {_INSTALL}") from error
    except (ImportError, OSError) as error:  # a library that it needs is missing
        reason = str(error).strip().splitlines()[0]
        raise RunnerError(f"TensorRT is installed and cannot be loaded ({reason}); {_CONTAINER}") from error
    return tensorrt


def make_log(trt: Any) -> Any:
    """Return a logger that keeps what matters: `errors` and `warnings`, each a list of single lines."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            serious = severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
            if not serious and severity != trt.ILogger.WARNING:
                return
            lines = self.errors if serious else self.warnings
            line = _shortened(" ".join(_ORIGIN.sub("", message).split()))
            if line not in lines:
                lines.append(line)

    return Log()


def _shortened(line: str) -> str:
    """Leave out the middle: names of nodes may be long, and the reason stands behind them."""
    first, last = _LINE
    return line if len(line) <= first + last else f"{line[:first]} ... {line[-last:]}"


def first_error(log: Any) -> str:
    return str(log.errors[0]) if log.errors else "it gave no reason"


@dataclass(frozen=True)
class Tensor:
    """An input or output. The first axis is the batch; -1 where it is free."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def format(self) -> str:
        return next(form for name, form in _TYPES.values() if name == self.dtype)

    def bytes_at(self, batch: int) -> int:
        return self.bytes_of((batch, *self.shape[1:]))

    def bytes_of(self, shape: Sequence[int]) -> int:
        return struct.calcsize(self.format) * math.prod(shape)

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


def read_tensor(kind: str, name: str, dtype: Any, shape: Sequence[int]) -> Tensor:
    """Describe a tensor of a network or an engine.

    Raises: RunnerError.
    """
    if dtype.name not in _TYPES:
        names = ", ".join(name for name, _ in _TYPES.values())
        raise RunnerError(f"{kind} {name!r} has the type {dtype.name}; known: {names}; try exporting the model again")
    sizes = tuple(int(size) for size in shape)
    if not sizes or any(size < 0 for size in sizes[1:]):
        raise RunnerError(f"{kind} {name!r} has the shape {list(sizes)}; only its first axis may be dynamic")
    return Tensor(name, _TYPES[dtype.name][0], sizes)


@dataclass
class Engine:
    """An engine that TensorRT has accepted on this board."""

    trt: Any
    log: Any
    handle: Any  # TensorRT's ICudaEngine
    file_bytes: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def dynamic(self) -> bool:
        return any(tensor.shape[0] < 0 for tensor in self.inputs)

    def batches(self) -> tuple[int, int]:
        """Return the least and the most images at once."""
        ranges = [
            [int(shape[0]) for shape in self.handle.get_tensor_profile_shape(tensor.name, 0)]
            if tensor.shape[0] < 0
            else [tensor.shape[0]]
            for tensor in self.inputs
        ]
        return max(sizes[0] for sizes in ranges), min(sizes[-1] for sizes in ranges)

    def check_batch(self, batch: int) -> None:
        least, most = self.batches()
        if not least <= batch <= most:
            takes = f"from {least} to {most}" if self.dynamic else f"of {most}, fixed"
            raise RunnerError(
                f"batch {batch} was asked for, and this engine takes batches {takes}; "
                "build another with `edgevit export --batch dynamic --trt`"
            )

    def activation_bytes(self) -> int:
        """Return the device memory of one execution context, by TensorRT's own account."""
        if hasattr(self.handle, "device_memory_size_v2"):
            return int(self.handle.device_memory_size_v2)
        return int(self.handle.device_memory_size)

    def weight_bytes(self) -> int | None:
        """Return the device memory of the weights; releases before 10.14 do not tell."""
        if not hasattr(self.trt, "EngineStat"):
            return None
        return int(self.handle.get_engine_stat(self.trt.EngineStat.TOTAL_WEIGHTS_SIZE))


@contextmanager
def open_engine(trt: Any, log: Any, path: str) -> Iterator[Engine]:
    """Read an engine from a file.

    Raises:
        RunnerError: it is none, or one of another TensorRT or device.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise RunnerError(f"cannot read the engine {path} ({error.strerror}); {_AGAIN}") from error
    size = len(content)
    runtime = trt.Runtime(log)
    handle = runtime.deserialize_cuda_engine(content)
    del content  # the engine has its own copy, and the board one memory for both
    if handle is None:
        raise RunnerError(f"{path}: {_refusal(trt, log)}; {_AGAIN}")
    engine = Engine(trt, log, handle, size, *_read_tensors(trt, handle))
    del handle
    try:
        yield engine
    finally:
        engine.handle = None  # before CUDA is closed, whoever still holds this object


def _refusal(trt: Any, log: Any) -> str:
    """Say why TensorRT does not take an engine: it returns nothing, and only its log tells."""
    text = " ".join(log.errors)
    version, form, device = (pattern.search(text) for pattern in (_OTHER_VERSION, _OTHER_FORMAT, _OTHER_DEVICE))
    if version:
        return f"built by TensorRT {version.group(2)}, this board has {version.group(1)}"
    if form:
        return (
            f"built by another TensorRT (its files are version {form.group(2)}), "
            f"this board has {trt.__version__} (version {form.group(1)})"
        )
    if device:
        return f"built for compute capability {device.group(2)}, this board has {device.group(1)}"
    return f"TensorRT {trt.__version__} does not take it as an engine: {first_error(log)}"


def _read_tensors(trt: Any, handle: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for i in range(handle.num_io_tensors):
        name = handle.get_tensor_name(i)
        is_input = handle.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        kind = "input" if is_input else "output"
        tensor = read_tensor(kind, name, handle.get_tensor_dtype(name), handle.get_tensor_shape(name))
        (inputs if is_input else outputs).append(tensor)
    return tuple(inputs), tuple(outputs)


class Execution:
    """One execution context with its stream, and device memory for a batch; close it before its engine."""

    def __init__(self, engine: Engine, cuda: Cuda, batch: int) -> None:
        """Raises: RunnerError."""
        engine.check_batch(batch)
        self.engine = engine
        self.stream = cuda.stream()
        self.sizes: dict[str, int] = {}  # bytes of each tensor at this batch, and where they are
        self.addresses: dict[str, int] = {}
        self._profiler: Any = None
        self._context = engine.handle.create_execution_context()
        try:
            self._prepare(cuda, batch)
        except RunnerError:
            self.close()
            raise

    def _prepare(self, cuda: Cuda, batch: int) -> None:
        if self._context is None:
            hint, most = "close other programs", self.engine.batches()[1]
            if most > 1:  # whichever batch is run, it needs the memory of the largest
                option = "--batches 1,1,1" if self.engine.dynamic else "a smaller --batch"
                hint += f", or build it for fewer images than {most} at once with `edgevit export --trt` and {option}"
            raise RunnerError(f"TensorRT cannot prepare to run the engine: {first_error(self.engine.log)}; {hint}")
        if self.engine.dynamic and not self._has_profile():
            raise RunnerError(
                f"TensorRT {self.engine.trt.__version__} runs an engine of dynamic batch on one stream only; "
                "leave out --streams, or build one of fixed batch with `edgevit export --trt`"
            )
        self.resize(batch)
        for tensor in (*self.engine.inputs, *self.engine.outputs):
            name, shape = tensor.name, [int(size) for size in self._context.get_tensor_shape(tensor.name)]
            if min(shape) < 0:
                raise RunnerError(
                    f"output {name!r} has a first axis that depends on the values of the images; {_AGAIN}"
                )
            # The first axis of an output need not be the batch: it may be tokens, or all tokens of all images.
            self.sizes[name] = tensor.bytes_of(shape)
            self.addresses[name] = cuda.malloc(self.sizes[name])
            self._check(self._context.set_tensor_address(name, self.addresses[name]), f"the address of {name!r}")

    def _has_profile(self) -> bool:
        """Whether the context has the engine's one profile: the first has it at once, a later one has to ask.

        8.5 refuses, as a profile serves one context there; 8.6 shares those that were built to be shared.
        """
        context = self._context
        chosen = context.active_optimization_profile >= 0
        return chosen or bool(context.set_optimization_profile_async(0, self.stream))

    def resize(self, batch: int) -> None:
        """Run the next ones with this many images, no more than there was memory taken for."""
        for tensor in self.engine.inputs:
            if tensor.shape[0] < 0:
                shape = (batch, *tensor.shape[1:])
                self._check(self._context.set_input_shape(tensor.name, shape), f"the shape {list(shape)}")

    def enqueue(self) -> None:
        """Start one inference on the stream."""
        self._check(self._context.execute_async_v3(self.stream), "to run")

    def profile(self) -> Callable[[], list[tuple[str, int]]]:
        """Have TensorRT time each layer from now on; return what gives, after each inference, its layers' nanoseconds.

        The times are gathered when they are asked for, and not within the inference, which they would make longer.
        """
        times: list[tuple[str, int]] = []

        class Profiler(self.engine.trt.IProfiler):  # type: ignore[misc, name-defined]
            def __init__(self, trt: Any) -> None:
                trt.IProfiler.__init__(self)

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times.append((layer_name, round(ms * 1e6)))

        self._profiler = Profiler(self.engine.trt)  # the context does not keep it alive
        self._context.profiler = self._profiler
        self._context.enqueue_emits_profile = False

        def gather() -> list[tuple[str, int]]:
            del times[:]
            self._check(self._context.report_to_profiler(), "to time its layers")
            return list(times)

        return gather

    def _check(self, accepted: bool, action: str) -> None:
        if not accepted:
            raise RunnerError(f"TensorRT refuses {action}: {first_error(self.engine.log)}; {_AGAIN}")

    def close(self) -> None:
        self._context = None
        self._profiler = None


def random_bytes(tensor: Tensor, batch: int) -> bytes:
    """Return values for an input: the same in every process, and a tile of them repeated, as making them is slow."""
    size = tensor.bytes_at(batch)
    generator = random.Random(0)
    floating = tensor.format in "ef"
    count = min(4099, max(1, size))  # a prime, so that rows of an image do not repeat each other
    values = [generator.gauss(0, 1) if floating else generator.randrange(2) for _ in range(count)]
    tile = struct.pack(f"{count}{tensor.format}", *values)
    return (tile * (size // len(tile) + 1))[:size]
