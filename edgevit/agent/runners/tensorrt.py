"""TensorRT: an engine that was built on this board.

Measured as `trtexec --useCudaGraph --useSpinWait --noDataTransfers` does (TensorRT 11's defaults), unless asked
otherwise: the work captured into a CUDA graph, its end awaited by spinning, images and logits staying on the device.
What was done is in the environment, so that only like is compared with like.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from typing import Any, Callable, Iterator

from ..cuda import Cuda, open_cuda
from ..execution import Execution, import_tensorrt, make_log, open_engine, random_bytes
from ..layers import describe_layer, read_layers, with_times
from . import CaptureError, Loaded, Profiled, RunnerError

REQUIRES = ("tensorrt",)


@contextmanager
def open_runner(
    model: str, batch: int, *, cuda_graph: bool = True, spin: bool = True, transfers: bool = False, streams: int = 1
) -> Iterator[Loaded]:
    """`transfers`: copy the images to the device and the logits back, from and to pinned memory, for every batch."""
    if streams < 1:
        raise RunnerError(f"--streams is {streams}: it must be at least 1")
    trt = import_tensorrt()
    log = make_log(trt)
    with open_cuda(spin=spin) as cuda, open_engine(trt, log, model) as engine, ExitStack() as opened:
        device = cuda.describe()
        lanes = []
        for _ in range(streams):
            execution = opened.enter_context(closing(Execution(engine, cuda, batch)))
            lanes.append(TensorrtLane(cuda, execution, batch, transfers))
        weights = engine.weight_bytes()
        environment = {
            "tensorrt": trt.__version__,
            "cuda": device["runtime"],
            "cuda_device": f"{device['device']}, {device['sms']} SMs, compute capability {device['capability']}",
            "cuda_binding": cuda.binding,
            "spin": "on" if spin else "off",
            "transfers": "included" if transfers else "excluded",
            "streams": str(streams),
            "engine_memory": "activations and " + ("the engine file" if weights is None else "weights"),
        }

        def settle() -> dict[str, str]:
            for lane in lanes[1:]:
                lane.infer()  # TensorRT finishes its preparations with the first, and could not within a capture
            return {"cuda_graph": _capture(cuda, lanes) if cuda_graph else "off"}

        yield Loaded(
            infer=lanes[0].infer,
            provider="TensorRT",
            environment=environment,
            settle=settle,
            gpu_ns=lanes[0].gpu_ns,
            lanes=lanes,
            feed=lanes[0].feed if transfers else None,
            parts_ns=lanes[0].parts_ns if transfers else None,
            engine_bytes=streams * engine.activation_bytes() + (engine.file_bytes if weights is None else weights),
        )


@contextmanager
def open_profiler(
    model: str, batch: int, *, cuda_graph: bool = True, spin: bool = True, transfers: bool = False, streams: int = 1
) -> Iterator[Profiled]:
    """Let TensorRT time the layers of one stream, always without a CUDA graph and without transfers.

    Its events between the layers are part of no graph that a plain run has; so neither is asked for.
    """
    if streams != 1:
        raise RunnerError(f"layers are timed on one stream, and --streams is {streams}; leave it out")
    trt = import_tensorrt()
    log = make_log(trt)
    with open_cuda(spin=spin) as cuda, open_engine(trt, log, model) as engine, ExitStack() as opened:
        execution = opened.enter_context(closing(Execution(engine, cuda, batch)))
        lane = TensorrtLane(cuda, execution, batch, transfers=False)
        gather = execution.profile()
        layers = [describe_layer(layer) for layer in read_layers(trt, engine.handle)]
        gathered: list[list[tuple[str, int]]] = []
        yield Profiled(
            infer=lane.infer,
            gather=lambda: gathered.append(gather()),
            layers=lambda count: with_times(layers, gathered[-count:]),
            provider="TensorRT",
            environment={"tensorrt": trt.__version__, "cuda_graph": "off", "transfers": "excluded"},
            gpu_ns=lane.gpu_ns,
        )


def _capture(cuda: Cuda, lanes: list[TensorrtLane]) -> str:
    """Have all lanes launch a graph, or none; return what became of it."""
    if not cuda.graphs:
        return "unavailable"
    try:
        launches = [lane.capture() for lane in lanes]
    except CaptureError:
        return "refused"
    for lane, launch in zip(lanes, launches):
        lane.launch = launch
    return "on"


class TensorrtLane:
    """One stream with its own memory, filled with random images."""

    def __init__(self, cuda: Cuda, execution: Execution, batch: int, transfers: bool) -> None:
        self._cuda = cuda
        self._execution = execution
        self._begin, self._start, self._end, self._done = (cuda.event() for _ in range(4))
        self.launch = execution.enqueue
        engine, addresses = execution.engine, execution.addresses
        inputs = [(addresses[tensor.name], cuda.host(tensor.bytes_at(batch))) for tensor in engine.inputs]
        for tensor, (address, host) in zip(engine.inputs, inputs):
            host[:] = random_bytes(tensor, batch)
            cuda.copy_in(address, host, execution.stream)
        self._copies_in = inputs if transfers else []
        self._copies_out = [
            (cuda.host(execution.sizes[tensor.name]), addresses[tensor.name])
            for tensor in (engine.outputs if transfers else ())
        ]
        cuda.synchronize(execution.stream)

    def enqueue(self) -> None:
        cuda, stream = self._cuda, self._execution.stream
        if self._copies_in:
            cuda.record(self._begin, stream)
        for address, host in self._copies_in:
            cuda.copy_in(address, host, stream)
        cuda.record(self._start, stream)
        self.launch()
        cuda.record(self._end, stream)
        if self._copies_out:
            for host, address in self._copies_out:
                cuda.copy_out(host, address, stream)
            cuda.record(self._done, stream)

    def wait(self) -> None:
        self._cuda.wait(self._done if self._copies_out else self._end)

    def infer(self) -> None:
        self.enqueue()
        self.wait()

    def gpu_ns(self) -> int:
        """Return the time between the events around the computation, without copies, by the GPU's clock.

        Where no copies come before, the GPU has nothing to do and passes the first event at once: the time begins while
        the host still launches the graph or the kernels, and includes what that takes. What trtexec calls GPU compute
        time is between such events, too, but its next batch waits in the stream already, so that it leaves that out.
        """
        return self._cuda.elapsed_ns(self._start, self._end)

    def feed(self, images: Any) -> None:
        """Put images where the next copy takes them from, in the type of the engine's one input.

        Raises: RunnerError.
        """
        import numpy as np

        tensor, *more = self._execution.engine.inputs
        (_, host), *_ = self._copies_in
        if more or tensor.shape[1:] != images.shape[1:] or tensor.bytes_at(len(images)) != len(host):
            declared = ", ".join(f"{t.name} {list(t.shape)}" for t in (tensor, *more))
            raise RunnerError(f"images of {list(images.shape)} were made for it, and the engine takes {declared}")
        np.frombuffer(host, tensor.dtype)[:] = images.ravel()

    def parts_ns(self) -> dict[str, int]:
        """Durations of the parts of the last inference, with transfers, by the GPU's clock."""
        elapsed = self._cuda.elapsed_ns
        return {
            "copy in": elapsed(self._begin, self._start),
            "inference": elapsed(self._start, self._end),
            "copy out": elapsed(self._end, self._done),
        }

    def capture(self) -> Callable[[], None]:
        return self._cuda.capture(self._execution.stream, self._execution.enqueue)
