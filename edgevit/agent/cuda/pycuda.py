"""CUDA through pycuda, where it is installed."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator

import pycuda.driver as driver

from ..messages import CudaDevice
from ..runners import CaptureError, RunnerError

if not hasattr(driver.Device, "retain_primary_context"):
    raise ImportError("this pycuda is older than 2020.1 and cannot use the context that TensorRT uses")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn what pycuda raises into one line."""
    try:
        yield
    except driver.Error as error:
        raise RunnerError(f"pycuda: {error}; close other programs that use the GPU, or reboot the board") from error


class PycudaCuda:
    """`Cuda` on pycuda."""

    binding = "pycuda"
    # No release has them, up to 2026.1; the pull request for them (inducer/pycuda 343) is open.
    graphs = hasattr(driver.Stream, "begin_capture")

    def __init__(self, spin: bool | None) -> None:
        self._spin = spin
        self._owned = ExitStack()
        self._streams: dict[int, Any] = {}
        with _one_line_errors():
            driver.init()
            self._device = driver.Device(0)
            context = self._device.retain_primary_context()
            context.push()
        self._owned.callback(context.pop)

    def __enter__(self) -> PycudaCuda:
        return self

    def __exit__(self, *details: object) -> None:
        self._streams.clear()
        self._owned.close()

    def describe(self) -> CudaDevice:
        with _one_line_errors():
            major, minor = self._device.compute_capability()
            runtime = driver.get_version()
            return {
                "device": self._device.name(),
                "sms": self._device.get_attribute(driver.device_attribute.MULTIPROCESSOR_COUNT),
                "capability": f"{major}.{minor}",
                "runtime": f"{runtime[0]}.{runtime[1]}",
            }

    def malloc(self, size: int) -> int:
        with _one_line_errors():
            memory = driver.mem_alloc(size)
        self._owned.callback(memory.free)
        return int(memory)

    def host(self, size: int) -> memoryview:
        with _one_line_errors():
            memory = driver.pagelocked_empty(size, "uint8")
        return memoryview(memory)  # which keeps it

    def stream(self) -> int:
        with _one_line_errors():
            stream = driver.Stream(1)  # CU_STREAM_NON_BLOCKING
        handle: int = stream.handle
        self._streams[handle] = stream
        return handle

    def event(self) -> Any:
        with _one_line_errors():
            return driver.Event(driver.event_flags.BLOCKING_SYNC if self._spin is False else driver.event_flags.DEFAULT)

    def copy_in(self, device: int, host: memoryview, stream: int) -> None:
        with _one_line_errors():
            driver.memcpy_htod_async(device, host, self._streams[stream])

    def copy_out(self, host: memoryview, device: int, stream: int) -> None:
        with _one_line_errors():
            driver.memcpy_dtoh_async(host, device, self._streams[stream])

    def record(self, event: Any, stream: int) -> None:
        with _one_line_errors():
            event.record(self._streams[stream])

    def wait(self, event: Any) -> None:
        """Return when the event has come. The primary context's schedule cannot be set from here: spin in Python."""
        with _one_line_errors():
            while self._spin and not event.query():
                pass
            event.synchronize()

    def elapsed_ns(self, start: Any, end: Any) -> int:
        with _one_line_errors():
            milliseconds: float = start.time_till(end)
        return round(milliseconds * 1e6)

    def synchronize(self, stream: int) -> None:
        with _one_line_errors():
            self._streams[stream].synchronize()

    def capture(self, stream: int, enqueue: Callable[[], object]) -> Callable[[], None]:
        place = self._streams[stream]
        try:
            with _one_line_errors():
                place.begin_capture()
                try:
                    enqueue()
                finally:
                    graph = place.end_capture()
                executable = graph.instantiate()
        except RunnerError as error:
            raise CaptureError(str(error)) from None

        def launch() -> None:
            with _one_line_errors():
                executable.launch(place)

        return launch
