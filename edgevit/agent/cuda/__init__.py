"""Device memory, streams, events and graphs, behind one small interface.

Two files offer it: `runtime.py`, ctypes on the libcudart that every JetPack brings, and `pycuda.py`, for where there is
none. Both use the primary context, which is the one that TensorRT uses. Addresses and streams are integers, as TensorRT
takes them. What is allocated belongs to the `Cuda` and is freed when it is left, also by an error.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Protocol, Type

from ..messages import CudaDevice, CudaState
from ..runners import RunnerError

if TYPE_CHECKING:
    from .pycuda import PycudaCuda

_LIBRARY = "EDGEVIT_CUDART"  # environment variable that names another libcudart; pycuda is not used then


class Cuda(Protocol):
    """One device, the first; open it before anything else in the process touches the GPU."""

    binding: str  # name of the binding: "pycuda" or "ctypes"
    graphs: bool  # whether this binding can capture and launch graphs

    def __enter__(self) -> Cuda: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def describe(self) -> CudaDevice:
        """Say which device this is."""

    def malloc(self, size: int) -> int:
        """Return the address of `size` bytes of device memory."""

    def host(self, size: int) -> memoryview:
        """Return pinned host memory, writable, in bytes."""

    def stream(self) -> int: ...

    def event(self) -> Any: ...

    def copy_in(self, device: int, host: memoryview, stream: int) -> None:
        """Enqueue a copy to the device; `host` may be a slice of pinned memory."""

    def copy_out(self, host: memoryview, device: int, stream: int) -> None: ...

    def record(self, event: Any, stream: int) -> None: ...

    def wait(self, event: Any) -> None:
        """Return when what was enqueued before `record` is complete: spinning or sleeping, as it was opened."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the GPU's own time between two events; it counts in about half microseconds."""

    def synchronize(self, stream: int) -> None: ...

    def capture(self, stream: int, enqueue: Callable[[], object]) -> Callable[[], None]:
        """Record what `enqueue` enqueues, without running it; return what launches it on that stream.

        Raises:
            CaptureError: it cannot be captured; the stream is as before.
        """


def open_cuda(*, spin: bool | None = None) -> Cuda:
    """Open the first GPU, through pycuda only where that can capture graphs, or where no libcudart can be loaded.

    `spin`: wait by asking over and over, which takes a core and answers soonest; False: sleep; None: as CUDA chooses.

    Raises: RunnerError.
    """
    from .runtime import NoRuntimeError, RuntimeCuda

    library = os.environ.get(_LIBRARY)
    bound = _pycuda() if library is None else None
    if bound is not None and bound.graphs:
        return bound(spin)
    try:
        return RuntimeCuda(spin, library)
    except NoRuntimeError:
        if bound is None:
            raise
        return bound(spin)


def _pycuda() -> Type[PycudaCuda] | None:
    """Return the binding by pycuda; None where that cannot be imported."""
    try:
        from .pycuda import PycudaCuda
    except (ImportError, ValueError):  # a ValueError where it was built for another numpy
        return None
    return PycudaCuda


def describe_cuda() -> CudaState:
    """Say what there is, or in `error` why there is nothing; never raises."""
    try:
        with open_cuda() as cuda:
            return {"binding": cuda.binding, "error": None, **cuda.describe()}
    except RunnerError as error:
        return {
            "binding": None,
            "error": str(error),
            "device": None,
            "sms": None,
            "capability": None,
            "runtime": None,
        }
