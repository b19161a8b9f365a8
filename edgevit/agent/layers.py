"""What a runtime made of the network: its layers, which ONNX nodes each computes, and which are fused attention."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Sequence

from .runners import RunnerError

# How the fused kernel is called: `_gemm_mha_v2_myl0_17` as a layer's name, `_gemm_mha_v2_0x957a...` as its tactic,
# `kgen_mha` as a layer's type in newer releases. Anchored: a model's own layers may have "mha" in their names.
_NAME = re.compile(r"_+(?:gemm_|kgen_)?f?mha(?:_|$)")
_TYPE = "kgen_mha"
OPAQUE = "ForeignNode["  # a part of the network that TensorRT 8 shows as one layer, whatever is in it

_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")  # names of ONNX nodes in the metadata of a layer, since TensorRT 8.6
# Between the names of nodes in the name of a layer: "a + b", "a || b", "PWN(PWN(a), b)", "{ForeignNode[a...b]}", and
# "Reformatting CopyNode for Input Tensor 0 to a + b".
_BETWEEN = re.compile(r" \+ | \|\| |, |\.\.\.|[(){}]|ForeignNode\[|\]|^Reformatting CopyNode .*? (?:to|for) ")
# What a tensor's format begins or ends with, in the words of 8.5 ("Row major linear FP16 format") and of 10 ("Half").
_PRECISIONS = {"FP32": "fp32", "Float": "fp32", "FP16": "fp16", "Half": "fp16", "BFloat16": "bf16", "Int8": "int8"}

# Names of a tensor's type; TensorRT 11 tells it apart from the format, which names it, too.
_TYPES = ("Format/Datatype", "DataType", "Format")


@dataclass(frozen=True)
class Layer:
    """A layer of an engine, or a node as ONNX Runtime runs it. None: it does not say."""

    name: str
    kind: str | None  # type of the layer in the runtime's own words
    precision: str | None  # precision of the layer's output
    tactic: str | None  # name of the kernel
    nodes: tuple[str, ...]  # names of the ONNX nodes that the layer computes
    fused: bool = False  # whether the layer is a whole attention in one kernel
    times_ns: tuple[int, ...] = ()  # duration in each profiled inference; empty: it was not profiled


def read_layers(trt: Any, engine: Any) -> list[Any]:
    """Return what the inspector tells of each layer.

    Raises: RunnerError.
    """
    return parse_layers(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))


def parse_layers(text: str) -> list[Any]:
    """Return the layers of an inspector's JSON: each an object, or only a name where the engine was built so.

    Raises: RunnerError.
    """
    try:
        information = json.loads(
            text, strict=False
        )  # names of nodes may hold tabs, which the inspector does not escape
    except (ValueError, RecursionError) as error:
        raise RunnerError(
            f"the layer information is no JSON ({error}); look at it with `trtexec --dumpLayerInfo`"
        ) from None
    layers = information.get("Layers") if isinstance(information, dict) else None
    if not isinstance(layers, list):
        raise RunnerError('the layer information has no list of "Layers"; look at it with `trtexec --dumpLayerInfo`')
    return layers


def describe_layer(layer: Any) -> Layer:
    """Say in our words what the inspector tells of a layer; an engine that was built without details names it only."""
    tactic = _text(layer, "TacticName")
    return Layer(
        name=_text(layer, "Name"),
        kind=_text(layer, "LayerType") or None,
        precision=_precision(layer),
        tactic=tactic if tactic.strip("0x") else None,  # 8 writes 0x0000000000000000 where there is none
        nodes=_nodes(layer),
        fused=_is_fused(layer),
    )


def with_times(described: Sequence[Layer], inferences: Sequence[Sequence[tuple[str, int]]]) -> list[Layer]:
    """Give layers their times, by name and, of equal names, by order; one that is not known has its name only.

    `inferences` are the name and the nanoseconds of each layer, in the order of each inference.

    Raises:
        RunnerError: the inferences do not have the same layers, so that times belong to none.
    """
    names = [[name for name, _ in layers] for layers in inferences]
    if not names or not names[0] or any(later != names[0] for later in names):
        raise RunnerError("the profiler did not time the same layers in each inference; run again, or without --layers")
    unmatched = list(described)
    timed = []
    for place, name in enumerate(names[0]):
        match = next((layer for layer in unmatched if layer.name == name), None)
        if match is not None:
            unmatched.remove(match)
        layer = match or describe_layer(name)
        timed.append(replace(layer, times_ns=tuple(layers[place][1] for layers in inferences)))
    return timed


def _nodes(layer: Any) -> tuple[str, ...]:
    """The nodes' names; of a layer that does not list them, those in its own, each of which has a slash."""
    listed = _NODE.findall(_text(layer, "Metadata"))
    words = listed or [word for word in _BETWEEN.split(_text(layer, "Name")) if word and "/" in word]
    return tuple(dict.fromkeys(words))


def _precision(layer: Any) -> str | None:
    outputs = layer.get("Outputs") if isinstance(layer, dict) else None
    first = outputs[0] if isinstance(outputs, list) and outputs else None
    text = next(filter(None, (_text(first, key) for key in _TYPES)), "")
    return next(
        (precision for pattern, precision in _PRECISIONS.items() if re.search(rf"\b{pattern}\b", text, re.I)),
        text or None,
    )


def count_fused(layers: Sequence[Any]) -> int | None:
    """Count the layers that are fused attention; None where TensorRT does not show what is inside a layer."""
    fused = sum(_is_fused(layer) for layer in layers)
    opaque = any(OPAQUE in _text(layer, "Name") for layer in layers)
    return None if opaque and not fused else fused


def _is_fused(layer: Any) -> bool:
    names = (_text(layer, "Name"), _text(layer, "TacticName"))
    return any(_NAME.match(name) for name in names) or _text(layer, "LayerType") == _TYPE


def _text(layer: Any, key: str) -> str:
    value = layer.get(key, "") if isinstance(layer, dict) else layer if key == "Name" else ""
    return value if isinstance(value, str) else ""
