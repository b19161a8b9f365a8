"""What edgevit uses of `pycuda.driver`, by its documentation, and graphs as it might have them one day.

STANDIN_PYCUDA=release has none, as no release has them.
STANDIN_PYCUDA_FAIL names a function that raises as if the GPU were out of memory. `alive` are the things not freed yet.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

alive: set[int] = set()
captured: list[Callable[[], None]] | None = None  # what each launch of the graph that is being captured will do
_initialised = False
_current: list[Any] = []


class Error(Exception):
    pass


class LogicError(Error):
    pass


class MemoryError(Error):
    pass


def _check(function: str) -> None:
    if not _initialised:
        raise LogicError(f"{function} failed: initialization error")
    if os.environ.get("STANDIN_PYCUDA_FAIL") == function:
        raise MemoryError(f"{function} failed: out of memory")


class device_attribute:
    MULTIPROCESSOR_COUNT = 16


class event_flags:
    DEFAULT, BLOCKING_SYNC = 0, 1


def init(flags: int = 0) -> None:
    global _initialised
    _initialised = True
    _check("cuInit")


def get_version() -> tuple[int, int, int]:
    return (12, 6, 0)


class Context:
    def push(self) -> None:
        _current.append(self)

    @staticmethod
    def pop() -> None:
        _current.pop()


class Device:
    def __init__(self, number: int) -> None:
        _check("cuDeviceGet")

    def name(self) -> str:
        return "Orin"

    def compute_capability(self) -> tuple[int, int]:
        return (8, 7)

    def get_attribute(self, attribute: int) -> int:
        return {device_attribute.MULTIPROCESSOR_COUNT: 8}[attribute]

    def retain_primary_context(self) -> Context:
        return Context()


class DeviceAllocation:
    def __init__(self, size: int) -> None:
        self._memory = ctypes.create_string_buffer(size)
        alive.add(int(self))

    def __int__(self) -> int:
        return ctypes.addressof(self._memory)

    def free(self) -> None:
        alive.remove(int(self))


def mem_alloc(size: int) -> DeviceAllocation:
    _check("cuMemAlloc")
    assert _current, "no context is current"
    return DeviceAllocation(size)


def pagelocked_empty(shape: int, dtype: str, order: str = "C", mem_flags: int = 0) -> Any:
    _check("cuMemHostAlloc")
    return np.empty(shape, dtype, order)


class Stream:
    def __init__(self, flags: int = 0) -> None:
        _check("cuStreamCreate")
        self.handle = id(self)

    def synchronize(self) -> None:
        _check("cuStreamSynchronize")

    if os.environ.get("STANDIN_PYCUDA") != "release":

        def begin_capture(self) -> None:
            global captured
            _check("cuStreamBeginCapture")
            captured = []

        def end_capture(self) -> Graph:
            global captured
            _check("cuStreamEndCapture")
            launched, captured = captured or [], None
            return Graph(launched)


class Graph:
    def __init__(self, launched: list[Callable[[], None]]) -> None:
        self._launched = launched

    def instantiate(self) -> GraphExec:
        return GraphExec(self._launched)


class GraphExec:
    def __init__(self, launched: list[Callable[[], None]]) -> None:
        self._launched = launched

    def launch(self, stream: Stream) -> None:
        _check("cuGraphLaunch")
        for work in self._launched:
            work()


class Event:
    def __init__(self, flags: int = 0) -> None:
        self._ns = 0

    def record(self, stream: Stream) -> Event:
        self._ns = time.perf_counter_ns()
        return self

    def query(self) -> bool:
        return True

    def synchronize(self) -> Event:
        _check("cuEventSynchronize")
        return self

    def time_till(self, event: Event) -> float:
        return (event._ns - self._ns) / 1e6


def memcpy_htod_async(dest: int, src: Any, stream: Stream) -> None:
    _check("cuMemcpyHtoDAsync")
    view = memoryview(src)
    ctypes.memmove(dest, bytes(view), view.nbytes)


def memcpy_dtoh_async(dest: Any, src: int, stream: Stream) -> None:
    _check("cuMemcpyDtoHAsync")
    view = memoryview(dest)
    view[:] = ctypes.string_at(src, view.nbytes)
