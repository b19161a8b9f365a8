"""A stand-in for NVIDIA's `tensorrt`, found through PYTHONPATH where there is none. It is not TensorRT.

It is an API check: it plays one release, named by STANDIN_TENSORRT, and has exactly the names that this release has by
`tensorrt_api.json`; any other raises AttributeError, and a name of the release that is not played here
NotImplementedError. It says nothing about speed, memory, fusion or accuracy of an engine on a board.

But it works: the parser reads the file with `onnx`, an engine is that file with its settings and its release, and an
execution context runs it with ONNX Runtime on the CPU, from and to the addresses that it is given. Device memory of the
stand-in CUDA is host memory, so classification downstream sees true logits.

STANDIN_TENSORRT_FAULT makes it fail as TensorRT has been seen to, by a comma-separated list of
    fp16                an engine with any node in fp16 puts out garbage: its logits negated
    fp16-layernorm      the same, if a LayerNormalization runs in fp16
    fp16-block:3        the same, if a node with `blocks.3.` in its name does
    fp16-range          a node in fp16 rounds what it puts out to fp16, as hardware does; ONNX Runtime's CPU does not,
                        and so hides what overflows
    always              the same, in fp32, too
    batch:8             the same in fp16 and fp32, but only for so many images at once
    no-tactic           no engine can be built
    no-fp16-tactic      none with any node in fp16
    out-of-memory       no engine can be built, for lack of memory
    tight-workspace     the same: the error is that of no-tactic, and what memory a kernel lacks is a warning
    no-typed-move       none in which a layer that computes nothing is held to a precision
    no-layers           the inspector tells of an engine's layers in what is no JSON
    no-context          an engine cannot be run for lack of memory
STANDIN_TENSORRT_SECONDS is how long a build takes, unless its timing cache has all kernels.
STANDIN_TENSORRT_NS_PER_BYTE is how long an inference takes for each byte of the file that the engine was built from, in
a CUDA graph, too, which computes nothing here.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import json
import os
import sys
import time
import weakref
from pathlib import Path
from typing import Any

# `onnx` and `numpy` are imported by what needs them: most programs only ask which release this is.

_API = json.loads((Path(__file__).parent.parent / "tensorrt_api.json").read_text())
__version__ = os.environ.get("STANDIN_TENSORRT", "10.3.0")
if __version__ not in _API["releases"]:
    raise ImportError(f"the stand-in plays {', '.join(_API['releases'])}, and not {__version__}")
_COLUMN = _API["releases"].index(__version__)
_MAJOR = int(__version__.split(".")[0])
_SERIAL = {"8.5.2": 232, "8.6.1": 236, "10.3.0": 239, "10.7.0": 241, "10.16": 243, "11.1": 250, "11.4": 253}[
    __version__
]  # invented, but 8's
_MAGIC = b"STAND-IN ENGINE\n"


def _faults() -> list[str]:
    return [fault for fault in os.environ.get("STANDIN_TENSORRT_FAULT", "").split(",") if fault]


def _names(of: str) -> set[str]:
    return {name for name, releases in _API["names"].get(of, {}).items() if releases[_COLUMN] == "1"}


class _Unplayed:
    """A name that the release has and this stand-in does not play."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> _Unplayed:
        if instance is not None:
            raise NotImplementedError(f"the stand-in does not play {self.name}")
        return self


def _strict(cls: Any) -> Any:
    """Give the class the names of the release, no more and no fewer."""
    known = _names(cls.__name__)
    for name in [name for name in vars(cls) if not name.startswith("_") and name not in known]:
        delattr(cls, name)
    for name in known - set(dir(cls)):
        setattr(cls, name, _Unplayed(f"{cls.__name__}.{name}"))

    def set_known(self: Any, name: str, value: Any) -> None:
        if type(self) is cls and not name.startswith("_") and name not in known:
            raise AttributeError(f"TensorRT {__version__} has no {cls.__name__}.{name}")
        object.__setattr__(self, name, value)

    cls.__setattr__ = set_known
    return cls


class _Number(enum.Enum):
    def __int__(self) -> int:
        return int(self.value)


def _enumeration(name: str, values: dict[str, int] | None = None) -> Any:
    names = sorted(_names(name))
    return _Number(name, {key: (values or {}).get(key, 100 + i) for i, key in enumerate(names)})


DataType = _enumeration("DataType")
BuilderFlag = _enumeration("BuilderFlag")
NetworkDefinitionCreationFlag = _enumeration(
    "NetworkDefinitionCreationFlag", {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1, "EXPLICIT_PRECISION": 1}
)
MemoryPoolType = _enumeration("MemoryPoolType")
ProfilingVerbosity = _enumeration("ProfilingVerbosity")
PreviewFeature = _enumeration("PreviewFeature")
LayerType = _enumeration("LayerType")
LayerInformationFormat = _enumeration("LayerInformationFormat")
TensorIOMode = _enumeration("TensorIOMode")
EngineStat = _enumeration("EngineStat") if _names("EngineStat") else None
float32, float16, int32, int8 = DataType.FLOAT, DataType.HALF, DataType.INT32, DataType.INT8

_LONG = DataType.INT64 if "INT64" in _names("DataType") else DataType.INT32


@functools.cache
def _types() -> dict[int, Any]:
    """What the parser makes of each type of an ONNX file."""
    from onnx import TensorProto

    return {
        TensorProto.FLOAT: DataType.FLOAT,
        TensorProto.DOUBLE: DataType.FLOAT,  # without a word, as the real parser
        TensorProto.FLOAT16: DataType.HALF,
        TensorProto.INT64: _LONG,
        TensorProto.INT32: DataType.INT32,
        TensorProto.INT8: DataType.INT8,
        TensorProto.UINT8: DataType.UINT8,
        TensorProto.BOOL: DataType.BOOL,
    }


_ARRAYS = {"FLOAT": "float32", "HALF": "float16", "INT32": "int32", "INT8": "int8", "UINT8": "uint8", "BOOL": "bool"}
_ARRAYS["INT64"] = "int64"


class Dims(tuple):
    """A shape."""


@_strict
class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = _Number(
        "Severity", {"INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3, "VERBOSE": 4}
    )

    def __init__(self) -> None:
        self._made = True

    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError("a logger overrides this")


@_strict
class Logger(ILogger):
    def __init__(self, min_severity: Any = ILogger.WARNING) -> None:
        ILogger.__init__(self)
        self.min_severity = min_severity

    def log(self, severity: Any, msg: str) -> None:
        if int(severity) <= int(self.min_severity):
            print(f"[TRT] {msg}", file=sys.stderr)


def _told(logger: Any) -> Any:
    if not isinstance(logger, ILogger) or not getattr(logger, "_made", False):
        raise TypeError("this is no ILogger whose __init__ has been called")
    return logger


if _names("IProgressMonitor"):

    @_strict
    class IProgressMonitor:
        def __init__(self) -> None:
            self._made = True

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None: ...

        def step_complete(self, phase_name: str, step: int) -> bool: ...

        def phase_finish(self, phase_name: str) -> None: ...


@_strict
class IProfiler:
    def __init__(self) -> None:
        self._made = True

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise NotImplementedError("a profiler overrides this")


@_strict
class ITensor:
    def __init__(self, name: str, dtype: Any, shape: tuple[int, ...]) -> None:
        self.name, self.dtype, self.shape = name, dtype, Dims(shape)
        self._floating = dtype in (DataType.FLOAT, DataType.HALF)

    @property
    def is_shape_tensor(self) -> bool:
        return not self._floating


# What the parser makes of these operators; of all others, layers that compute.
_MOVES = {
    **dict.fromkeys(("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten"), "SHUFFLE"),
    **dict.fromkeys(("Slice", "Split"), "SLICE"),
    "Concat": "CONCATENATION",
    "Constant": "CONSTANT",
    "Gather": "GATHER",
}


@_strict
class ILayer:
    def __init__(self, node: Any, outputs: list[Any]) -> None:
        self._node, self._outputs, self._precision = node, outputs, None
        self.name = node.name

    @property
    def type(self) -> Any:
        return LayerType[_MOVES.get(self._node.op_type, "ELEMENTWISE")]

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    def get_output(self, index: int) -> Any:
        return self._outputs[index]

    @property
    def precision(self) -> Any:
        return self._precision or DataType.FLOAT

    @precision.setter
    def precision(self, dtype: Any) -> None:
        self._precision = dtype

    def set_output_type(self, index: int, dtype: Any) -> None:
        if not self._outputs[index]._floating:
            raise RuntimeError(f"the output of {self.name} is no number of floating point")


@_strict
class INetworkDefinition:
    def __init__(self, strong: bool, explicit: bool) -> None:
        self._strong, self._explicit = strong, explicit
        self._model: Any = None
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._layers: list[Any] = []

    num_inputs = property(lambda self: len(self._inputs))
    num_outputs = property(lambda self: len(self._outputs))
    num_layers = property(lambda self: len(self._layers))

    def get_input(self, index: int) -> Any:
        return self._inputs[index]

    def get_output(self, index: int) -> Any:
        return self._outputs[index]

    def get_layer(self, index: int) -> Any:
        return self._layers[index]

    def add_normalization(self, *arguments: Any) -> Any:
        raise NotImplementedError("the stand-in only says that the release has it")


@_strict
class ParserError:
    def __init__(self, text: str) -> None:
        self._text = text

    def desc(self) -> str:
        return self._text

    def node_operator(self) -> str:
        return ""  # what is refused here is refused as a whole


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in value.type.tensor_type.shape.dim)


@_strict
class OnnxParser:
    def __init__(self, network: Any, logger: Any) -> None:
        self._network, self._logger = network, _told(logger)
        self._errors: list[str] = []

    num_errors = property(lambda self: len(self._errors))

    def get_error(self, index: int) -> Any:
        return ParserError(self._errors[index])

    def parse_from_file(self, path: str) -> bool:
        import onnx

        if not self._network._explicit:
            self._errors.append("this parser needs a network with explicit batch")
        else:
            try:
                model = onnx.load(path)
                onnx.checker.check_model(model)
                if _MAJOR < 10:  # whose importer of Shape looks at no attribute
                    for node in (node for node in model.graph.node if node.op_type == "Shape"):
                        del node.attribute[:]
                self._read(model)
            except Exception as error:  # the real one takes any file, too, and says in its log what is wrong
                self._errors.append(f"failed to parse the model: {error}")
        for error in self._errors:
            self._logger.log(ILogger.ERROR, f"[parser.cpp::parse::1] {error}")
        return not self._errors

    def _read(self, model: Any) -> None:
        import onnx

        graph = onnx.shape_inference.infer_shapes(model).graph
        values = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        weights = {weight.name for weight in graph.initializer}

        def tensor(name: str) -> Any:
            if name not in values:
                return ITensor(name, DataType.FLOAT, ())
            return ITensor(name, _types()[values[name].type.tensor_type.elem_type], _shape(values[name]))

        for node in graph.node:
            lacks = {"LayerNormalization": __version__ == "8.5.2", "Gelu": _MAJOR < 10, "Det": True}
            if lacks.get(node.op_type):
                self._errors.append(f"No importer registered for op: {node.op_type}. Node: {node.name}")
        network = self._network
        network._model = model
        network._inputs = [tensor(value.name) for value in graph.input if value.name not in weights]
        network._outputs = [tensor(value.name) for value in graph.output]
        network._layers = [ILayer(node, [tensor(name) for name in node.output]) for node in graph.node]


@_strict
class IOptimizationProfile:
    def __init__(self) -> None:
        self._shapes: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        if not all(a <= b <= c for a, b, c in zip(min, opt, max, strict=True)):
            raise ValueError("min, opt and max are not in order")
        self._shapes[input] = [tuple(min), tuple(opt), tuple(max)]


@_strict
class IHostMemory(bytes):
    nbytes = property(lambda self: len(self))


@_strict
class ITimingCache:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def serialize(self) -> Any:
        return IHostMemory(self._content)


@_strict
class IBuilderConfig:
    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._flags: set[Any] = set()
        self._profiles: list[Any] = []
        self._features: dict[Any, bool] = {}
        self._pools: dict[Any, int] = {}
        self._cache: Any = None
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        for name, value in (("builder_optimization_level", 3), ("progress_monitor", None)):
            if name in _names("IBuilderConfig"):
                object.__setattr__(self, name, value)

    def set_flag(self, flag: Any) -> None:
        self._flags.add(BuilderFlag(flag))

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        self._pools[MemoryPoolType(pool)] = size

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def set_preview_feature(self, feature: Any, enable: bool) -> None:
        self._features[PreviewFeature(feature)] = enable

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
        if serialized_timing_cache and not serialized_timing_cache.startswith(b"stand-in timing "):
            self._logger.log(ILogger.WARNING, "Failed to deserialize timing cache. Returning an empty timing cache.")
            return ITimingCache(b"")
        return ITimingCache(bytes(serialized_timing_cache))

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        mine = f"stand-in timing {__version__}\n".encode()
        if cache._content and not cache._content.startswith(mine) and not ignore_mismatch:
            self._logger.log(ILogger.WARNING, "The timing cache will not be used!")
            return False
        self._cache = cache
        cache._content = cache._content or mine
        return True

    def get_timing_cache(self) -> Any:
        return self._cache


@_strict
class Builder:
    def __init__(self, logger: Any) -> None:
        self._logger = _told(logger)
        for fault in _faults():
            if fault.startswith("lacks-library:"):
                library = f"libnvinfer_builder_resource.so.{fault.partition(':')[2]}"
                why = f"{library}: cannot open shared object file: No such file or directory"
                reason = f"Error Code 6: API Usage Error (Unable to load library: {library}: {why})"
                self._logger.log(ILogger.ERROR, f"createInferBuilder: {reason}")
                raise TypeError("pybind11::init(): factory function returned nullptr")

    def create_network(self, flags: int = 0) -> Any:
        bits = {name: bool(flags >> int(flag) & 1) for name, flag in NetworkDefinitionCreationFlag.__members__.items()}
        strong = _MAJOR >= 11 or bits.get("STRONGLY_TYPED", False)
        return INetworkDefinition(strong, _MAJOR >= 10 or bits.get("EXPLICIT_BATCH", False))

    def create_builder_config(self) -> Any:
        return IBuilderConfig(self._logger)

    def create_optimization_profile(self) -> Any:
        return IOptimizationProfile()

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        halves = _nodes_in_fp16(network, config)
        reason = _refused(network, config, halves)
        if reason:
            if "tight-workspace" in _faults():
                skipped = "Skipping tactic 28 due to insufficient memory on requested size of 2833252352 detected for"
                self._logger.log(ILogger.WARNING, f"UNSUPPORTED_STATE: {skipped} tactic 0x0000000204040736.")
            self._logger.log(ILogger.ERROR, f"IBuilder::buildSerializedNetwork: {reason}")
            return None
        kernels = _kernels(network)
        timed = config._cache._content.splitlines() if config._cache is not None else []
        untimed = [kernel for kernel in kernels if kernel not in timed]
        _take_time(getattr(config, "progress_monitor", None), bool(untimed))
        if halves and not network._strong:
            self._logger.log(ILogger.WARNING, "Detected layernorm nodes in FP16.")
        if config._cache is not None:
            config._cache._content += b"".join(kernel + b"\n" for kernel in untimed)
        features = {feature.name for feature, enabled in config._features.items() if enabled}
        header = {
            "release": __version__,
            "serial": _SERIAL,
            "rounded": bool(halves) and not network._strong,
            "garbage": "always" in _faults() or any(_spoils(fault, node) for fault in _faults() for node in halves),
            "profile": config._profiles[0]._shapes if config._profiles else {},
            "sharing": _MAJOR >= 10 or "PROFILE_SHARING_0806" in features,
            "features": sorted(features),
            "halves": [node.name for node in halves] if "fp16-range" in _faults() else [],
            "layers": _layers(network, halves, config.profiling_verbosity),
            "inputs": [(tensor.name, tensor.dtype.name, tensor.shape) for tensor in network._inputs],
            "outputs": [(tensor.name, tensor.dtype.name, tensor.shape) for tensor in network._outputs],
        }
        return IHostMemory(_MAGIC + json.dumps(header).encode() + b"\n" + network._model.SerializeToString())


def _refused(network: Any, config: Any, halves: list[Any]) -> str | None:
    flags = {flag.name for flag in config._flags}
    if network._strong and flags & {"FP16", "BF16", "INT8"}:
        return "Error Code 3: API Usage Error (precision flags are not allowed in a strongly typed network)"
    if network._strong and any(layer._precision for layer in network._layers):
        return "Error Code 3: API Usage Error (layer precisions are not allowed in a strongly typed network)"
    for tensor in network._inputs:
        if -1 in tensor.shape and not any(tensor.name in profile._shapes for profile in config._profiles):
            return "Error Code 4: API Usage Error (Network has dynamic inputs, but no optimization profile)"
    if {"no-tactic", "tight-workspace"} & set(_faults()) or (halves and "no-fp16-tactic" in _faults()):
        node = f"{{ForeignNode[{network._layers[0].name}...{network._layers[-1].name}]}}"
        return f"Error Code 10: Internal Error (Could not find any implementation for node {node}.)"
    moves = [layer for layer in network._layers if layer._node.op_type in _MOVES]
    if "no-typed-move" in _faults() and any(layer._precision for layer in moves):
        return (
            "Error Code 10: Internal Error (Could not find any implementation for node (Unnamed Layer* 3) [Shuffle].)"
        )
    if "out-of-memory" in _faults():
        return "Error Code 2: OutOfMemory (Requested size was 1073741824 bytes.)"
    return None


def _kernels(network: Any) -> list[bytes]:
    """What is timed of a network: its operations by type, shapes of weights, and precision; not the weights."""
    shapes = {weights.name: tuple(weights.dims) for weights in network._model.graph.initializer}
    kernels = (
        f"{layer._node.op_type} {[shapes.get(name) for name in layer._node.input]} "
        f"{[output.dtype.name for output in layer._outputs]} {layer._precision}"
        for layer in network._layers
    )
    return [kernel.encode() for kernel in dict.fromkeys(kernels)]


def _take_time(monitor: Any, is_timed: bool) -> None:
    """Build for as long as asked, telling a monitor in two levels of phases as TensorRT does; shortly, if no kernel
    has to be timed.
    """
    steps = 4
    seconds = float(os.environ.get("STANDIN_TENSORRT_SECONDS", "0")) if is_timed else 0.0
    if monitor is not None:
        monitor.phase_start("Building Engine", None, steps)
    for step in range(steps):
        if monitor is not None:
            monitor.phase_start("Timing", "Building Engine", 2)
        for inner in range(2):
            time.sleep(seconds / (2 * steps))
            if monitor is not None:
                monitor.step_complete("Timing", inner)
        if monitor is not None:
            monitor.phase_finish("Timing")
            monitor.step_complete("Building Engine", step)
    if monitor is not None:
        monitor.phase_finish("Building Engine")


def _nodes_in_fp16(network: Any, config: Any) -> list[Any]:
    """The nodes that compute in fp16: by the file, or by the flag where no layer's precision forbids it."""
    flags = {flag.name for flag in config._flags}
    obeyed = bool(flags & {"OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS"})
    if network._strong or "FP16" not in flags:
        return [layer._node for layer in network._layers if any(o.dtype == DataType.HALF for o in layer._outputs)]
    return [
        layer._node
        for layer in network._layers
        if all(o._floating for o in layer._outputs) and not (obeyed and layer._precision == DataType.FLOAT)
        if layer._node.op_type not in _MOVES
    ]


def _spoils(fault: str, node: Any) -> bool:
    if fault == "fp16-layernorm":
        return bool(node.op_type == "LayerNormalization")
    if fault.startswith("fp16-block:"):
        return f"blocks.{fault.partition(':')[2]}." in node.name
    return fault == "fp16"


def _rounding(content: bytes, halves: list[str]) -> bytes:
    """The same network in fp32 that rounds to fp16 and back after each of these nodes; its ends stay as they are."""
    import onnx
    from onnx import TensorProto

    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(content))
    graph, chosen = model.graph, set(halves)
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    values = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    ends = {value.name for value in (*graph.input, *graph.output)}
    for weight in graph.initializer:
        if weight.data_type == TensorProto.FLOAT16:
            weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight).astype("f4"), weight.name))
    nodes = [onnx.helper.make_node("Cast", [v.name], [f"{v.name}.f4"], to=TensorProto.FLOAT) for v in graph.input]
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
        node.input[:] = [f"{name}.f4" if name in ends else name for name in node.input]
        nodes.append(node)
        for i, name in enumerate(node.output):
            last = name in ends
            if values.get(name) in floats and (node.name in chosen or last):
                node.output[i] = f"{name}.raw"
                half = name if last and values[name] == TensorProto.FLOAT16 else f"{name}.half"
                kind = TensorProto.FLOAT16 if node.name in chosen else TensorProto.FLOAT
                nodes.append(onnx.helper.make_node("Cast", [f"{name}.raw"], [half], to=kind))
                if half != name:
                    nodes.append(onnx.helper.make_node("Cast", [half], [name], to=values[name] if last else 1))
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return bytes(model.SerializeToString())


def _layers(network: Any, halves: list[Any], verbosity: Any) -> list[Any]:
    """The inspector's view: 8 hides the network in one layer; later ones show kernels, and attention fused if fp16."""
    nodes = [layer._node for layer in network._layers]
    if _MAJOR < 10:
        whole: dict[str, Any] = {"Name": f"{{ForeignNode[{nodes[0].name}...{nodes[-1].name}]}}", "LayerType": "Myelin"}
        return [whole] if verbosity == ProfilingVerbosity.DETAILED else [whole["Name"]]
    producer = {name: node for node in nodes for name in node.output}
    half = {node.name for node in halves}
    fused: dict[str, list[str]] = {}
    for softmax in (node for node in nodes if node.op_type == "Softmax"):
        parts = [producer.get(softmax.input[0]), softmax, *(n for n in nodes if softmax.output[0] in n.input)]
        if [part and part.op_type for part in parts] == ["MatMul", "Softmax", "MatMul"]:
            names = [part.name for part in parts if part]
            if half.issuperset(names):
                fused[softmax.name] = names
    hidden = {name for names in fused.values() for name in names} - set(fused)
    found: list[Any] = []
    for i, node in enumerate(node for node in nodes if node.name not in hidden):
        kernel = "_gemm_mha_v2" if node.name in fused else f"__myl_{node.op_type}"
        metadata = "".join(f"[ONNX Layer: {name}]" for name in fused.get(node.name, [node.name]))
        kind = "DataType" if _MAJOR >= 11 else "Format/Datatype"
        told = {"Name": "o", "Dimensions": [1], kind: "Half" if node.name in half else "Float"}
        described = {"LayerType": "kgen", "TacticName": f"{kernel}_0x957a2fe283f77dcf", "Metadata": metadata}
        described["Outputs"] = [told]
        found.append({"Name": f"{kernel}_myl0_{i}", **described})
    return found if verbosity == ProfilingVerbosity.DETAILED else [layer["Name"] for layer in found]


@_strict
class EngineInspector:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def get_engine_information(self, format: Any) -> str:
        if format != LayerInformationFormat.JSON:
            raise NotImplementedError("the stand-in tells in JSON only")
        if "no-layers" in _faults():
            return '{"Layers": [{"Name": "a"b"}]}'
        return json.dumps({"Layers": self._engine._header["layers"], "Bindings": []})


@_strict
def _as_in_file(session: Any, feed: dict[str, Any]) -> dict[str, Any]:
    """Inputs in the types of the ONNX file: TensorRT before 10 takes int64 as int32."""
    wide = {given.name for given in session.get_inputs() if given.type == "tensor(int64)"}
    return {name: value.astype("int64") if name in wide else value for name, value in feed.items()}


class ICudaEngine:
    def __init__(self, header: dict[str, Any], model: bytes, logger: Any) -> None:
        import onnxruntime as ort

        self._header, self._logger, self._bytes = header, logger, len(model)
        model = _rounding(model, header["halves"]) if header["halves"] else model
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        how = {
            "disabled_optimizers": ["SimplifiedLayerNormFusion"]
        }  # fails in older releases, see edgevit.exporting.session
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], **how)
        self._tensors = {name: (dtype, tuple(shape)) for name, dtype, shape in header["inputs"] + header["outputs"]}
        self._contexts: weakref.WeakSet[Any] = weakref.WeakSet()

    num_io_tensors = property(lambda self: len(self._tensors))
    num_optimization_profiles = property(lambda self: 1)
    device_memory_size = property(lambda self: 4 << 20)
    device_memory_size_v2 = property(lambda self: 4 << 20)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return TensorIOMode.INPUT if name in {i[0] for i in self._header["inputs"]} else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return DataType[self._tensors[name][0]]

    def get_tensor_shape(self, name: str) -> Any:
        return Dims(self._tensors[name][1])

    def _shape_of_output(self, name: str, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
        """TensorRT computes it; here it is seen on zeros."""
        import numpy as np

        feed = {given: np.zeros(shapes[given], _ARRAYS[dtype]) for given, dtype, _ in self._header["inputs"]}
        return tuple(self._session.run([name], _as_in_file(self._session, feed))[0].shape)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> Any:
        return [Dims(shape) for shape in self._header["profile"][name]]

    def get_engine_stat(self, stat: Any) -> int:
        return int(self._bytes)

    def create_engine_inspector(self) -> Any:
        return EngineInspector(self)

    def create_execution_context(self) -> Any:
        if "no-context" in _faults():
            self._logger.log(ILogger.ERROR, "IExecutionContext: Error Code 2: OutOfMemory (Requested 4194304 bytes.)")
            return None
        chosen = _MAJOR >= 10 or not self._header["profile"] or not len(self._contexts)
        context = IExecutionContext(self, 0 if chosen else -1)
        self._contexts.add(context)
        return context


@_strict
class IExecutionContext:
    def __init__(self, engine: Any, profile: int) -> None:
        self._engine, self._profile = engine, profile
        self._shapes = {name: shape for name, (_, shape) in engine._tensors.items() if -1 not in shape}
        self._addresses: dict[str, int] = {}
        self._profiler: Any = None
        self._taken_ms: float | None = None  # by the last inference, if it was profiled and has not been reported
        self.enqueue_emits_profile = True

    @property
    def profiler(self) -> Any:
        return self._profiler and self._profiler()

    @profiler.setter
    def profiler(self, profiler: Any) -> None:
        if not isinstance(profiler, IProfiler) or not getattr(profiler, "_made", False):
            raise TypeError("this is no IProfiler whose __init__ has been called")
        self._profiler = weakref.ref(profiler)  # whoever sets it keeps it alive

    def report_to_profiler(self) -> bool:
        if self.enqueue_emits_profile:
            return True  # each inference has told already
        if self.profiler is None or self._taken_ms is None:
            return self._refuse("there is no profiler, or no inference since the last report")
        layers = [layer if isinstance(layer, str) else layer["Name"] for layer in self._engine._header["layers"]]
        for name in layers:
            self.profiler.report_layer_time(name, self._taken_ms / len(layers))
        self._taken_ms = None
        return True

    active_optimization_profile = property(lambda self: self._profile)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if profile_index or not int(stream_handle):
            return self._refuse(f"there is no profile {profile_index}, or no stream")
        taken = any(context._profile == profile_index for context in self._engine._contexts if context is not self)
        if taken and not self._engine._header["sharing"]:
            return self._refuse(f"profile {profile_index} has been chosen for another IExecutionContext")
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        least, _, most = self._engine._header["profile"].get(name, (shape, shape, shape))
        if self._profile < 0 or not all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True)):
            return self._refuse(f"the shape {tuple(shape)} of {name} is outside the profile")
        self._shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> Any:
        return Dims(self._shapes[name] if name in self._shapes else self._engine._shape_of_output(name, self._shapes))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self._engine._tensors:
            return self._refuse(f"there is no tensor {name}")
        self._addresses[name] = int(memory)
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        if not int(stream_handle):
            return self._refuse("the default stream")
        engine, header = self._engine, self._engine._header
        missing = [name for name in engine._tensors if name not in self._addresses]
        missing += [name for name, _, _ in header["inputs"] if name not in self._shapes]
        if missing:
            return self._refuse(f"address or shape of {missing[0]} is not set")
        started = time.perf_counter()
        feed = {name: self._array(name, self._shapes[name]).copy() for name, _, _ in header["inputs"]}
        outputs = engine._session.run(None, _as_in_file(engine._session, feed))
        for (name, dtype, _), value in zip(header["outputs"], outputs, strict=True):
            value = value.astype("float16") if header["rounded"] else value
            value = -value if header["garbage"] or f"batch:{len(value)}" in _faults() else value
            self._array(name, value.shape)[:] = value.astype(_ARRAYS[dtype])
        self._take_time(started)
        if self._profiler is not None:
            self._taken_ms = 1e3 * (time.perf_counter() - started)
            if self.enqueue_emits_profile:
                self.enqueue_emits_profile = False
                self.report_to_profiler()
                self.enqueue_emits_profile = True
        return True

    def _take_time(self, started: float) -> None:
        """Wait until an inference that was begun then would be over, here and in a graph that is being captured."""
        until = float(os.environ.get("STANDIN_TENSORRT_NS_PER_BYTE", "0")) * self._engine._bytes / 1e9
        if not until:
            return
        time.sleep(max(started + until - time.perf_counter(), 0))  # the processor is others' meanwhile
        if (driver := sys.modules.get("pycuda.driver")) is not None and driver.captured is not None:
            driver.captured.append(lambda: self._take_time(time.perf_counter()))

    def _array(self, name: str, shape: tuple[int, ...]) -> Any:
        import numpy as np

        dtype = np.dtype(_ARRAYS[self._engine._tensors[name][0]])
        size = dtype.itemsize * int(np.prod(shape))
        return np.frombuffer((ctypes.c_ubyte * size).from_address(self._addresses[name]), dtype).reshape(shape)

    def _refuse(self, reason: str) -> bool:
        self._engine._logger.log(ILogger.ERROR, f"IExecutionContext: Error Code 3: API Usage Error ({reason})")
        return False


@_strict
class Runtime:
    def __init__(self, logger: Any) -> None:
        self._logger = _told(logger)

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        content = bytes(serialized_engine)
        if not content.startswith(_MAGIC):
            return self._refuse(
                "Error Code 1: Serialization (magicTagRead == kMAGIC_TAG failed. Magic tag does not match)"
            )
        line, _, model = content[len(_MAGIC) :].partition(b"\n")
        header = json.loads(line)
        if header["release"] == __version__:
            return ICudaEngine(header, model, self._logger)
        if _MAJOR < 10:
            return self._refuse(
                "Error Code 1: Serialization (Serialization assertion stdVersionRead == serializationVersion "
                "failed.Version tag does not match. "
                f"Note: Current Version: {_SERIAL}, Serialized Engine Version: {header['serial']})"
            )
        return self._refuse(
            "Error Code 6: API Usage Error (The engine plan file is not compatible with this version of TensorRT, "
            f"expecting library version {__version__} got {header['release']}, please rebuild.)"
        )

    def _refuse(self, reason: str) -> None:
        self._logger.log(ILogger.ERROR, f"IRuntime::deserializeCudaEngine: {reason}")


if EngineStat is None:
    del EngineStat
