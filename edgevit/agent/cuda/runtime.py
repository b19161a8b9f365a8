"""CUDA through ctypes on libcudart: nothing to install, on any JetPack."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any, Callable

from ..messages import CudaDevice
from ..runners import CaptureError, RunnerError

NAMES = (
    "libcudart.so",
    "libcudart.so.13",
    "libcudart.so.12",
    "libcudart.so.11.0",
    "/usr/local/cuda/lib64/libcudart.so",  # where a container does not list it for the loader
)

# Every function used and its arguments; all return an error code but the two that name one.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cudaGetDeviceCount": (POINTER(c_int),),
    "cudaRuntimeGetVersion": (POINTER(c_int),),
    "cudaDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cudaGetDeviceProperties": (c_void_p, c_int),
    "cudaGetDeviceFlags": (POINTER(c_uint),),
    "cudaSetDeviceFlags": (c_uint,),
    "cudaGetLastError": (),
    "cudaMemGetInfo": (POINTER(c_size_t), POINTER(c_size_t)),
    "cudaMalloc": (POINTER(c_void_p), c_size_t),
    "cudaFree": (c_void_p,),
    "cudaHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cudaFreeHost": (c_void_p,),
    "cudaMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "cudaStreamCreateWithFlags": (POINTER(c_void_p), c_uint),
    "cudaStreamSynchronize": (c_void_p,),
    "cudaStreamDestroy": (c_void_p,),
    "cudaEventCreateWithFlags": (POINTER(c_void_p), c_uint),
    "cudaEventRecord": (c_void_p, c_void_p),
    "cudaEventSynchronize": (c_void_p,),
    "cudaEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cudaEventDestroy": (c_void_p,),
    "cudaStreamBeginCapture": (c_void_p, c_int),
    "cudaStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    # cudaGraphInstantiate changed its arguments in CUDA 12; this one has not since 11.4, JetPack 5's.
    "cudaGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_ulonglong),
    "cudaGraphLaunch": (c_void_p, c_void_p),
    "cudaGraphDestroy": (c_void_p,),
    "cudaGraphExecDestroy": (c_void_p,),
}
_NAMERS = ("cudaGetErrorName", "cudaGetErrorString")

_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind
_SMS, _MAJOR, _MINOR = 16, 75, 76  # cudaDeviceAttr
_SCHEDULE_SPIN, _SCHEDULE_BLOCKING, _SCHEDULE_MASK = 1, 4, 7  # cudaDeviceSchedule...
_NON_BLOCKING_STREAM = 1  # does not wait for the default stream, which cannot be captured beside it
_BLOCKING_EVENT = 1
_THREAD_LOCAL = 1  # cudaStreamCaptureMode: calls of other threads do not spoil the capture
_PROPERTIES_BYTES = 16384  # cudaDeviceProp grows with every CUDA; it has always begun with the name, 256 bytes
_NAME_BYTES = 256

_DRIVER = "in a container, start it with `--runtime nvidia`; else see which it is with `ldconfig -p | grep libcudart`"
_HINTS = {
    "cudaErrorMemoryAllocation": "close other programs, try a smaller --batch, or reboot the board",
    "cudaErrorInsufficientDriver": _DRIVER,
    "cudaErrorNoDevice": _DRIVER,
    "cudaErrorUnknown": "`edgevit board HOST` says whether this user may open the GPU; else try a reboot of the board",
    "cudaErrorSetOnActiveProcess": "the GPU is in use by this process already; run it in a fresh one",
}


class NoRuntimeError(RunnerError):
    """No libcudart can be loaded."""


def _load(library: str | None) -> ctypes.CDLL:
    """Load libcudart and declare what is used of it.

    Raises: NoRuntimeError.
    """
    failures = []
    for name in (library,) if library else NAMES:
        try:
            loaded = ctypes.CDLL(name)
            for function, arguments in _FUNCTIONS.items():
                getattr(loaded, function).argtypes = arguments
                getattr(loaded, function).restype = c_int
            for function in _NAMERS:
                getattr(loaded, function).argtypes = (c_int,)
                getattr(loaded, function).restype = c_char_p
        except (OSError, AttributeError) as error:  # an AttributeError where a function is missing
            failures.append(str(error).splitlines()[0])
        else:
            return loaded
    raise NoRuntimeError(
        f"no CUDA runtime can be loaded ({failures[0]}); install JetPack's with `sudo apt install nvidia-jetpack`, "
        "or name its file in EDGEVIT_CUDART"
    )


class RuntimeCuda:
    """`Cuda` on libcudart."""

    binding = "ctypes"
    graphs = True

    def __init__(self, spin: bool | None, library: str | None) -> None:
        self._library = _load(library)
        self._owned = ExitStack()
        self._event_flags = _BLOCKING_EVENT if spin is False else 0
        count, flags = c_int(), c_uint()
        self._call("cudaGetDeviceCount", count)
        if spin is not None:
            schedule = _SCHEDULE_SPIN if spin else _SCHEDULE_BLOCKING
            self._call("cudaGetDeviceFlags", flags)
            if flags.value & _SCHEDULE_MASK != schedule:  # before CUDA 12 it cannot be set again, not even to the same
                self._call("cudaSetDeviceFlags", schedule)

    def __enter__(self) -> RuntimeCuda:
        return self

    def __exit__(self, *details: object) -> None:
        self._owned.close()

    def _call(self, function: str, *arguments: Any) -> None:
        """Call it, with what it fills in passed by reference, and raise RunnerError if it fails."""
        code = getattr(self._library, function)(*arguments)
        if code:
            raise RunnerError(self._explain(function, code))

    def _explain(self, function: str, code: int) -> str:
        self._library.cudaGetLastError()  # forget it, or TensorRT finds it and takes it for its own
        name = self._library.cudaGetErrorName(code).decode()
        text = self._library.cudaGetErrorString(code).decode()
        hint = _HINTS.get(name)
        return f"{function}: {text} ({name})" + (f"; {hint}" if hint else "")

    def _register(self, free: str, handle: Any) -> int:
        """Call `free` with the handle on leaving, and ignore its code: every call repeats an earlier error."""
        self._owned.callback(getattr(self._library, free), handle)
        assert isinstance(handle.value, int)
        return handle.value

    def describe(self) -> CudaDevice:
        version, sms, major, minor = c_int(), c_int(), c_int(), c_int()
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        self._call("cudaRuntimeGetVersion", version)
        for attribute, value in ((_SMS, sms), (_MAJOR, major), (_MINOR, minor)):
            self._call("cudaDeviceGetAttribute", value, attribute, 0)
        self._call("cudaGetDeviceProperties", properties, 0)
        return {
            "device": properties.raw[:_NAME_BYTES].split(b"\0")[0].decode(errors="replace"),
            "sms": sms.value,
            "capability": f"{major.value}.{minor.value}",
            "runtime": f"{version.value // 1000}.{version.value % 1000 // 10}",
        }

    def malloc(self, size: int) -> int:
        address = c_void_p()
        try:
            self._call("cudaMalloc", address, size)
        except RunnerError as error:
            free, total = c_size_t(), c_size_t()
            self._library.cudaMemGetInfo(free, total)
            raise RunnerError(f"{size / 1e6:.1f} MB asked for, {free.value / 1e6:.1f} MB free: {error}") from None
        return self._register("cudaFree", address)

    def host(self, size: int) -> memoryview:
        address = c_void_p()
        self._call("cudaHostAlloc", address, size, 0)
        return memoryview((ctypes.c_ubyte * size).from_address(self._register("cudaFreeHost", address))).cast("B")

    def stream(self) -> int:
        stream = c_void_p()
        self._call("cudaStreamCreateWithFlags", stream, _NON_BLOCKING_STREAM)
        return self._register("cudaStreamDestroy", stream)

    def event(self) -> Any:
        event = c_void_p()
        self._call("cudaEventCreateWithFlags", event, self._event_flags)
        return self._register("cudaEventDestroy", event)

    def copy_in(self, device: int, host: memoryview, stream: int) -> None:
        self._call("cudaMemcpyAsync", device, _address(host), len(host), _TO_DEVICE, stream)

    def copy_out(self, host: memoryview, device: int, stream: int) -> None:
        self._call("cudaMemcpyAsync", _address(host), device, len(host), _TO_HOST, stream)

    def record(self, event: Any, stream: int) -> None:
        self._call("cudaEventRecord", event, stream)

    def wait(self, event: Any) -> None:
        self._call("cudaEventSynchronize", event)

    def elapsed_ns(self, start: Any, end: Any) -> int:
        milliseconds = c_float()
        self._call("cudaEventElapsedTime", milliseconds, start, end)
        return round(milliseconds.value * 1e6)

    def synchronize(self, stream: int) -> None:
        self._call("cudaStreamSynchronize", stream)

    def capture(self, stream: int, enqueue: Callable[[], object]) -> Callable[[], None]:
        graph, executable = c_void_p(), c_void_p()
        try:
            self._call("cudaStreamBeginCapture", stream, _THREAD_LOCAL)
            try:
                enqueue()
            finally:
                self._call("cudaStreamEndCapture", stream, graph)
            self._call("cudaGraphInstantiateWithFlags", executable, graph, 0)
        except RunnerError as error:
            raise CaptureError(str(error)) from None
        finally:
            if graph:
                self._library.cudaGraphDestroy(graph)
        launched = self._register("cudaGraphExecDestroy", executable)
        return lambda: self._call("cudaGraphLaunch", launched, stream)


def _address(host: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(host))
