"""What TensorRT made of the network: the layers of an engine, and how many of them are fused attention."""

from __future__ import annotations

import json
import re
from typing import Any, Sequence

from .runners import RunnerError

# How the fused kernel is called: `_gemm_mha_v2_myl0_17` as a layer's name, `_gemm_mha_v2_0x957a...` as its tactic,
# `kgen_mha` as a layer's type in newer releases. Anchored: a model's own layers may have "mha" in their names.
NAME = re.compile(r"_+(?:gemm_|kgen_)?f?mha(?:_|$)")
TYPE = "kgen_mha"
OPAQUE = "ForeignNode["  # a part of the network that TensorRT 8 shows as one layer, whatever is in it


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
        information = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunnerError(
            f"the layer information is no JSON ({error}); look at it with `trtexec --dumpLayerInfo`"
        ) from None
    layers = information.get("Layers") if isinstance(information, dict) else None
    if not isinstance(layers, list):
        raise RunnerError('the layer information has no list of "Layers"; look at it with `trtexec --dumpLayerInfo`')
    return layers


def count_fused(layers: Sequence[Any]) -> int | None:
    """Count the layers that are fused attention; None where TensorRT does not show what is inside a layer."""
    fused = sum(_is_fused(layer) for layer in layers)
    opaque = any(OPAQUE in _text(layer, "Name") for layer in layers)
    return None if opaque and not fused else fused


def _is_fused(layer: Any) -> bool:
    names = (_text(layer, "Name"), _text(layer, "TacticName"))
    return any(NAME.match(name) for name in names) or _text(layer, "LayerType") == TYPE


def _text(layer: Any, key: str) -> str:
    value = layer.get(key, "") if isinstance(layer, dict) else layer if key == "Name" else ""
    return value if isinstance(value, str) else ""
