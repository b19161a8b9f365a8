"""ONNX Runtime, on the CPU or an NVIDIA GPU.

Times include copying the input to the GPU and the output back, unless asked otherwise; the environment says which.
TensorRT builds an engine while the model is loaded; it is kept, and so is what was measured of kernels for it.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Callable, Iterator

from ..environment import usable_cpus
from ..files import cache_folder
from ..onnx_runtime import BROKEN_FUSION, GPU, describe_installed, install_hint, installed
from ..protobuf import graph_nodes, input_types
from ..trace import find_origins, read_trace
from . import AloneError, Loaded, Profiled, RunnerError

if TYPE_CHECKING:
    import onnxruntime as ort

REQUIRES = ("numpy", "onnxruntime")

# First the one asked for; TensorRT hands what it cannot run to CUDA.
PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider",),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
}

_DEVICES = {"cpu": "cpu", "cuda": "cuda", "tensorrt": "cuda"}

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


@contextmanager
def open_runner(
    model: str,
    batch: int,
    *,
    provider: str = "cpu",
    threads: int | None = None,
    transfers: bool = True,
    shared: bool = False,
) -> Iterator[Loaded]:
    """Threads are those within one operator; all cores unless asked otherwise."""
    import onnxruntime as ort

    threads = threads or len(usable_cpus())
    session = _open_session(model, provider, threads, *([_share_threads] if shared and threads > 1 else []))
    feed = _random_inputs(session, batch)
    environment = {
        "onnxruntime": ort.__version__,
        "onnxruntime_providers": ", ".join(ort.get_available_providers()),
        "threads": str(threads),
        "transfers": "included" if transfers else "excluded",
    }
    infer = (lambda: session.run(None, feed)) if transfers else _bound(session, feed, _DEVICES[provider])
    yield Loaded(infer, session.get_providers()[0], environment, feed=_feeder(feed) if transfers else None)


@contextmanager
def open_profiler(
    model: str, batch: int, *, provider: str = "cpu", threads: int | None = None, transfers: bool = True
) -> Iterator[Profiled]:
    """Let ONNX Runtime time the nodes that it runs on the CPU; on a GPU it times how long starting them takes."""
    import onnxruntime as ort

    if provider != "cpu":
        raise RunnerError(
            f"ONNX Runtime cannot time layers with provider {provider!r}: it sees how they are started, not computed; "
            "leave --provider out, or build an engine with `edgevit export --trt` and use --runner tensorrt"
        )
    threads = threads or len(usable_cpus())
    with tempfile.TemporaryDirectory() as folder:
        optimised = os.path.join(folder, "optimised.onnx")

        def watch(options: ort.SessionOptions) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = os.path.join(folder, "trace")
            options.optimized_model_filepath = optimised
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")

        session = _open_session(model, provider, threads, watch)
        origins = find_origins(graph_nodes(model), graph_nodes(optimised))
        feed = _random_inputs(session, batch)
        yield Profiled(
            infer=lambda: session.run(None, feed),
            gather=lambda: None,  # it keeps its events itself
            layers=lambda count: read_trace(session.end_profiling(), count, origins),
            provider=session.get_providers()[0],
            environment={"onnxruntime": ort.__version__, "threads": str(threads)},
        )


def _share_threads(options: ort.SessionOptions) -> None:
    """Have all sessions of this process compute on the same threads.

    A session's own go on spinning after its inference, for 0.1 s or longer, and would take the others' cores.
    """
    import onnxruntime as ort
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    if not hasattr(ort, "set_global_thread_pool_sizes"):
        raise AloneError(
            f"in ONNX Runtime {ort.__version__} threads of one model take the time of another; update it, or give "
            "--threads 1"
        )
    with suppress(Fail):  # the first session of this process has made them
        ort.set_global_thread_pool_sizes(options.intra_op_num_threads, 1)
    options.use_per_session_threads = False


def _bound(session: ort.InferenceSession, feed: dict[str, Any], device: str) -> Callable[[], object]:
    """Return what runs the session with its inputs on the device already, and leaves its outputs there."""
    import onnxruntime as ort

    binding = session.io_binding()
    for name, values in feed.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(values, device, 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, device)

    def infer() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return infer


def _open_session(
    model: str, provider: str, threads: int, adapt: Callable[[ort.SessionOptions], None] = lambda options: None
) -> ort.InferenceSession:
    import onnxruntime as ort
    from onnxruntime.capi.onnxruntime_pybind11_state import (
        Fail,
        InvalidArgument,
        InvalidGraph,
        InvalidProtobuf,
        NotImplemented,
        RuntimeException,
    )

    providers = PROVIDERS[provider]
    offered = ort.get_available_providers()
    if providers[0] not in offered:
        raise RunnerError(_provider_message(provider, f"this ONNX Runtime offers {', '.join(offered)}"))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    adapt(options)
    try:
        try:
            session = ort.InferenceSession(model, options, providers=_with_options(providers, model))
        except RuntimeException as error:
            if BROKEN_FUSION not in str(error):
                raise
            without = {"disabled_optimizers": [BROKEN_FUSION]}
            session = ort.InferenceSession(model, options, providers=_with_options(providers, model), **without)
    except InvalidProtobuf as error:
        raise RunnerError(
            "ONNX Runtime cannot load it: it is no ONNX file, or a part of one; try exporting it again"
        ) from error
    except (Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException) as error:
        reason = str(error).rpartition(" : ")[2].splitlines()[0]
        raise RunnerError(f"ONNX Runtime cannot load it: {reason}; try exporting it again") from error
    # ONNX Runtime lists providers it has no driver for, and then runs on the CPU without an error.
    if session.get_providers()[0] != providers[0]:
        raise RunnerError(_provider_message(provider, f"it runs on {session.get_providers()[0]} instead"))
    return session


def _with_options(providers: tuple[str, ...], model: str) -> list[str | tuple[str, dict[str, Any]]]:
    """Have TensorRT use fp16 if the file does, and keep its engines where the agent keeps its own files."""
    if providers[0] != "TensorrtExecutionProvider":
        return list(providers)
    folder = os.path.join(cache_folder(), "onnxruntime")
    os.makedirs(folder, exist_ok=True)
    options = {
        "trt_fp16_enable": "float16" in input_types(model).values(),
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": folder,
        "trt_timing_cache_enable": True,
        "trt_timing_cache_path": folder,
    }
    return [(providers[0], options), *providers[1:]]


def _provider_message(provider: str, reason: str) -> str:
    problem = f"provider {provider!r} is {PROVIDERS[provider][0]}, but {reason}: {describe_installed()}"
    if provider == "cpu":
        return f"{problem}; {install_hint()}"
    versions = installed()
    if len(versions) > 1:
        advice = install_hint()
    elif GPU in versions:
        advice = "install the CUDA libraries that it needs"
    else:
        advice = f"replace it with {GPU}, as edgevit[gpu] brings it" if versions else f"install {GPU}"
    return f"{problem}; {advice}, or try --provider cpu"


def _random_inputs(session: ort.InferenceSession, batch: int) -> dict[str, Any]:
    """Make one array per input, of its type and shape, the same in every process."""
    import numpy as np

    generator = np.random.default_rng(0)
    feed = {}
    for declared in session.get_inputs():
        if declared.type not in _DTYPES:
            raise RunnerError(f"input {declared.name!r} is a {declared.type}; known: {', '.join(_DTYPES)}")
        shape = _shape(declared.name, declared.shape, batch)
        dtype = np.dtype(_DTYPES[declared.type])
        # Few and small integers: they may be labels or indices.
        values = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
        feed[declared.name] = values.astype(dtype)
    return feed


def _feeder(feed: dict[str, Any]) -> Callable[[Any], None]:
    """Return what puts images where the session will read its one input from, in the type that it declares."""

    def put(images: Any) -> None:
        if len(feed) != 1 or next(iter(feed.values())).shape != images.shape:
            declared = ", ".join(f"{name} {list(values.shape)}" for name, values in feed.items())
            raise RunnerError(f"images of {list(images.shape)} were made for it, and the model takes {declared}")
        for values in feed.values():
            values[:] = images

    return put


def _shape(name: str, declared: list[Any], batch: int) -> tuple[int, ...]:
    """Put `batch` in place of the first axis; a fixed one must already be that."""
    first, *others = declared
    if isinstance(first, int) and first != batch:
        raise RunnerError(
            f"batch {batch} was asked for, and input {name!r} was exported with a fixed batch of {first}; "
            "try `edgevit export --batch dynamic`"
        )
    if not all(isinstance(size, int) for size in others):
        raise RunnerError(f"input {name!r} has the shape {declared}; only its first axis may be dynamic")
    return (batch, *others)
