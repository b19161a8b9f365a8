"""Run an engine on preprocessed images, so that its outputs can be judged: the engine itself, on this board.

Images arrive as they go in, after resizing and normalising; only their type may have to change. Standard library
only, so values go through `struct` and not through numpy. Of a classifier a few logits are given, by a job. All outputs
of an engine, such as a detector's levels, are too large for this disk: they go straight to the host, through a pipe.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import sys
import time
from contextlib import closing, contextmanager
from typing import BinaryIO, Callable, Iterator, Optional, Sequence

from .cuda import Cuda, open_cuda
from .execution import Engine, Execution, import_tensorrt, make_log, open_engine
from .messages import Send
from .runners import RunnerError

_FORMATS = {"float16": "e", "float32": "f"}
# Array type codes of the ids of texts, by input type; TensorRT before 10 takes 32 bits.
_OF_IDS = {"int64": "q", "int32": "i"}
TICK_S = 0.2  # pause between two messages of progress


def classify(
    send: Send,
    root: str,
    *,
    engine: str,
    images: str,
    count: int,
    shape: Sequence[int],
    dtype: str,
    batch: int,
    columns: Sequence[int],
) -> dict[str, object]:
    """Return the values in these columns of the output, a row for each image, and how many outputs are no numbers.

    `images` is a file of `count` images of `shape`, row by row, in this machine's byte order.

    Raises: RunnerError.
    """
    _check_file(images, count, shape, dtype)
    outputs: list[Sequence[float]] = []
    done, nonfinite, began = 0, 0, time.monotonic()
    reported = began
    with open(images, "rb") as file, _open_runner(engine, shape, dtype, batch, columns) as runner:
        for size in _batches(runner, file, count, batch):
            rows = runner.rows(size)
            nonfinite += sum(not math.isfinite(value) for row in rows for value in row)
            outputs += [[row[column] for column in columns] for row in rows]
            done += size
            if time.monotonic() - reported >= TICK_S:
                reported = time.monotonic()
                send({"progress": {"stage": "classify", "done": done / count}})
    return {"rows": outputs, "nonfinite": nonfinite, "seconds": time.monotonic() - began}


def pipe(
    send: Callable[..., None], root: str, *, engine: str, shape: Sequence[int], dtype: str, batch: int
) -> dict[str, object]:
    """Keep an engine open, and run it on images from stdin until that ends; the agent serves nothing else meanwhile.

    A result of 0 bytes says that the engine is open. From then on each line, `{"count": 3}`, is followed by that many
    images, as in the file of `classify`. All of them are read before any output is sent, as the host reads none until
    it has sent them. Each batch is answered by `{"result": {"bytes": 1000}}` and so many bytes: image by image, the
    values of all outputs in the engine's order and types.

    Raises: RunnerError.
    """
    source, image_bytes = sys.stdin.buffer, _bytes_of(shape, dtype)
    with _open_runner(engine, shape, dtype, batch) as runner:
        send({"result": {"bytes": 0}})
        for line in iter(source.readline, b""):
            count = json.loads(line)["count"]
            images = io.BytesIO(source.read(count * image_bytes))
            for size in _batches(runner, images, count, batch):
                values = [part for i in range(size) for part in runner.values(i)]
                send({"result": {"bytes": sum(map(len, values))}}, values)
    return {"bytes": 0}


@contextmanager
def _open_runner(
    engine: str, shape: Sequence[int], dtype: str, batch: int, columns: Optional[Sequence[int]] = None
) -> Iterator[_Runner]:
    trt = import_tensorrt()
    with open_cuda() as cuda, open_engine(trt, make_log(trt), engine) as opened:
        _check_engine(opened, shape, dtype, columns)
        with closing(Execution(opened, cuda, batch)) as execution:
            yield _Runner(execution, cuda, batch, {**_FORMATS, **_OF_IDS}[dtype])


def _batches(runner: _Runner, file: BinaryIO, count: int, batch: int) -> Iterator[int]:
    """Run one batch after the other; yield the number of images in each."""
    for done in range(0, count, batch):
        images = min(batch, count - done)
        runner.run(file, images)
        yield images


class _Runner:
    """An execution with memory for one batch on the host's side, too."""

    def __init__(self, execution: Execution, cuda: Cuda, batch: int, form: str) -> None:
        engine = execution.engine
        self._execution, self._cuda, self._form = execution, cuda, form
        self._images = engine.inputs[0]
        self._host_in = cuda.host(self._images.bytes_at(batch))
        self._host_out = [(output, cuda.host(output.bytes_at(batch))) for output in engine.outputs]
        self._done = cuda.event()

    def run(self, file: BinaryIO, count: int) -> None:
        """Read the next images and compute their outputs.

        Fewer than a batch are filled up with what was there: the engine is to be seen at that batch, and no other.
        """
        cuda, execution, stream = self._cuda, self._execution, self._execution.stream
        self._host_in[: self._images.bytes_at(count)] = self._read(file, count)
        cuda.copy_in(execution.addresses[self._images.name], self._host_in, stream)
        execution.enqueue()
        for output, host in self._host_out:
            cuda.copy_out(host, execution.addresses[output.name], stream)
        cuda.record(self._done, stream)
        cuda.wait(self._done)

    def rows(self, count: int) -> list[tuple[float, ...]]:
        """The values of the first output, for each of the last images."""
        output, host = self._host_out[0]
        width = math.prod(output.shape[1:])
        flat = struct.unpack_from(f"{count * width}{output.format}", host)
        return [flat[i * width : (i + 1) * width] for i in range(count)]

    def values(self, image: int) -> Iterator[memoryview]:
        """The bytes of each output of one of the last images."""
        for output, host in self._host_out:
            size = output.bytes_at(1)
            yield host[image * size : (image + 1) * size]

    def _read(self, file: BinaryIO, count: int) -> bytes:
        values = count * math.prod(self._images.shape[1:])
        content = file.read(values * struct.calcsize(self._form))
        if self._form == self._images.format:
            return content
        try:
            return struct.pack(f"{values}{self._images.format}", *struct.unpack(f"{values}{self._form}", content))
        except OverflowError:
            raise RunnerError(
                "an image has values beyond float16, which this engine takes; is it normalised as in training?"
            ) from None


def _bytes_of(shape: Sequence[int], dtype: str) -> int:
    """The size of an image."""
    formats = {**_FORMATS, **_OF_IDS}
    if dtype not in formats:
        raise RunnerError(f"images of {dtype} cannot be read; known: {', '.join(formats)}")
    return math.prod(shape) * struct.calcsize(formats[dtype])


def _check_file(images: str, count: int, shape: Sequence[int], dtype: str) -> None:
    expected = count * _bytes_of(shape, dtype)
    try:
        size = os.path.getsize(images)
    except OSError as error:
        raise RunnerError(f"cannot read {images} ({error.strerror}); send the images again") from error
    if size != expected:
        raise RunnerError(
            f"{images} has {size} bytes, and {count} images of {list(shape)} in {dtype} have {expected}; send it again"
        )


def _check_engine(engine: Engine, shape: Sequence[int], dtype: str, columns: Optional[Sequence[int]]) -> None:
    several = len(engine.outputs) > 1 and columns is not None
    if len(engine.inputs) != 1 or several or any(len(output.shape) < 2 for output in engine.outputs):
        tensors = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in (*engine.inputs, *engine.outputs))
        raise RunnerError(f"no network of one input and one row of outputs for each image: it has {tensors}")
    images = engine.inputs[0]
    input_formats = _OF_IDS if dtype in _OF_IDS else _FORMATS
    for tensor, formats in ((images, input_formats), *((output, _FORMATS) for output in engine.outputs)):
        if tensor.format not in formats.values():
            raise RunnerError(
                f"{tensor.name!r} is {tensor.dtype}, and not one of {', '.join(formats)}; export it again"
            )
    if images.shape[1:] != tuple(shape):
        raise RunnerError(f"images of {list(shape)} were sent, and the engine takes {list(images.shape[1:])}")
    width = engine.outputs[0].shape[1]
    if columns is not None and not (columns and all(0 <= column < width for column in columns)):
        raise RunnerError(f"columns {list(columns)} were asked for, and the engine has {width} outputs")
