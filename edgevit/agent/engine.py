"""Build a TensorRT engine, here on the board: an engine runs only on the GPU and the TensorRT that it was built with.

One path for TensorRT 8.5 to 11: where a release can take types from the file, it does (a strongly typed network, from
an fp16 file); where it cannot, it is allowed fp16, and given the layers to keep in fp32.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from .cuda import describe_cuda
from .execution import Tensor, first_error, import_tensorrt, make_log, open_engine, read_tensor
from .files import cache_folder
from .jetson import power_mode
from .kernel import read_bytes
from .layers import count_fused, read_layers
from .messages import Send
from .protobuf import input_types
from .runners import RunnerError
from .timing import TimingCache, find_timing_cache, replacing

_INPUTS = ("float32", "float16", "int64")  # ids of texts are int64

# What a build takes beside its workspace: TensorRT and CUDA themselves, and copies of the weights: the parsed file, the
# network, the kernels' forms of them, the engine. Estimated, never measured on a board; meant to err on the safe side.
BUILD_BYTES = 1 << 30
BUILD_PER_FILE_BYTE = 5
_LEAST_SHARE = 0.5  # share of that estimate which must be free, memory and swap together; else a build is refused
WORKSPACE_SHARE = 0.5  # share of the remaining memory that the workspace gets
_LEAST_WORKSPACE_BYTES = 256 << 20  # with less, TensorRT skips fast kernels of a ViT, or finds none

_FREE_MEMORY = (
    "close other programs, stop the desktop with `sudo init 3`, "
    "or reboot (L4T 36.4.4 and 36.4.7 lose memory until then)"
)

# How TensorRT tells that memory is short. With too little for a kernel's workspace the error is that there is no kernel
# ("Could not find any implementation for node"), and only a warning before it says why ("Skipping tactic 28 due to
# insufficient memory on requested size of 2833252352").
_SHORT_OF_MEMORY = re.compile(
    r"insufficient (?:workspace|memory)|memory is insufficient|out ?of ?memory|enough free memory", re.IGNORECASE
)
_SKIPPED = re.compile(r"Skipping tactic .*insufficient memory on requested size of (\d{1,15})")

# A library of another release than the one that looks for it, as of two TensorRTs on one board.
_LACKS_LIBRARY = re.compile(r"Unable to load library:? (libnvinfer\w*\.so\.(\d+(?:\.\d+)*))")
_REINSTALL = (
    "see `dpkg -l | grep nvinfer` and LD_LIBRARY_PATH for a second one, and install all parts of one release: "
    "`sudo apt install --reinstall tensorrt python3-libnvinfer`"
)

# Layers that compute nothing, as the parser makes them of weights, reshapes, transpositions and splits: they get the
# precision of the layers around them. Held to one of their own, TensorRT may have no implementation of them.
_MOVES = {"CONCATENATION", "CONSTANT", "GATHER", "SHUFFLE", "SLICE"}

_WARNINGS = 20  # number of warnings that are passed on
TICK_S = 0.2  # pause between two messages of progress


def describe_tensorrt() -> dict[str, object]:
    """Say which TensorRT there is and what it can do, or in `error` why there is none; never raises."""
    try:
        trt = import_tensorrt()
    except RunnerError as error:
        return {"version": None, "error": str(error), **dict.fromkeys(_CAPABILITIES)}
    return {"version": trt.__version__, "error": None, **{name: test(trt) for name, test in _CAPABILITIES.items()}}


def _strongly_typed(trt: Any) -> bool:
    return hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


_CAPABILITIES: dict[str, Callable[[Any], bool]] = {
    "strongly_typed": _strongly_typed,
    "fp16_flag": lambda trt: hasattr(trt.BuilderFlag, "FP16"),
    "native_layer_norm": lambda trt: hasattr(trt.INetworkDefinition, "add_normalization"),
}


class NoEngine(RunnerError):
    """TensorRT has no kernels for this network in this precision; it may have some in another."""


@dataclass(frozen=True)
class Settings:
    """What an engine is built from."""

    onnx: str
    precision: str  # name of the precision: "int8", "fp16" or "fp32"
    batches: Sequence[int] | None
    fp32_layers: Sequence[str]
    workspace_bytes: int | None
    optimization_level: int | None


def build(
    send: Send,
    root: str,
    *,
    onnx: str,
    precision: str,
    batches: Sequence[int] | None = None,
    fp32_layers: Sequence[str] = (),
    workspace_bytes: int | None = None,
    optimization_level: int | None = None,
    timing_cache: bool = True,
) -> dict[str, object]:
    """Build an engine into the cache and describe it; say in `refused` why TensorRT could not, if it could not.

    `batches` are least, most likely and most; None for a file of fixed batch. `fp32_layers` are patterns of node names,
    for releases that choose types themselves; others find the types in the file.

    Raises: RunnerError.
    """
    trt = import_tensorrt()
    log = make_log(trt)
    _check_inputs(onnx)
    workspace = _workspace(root, onnx, workspace_bytes, log.warnings)
    settings = Settings(onnx, precision, batches, fp32_layers, workspace, optimization_level)
    cache = None
    if timing_cache:
        mode = power_mode(root) or {"name": None}
        cache = find_timing_cache(trt, describe_cuda()["capability"], mode["name"], log.warnings)
    report = _reporter(send)
    report("parse", 0.0)
    began = time.monotonic()
    try:
        plan = build_plan(trt, log, settings, cache, report)
    except NoEngine as refusal:
        return {"refused": str(refusal), "seconds": time.monotonic() - began}
    report("write", 0.0)
    path, sha256, size = _write(plan)
    del plan  # before the engine is opened: on a small board there is no room for both
    return {
        "engine": path,
        "refused": None,
        "sha256": sha256,
        "bytes": size,
        "seconds": time.monotonic() - began,
        "tensorrt": trt.__version__,
        "strongly_typed": _strongly_typed(trt),
        "workspace_bytes": workspace,
        "timing_cache": cache.to_dict() if cache else None,
        **_inspect(trt, log, path),
        "warnings": log.warnings[:_WARNINGS],
    }


def _check_inputs(onnx: str) -> None:
    for name, dtype in input_types(onnx).items():
        if dtype not in _INPUTS:
            raise RunnerError(
                f"input {name!r} is {dtype}, and engines are built for {' or '.join(_INPUTS)}; export again"
            )


def _workspace(root: str, onnx: str, requested: int | None, warnings: list[str]) -> int | None:
    """Return how much memory TensorRT may try kernels with; None, its default, where nothing tells what is free.

    Raises:
        RunnerError: too little is free to begin at all.
    """
    # Not what CUDA says is free: where CPU and GPU share memory that leaves out what the page cache would give back.
    available = read_bytes(root, "proc/meminfo", "MemAvailable")
    if available is None:
        return requested
    weights = os.path.join(os.path.dirname(onnx), os.path.basename(onnx) + ".data")
    size = sum(os.path.getsize(path) for path in (onnx, weights) if os.path.exists(path))
    needed = BUILD_BYTES + BUILD_PER_FILE_BYTE * size
    # What the GPU works on cannot be swapped out, so swap is no workspace. But other programs can, and what a build
    # needs beside its workspace is mostly copies of the weights that the CPU holds: with swap it may well succeed.
    swap = read_bytes(root, "proc/meminfo", "SwapFree") or 0
    free = f"{available / 1e9:.1f} GB are free" + (f" and {swap / 1e9:.1f} GB of swap" if swap else "")
    if available + swap < _LEAST_SHARE * needed:
        raise RunnerError(f"the build needs about {needed / 1e9:.1f} GB, by an estimate, and {free}; {_FREE_MEMORY}")
    spare = max(0, available - needed)
    workspace = int(WORKSPACE_SHARE * spare) if requested is None else min(requested, spare)
    least = _LEAST_WORKSPACE_BYTES if requested is None else min(requested, _LEAST_WORKSPACE_BYTES)
    if workspace < least:
        warnings.append(
            f"by an estimate the build needs {needed / 1e9:.1f} GB beside its workspace, and {free}: TensorRT tries "
            f"kernels with {least / 1e6:.0f} MB, which may leave out the fastest; {_FREE_MEMORY}, and build again with "
            "--rebuild"
        )
    return max(workspace, least)


def build_plan(
    trt: Any, log: Any, settings: Settings, cache: TimingCache | None, report: Callable[[str, float], None]
) -> Any:
    """Return the engine as a buffer.

    Raises:
        NoEngine: TensorRT takes the file and the settings, and finds no engine.
        RunnerError: it refuses them, or lacks memory.
    """
    builder = _open_builder(trt, log)
    network = _parse(trt, log, builder, settings.onnx)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if settings.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_bytes)
    _set_precision(trt, network, config, settings.precision, settings.fp32_layers)
    _set_batches(trt, builder, network, config, settings.batches)
    if settings.optimization_level is not None:
        if not hasattr(config, "builder_optimization_level"):
            raise RunnerError(f"TensorRT {trt.__version__} has no optimization levels; leave --optimization-level out")
        config.builder_optimization_level = settings.optimization_level
    if cache:
        cache.attach(config, log.warnings)
    if hasattr(trt, "IProgressMonitor"):
        config.progress_monitor = _make_monitor(trt, lambda done: report("build", done))
    report("build", 0.0)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        _check_libraries(trt, log)
        _check_memory(trt, log)
        raise NoEngine(f"cannot be built: TensorRT {trt.__version__} says {first_error(log)}")
    if cache:
        cache.save(config, log.warnings)
    return plan


def _open_builder(trt: Any, log: Any) -> Any:
    try:
        return trt.Builder(log)
    except TypeError as error:  # as pybind11 has it where the library returned nothing
        _check_libraries(trt, log)
        raise RunnerError(
            f"TensorRT {trt.__version__} has no builder here: {first_error(log)}; {_REINSTALL}"
        ) from error


def _check_libraries(trt: Any, log: Any) -> None:
    """Raises: RunnerError: a library of TensorRT could not be loaded."""
    lacking = next((match for line in (*log.errors, *log.warnings) if (match := _LACKS_LIBRARY.search(line))), None)
    if lacking is None:
        return
    library, release = lacking.groups()
    python = str(trt.__version__)
    if python.split(".")[:2] == release.split(".")[:2]:
        raise RunnerError(f"TensorRT {python} lacks {library}; {_REINSTALL}")
    raise RunnerError(
        f"two TensorRTs are mixed on this board: Python's is {python}, its library is {release} and lacks {library}; "
        f"{_REINSTALL}"
    )


def _check_memory(trt: Any, log: Any) -> None:
    """Raises: RunnerError: the builder was short of memory."""
    lines = (*log.errors, *log.warnings)
    short = next((line for line in lines if _SHORT_OF_MEMORY.search(line)), None)
    if short is None:
        return
    sizes = [int(match.group(1)) for line in lines if (match := _SKIPPED.search(line))]
    if sizes:
        short = (
            f"it skipped kernels for want of memory, of which the smallest needs {min(sizes) / 1e6:.0f} MB "
            f"({first_error(log)})"
        )
    hint = f"{_FREE_MEMORY}; a --workspace that was given may be too small"
    raise RunnerError(f"TensorRT {trt.__version__} cannot build an engine: {short}; {hint}")


def _parse(trt: Any, log: Any, builder: Any, onnx: str) -> Any:
    flags = trt.NetworkDefinitionCreationFlag
    flag = flags.STRONGLY_TYPED if _strongly_typed(trt) else flags.EXPLICIT_BATCH
    network = builder.create_network(1 << int(flag))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(onnx):
        raise RunnerError(
            f"TensorRT {trt.__version__} cannot read the model: {_unreadable(parser, log)}; export it with a lower "
            "opset (--opset, of a model folder), or without that operator"
        )
    return network


def _unreadable(parser: Any, log: Any) -> str:
    """Say in one line what the parser met first; from TensorRT 10 on with the operator, which its own text may lack."""
    if not parser.num_errors:
        return first_error(log)
    error = parser.get_error(0)
    reason = " ".join(error.desc().split())[:200]
    operator = getattr(error, "node_operator", str)()
    return f"{operator} ({error.node_name()}): {reason}" if operator else reason


def _set_precision(trt: Any, network: Any, config: Any, precision: str, fp32_layers: Sequence[str]) -> None:
    """Check the types if they come from the file; else allow fp16, except in the layers that must not use it."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    if _strongly_typed(trt):
        halves = any(layer.get_output(j).dtype == trt.float16 for layer in layers for j in range(layer.num_outputs))
        if precision == "fp16" and not halves:
            raise RunnerError(
                f"TensorRT {trt.__version__} takes types from the file, and this file is fp32 throughout; "
                "send the fp16 file"
            )
        return
    if precision == "fp32":
        return
    if precision == "int8":
        config.set_flag(trt.BuilderFlag.INT8)
    config.set_flag(trt.BuilderFlag.FP16)
    if not fp32_layers:
        return
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    patterns = [re.compile(pattern) for pattern in fp32_layers]
    chosen = [layer for layer in layers if any(pattern.search(layer.name) for pattern in patterns)]
    if not chosen:
        raise RunnerError(f"no layer matches {', '.join(fp32_layers)}; TensorRT has e.g. {layers[0].name!r}")
    for layer in chosen:
        if layer.type.name in _MOVES:
            continue
        outputs = [layer.get_output(j) for j in range(layer.num_outputs)]
        # Shapes and indices are integers, and stay so.
        if all(output.dtype in (trt.float32, trt.float16) and not output.is_shape_tensor for output in outputs):
            layer.precision = trt.float32
            for j in range(layer.num_outputs):
                layer.set_output_type(j, trt.float32)


def _set_batches(trt: Any, builder: Any, network: Any, config: Any, batches: Sequence[int] | None) -> None:
    """Give every free batch its range."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    free: list[Tensor] = []
    for tensor in (read_tensor("input", value.name, value.dtype, value.shape) for value in inputs):
        if tensor.shape[0] < 0:
            free.append(tensor)
        elif batches is not None and set(batches) != {tensor.shape[0]}:
            raise RunnerError(
                f"batches {list(batches)} were asked for, and the file has a fixed batch of {tensor.shape[0]}; "
                "export it with --batch dynamic"
            )
    if not free:
        return
    if batches is None:
        raise RunnerError("the file's batch is dynamic: say the least, the most likely and the most images at once")
    if len(batches) != 3 or not 1 <= batches[0] <= batches[1] <= batches[2]:
        raise RunnerError(f"batches {list(batches)} are not the least, the most likely and the most, e.g. 1, 8, 32")
    profile = builder.create_optimization_profile()
    for tensor in free:
        profile.set_shape(tensor.name, *((batch, *tensor.shape[1:]) for batch in batches))
    config.add_optimization_profile(profile)
    if hasattr(trt.PreviewFeature, "PROFILE_SHARING_0806") and not _strongly_typed(trt):
        # Several streams on one profile: later releases always allow it, 8.5 never.
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    if hasattr(trt.PreviewFeature, "FASTER_DYNAMIC_SHAPES_0805"):
        # Off by default in 8.5, on in 8.6, and no choice later. By NVIDIA's guide engines of dynamic shapes build and
        # run faster with it and need less memory, those of transformers most likely.
        config.set_preview_feature(trt.PreviewFeature.FASTER_DYNAMIC_SHAPES_0805, True)


def _reporter(send: Send) -> Callable[[str, float], None]:
    """Return what tells progress: each stage at once, and then a few times a second."""
    last: list[Any] = [None, 0.0]  # the stage, and when

    def report(stage: str, done: float) -> None:
        now = time.monotonic()
        if stage != last[0] or now - last[1] >= TICK_S:
            last[:] = [stage, now]
            send({"progress": {"stage": stage, "done": done}})

    return report


def _make_monitor(trt: Any, report: Callable[[float], None]) -> Any:
    """Return a progress monitor: TensorRT works in phases within phases, each of a known number of steps."""
    import threading

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._lock = threading.Lock()  # it is called from several threads
            self._phases: dict[str, tuple[str | None, int, int]] = {}  # parent, steps and steps done of each open phase
            self._furthest = 0.0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with self._lock:
                self._phases[phase_name] = (parent_phase, max(1, num_steps), 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._lock:
                if phase_name in self._phases:
                    parent, steps, _ = self._phases[phase_name]
                    self._phases[phase_name] = (parent, steps, step + 1)
                    self._furthest = max(self._furthest, min(1.0, self._done(phase_name)))
                    report(self._furthest)
            return True

        def phase_finish(self, phase_name: str) -> None:
            with self._lock:
                self._phases.pop(phase_name, None)

        def _done(self, phase: str) -> float:
            """Return how far the outermost phase is, where this one is the step that it is at."""
            parent, steps, step = self._phases[phase]
            done = step / steps
            while parent in self._phases and parent != phase:
                phase = parent
                parent, steps, step = self._phases[phase]
                done = (step + done) / steps
            return done

    return Monitor()


def _write(plan: Any) -> tuple[str, str, int]:
    """Write the engine where a file of that hash is looked for; return its path, hash and size."""
    folder = os.path.join(cache_folder(), "files")
    content = memoryview(plan)
    sha256 = hashlib.sha256(content).hexdigest()
    path = os.path.join(folder, f"{sha256}.engine")
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)
    return path, sha256, content.nbytes


def _inspect(trt: Any, log: Any, path: str) -> dict[str, object]:
    """Open the engine that was written, and say what it is."""
    with open_engine(trt, log, path) as engine:
        layers: list[Any] = []
        fused = None
        try:
            layers = read_layers(trt, engine.handle)
            fused = count_fused(layers)
        except RunnerError as error:  # the engine is as good without
            log.warnings.insert(0, f"the layers of the engine are not known: {error}")
        return {
            "device_memory_bytes": engine.activation_bytes(),
            "layers": layers,
            "fused": fused,
            "inputs": [tensor.to_dict() for tensor in engine.inputs],
            "outputs": [tensor.to_dict() for tensor in engine.outputs],
        }
