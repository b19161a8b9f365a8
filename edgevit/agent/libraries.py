"""What the libraries of a machine say of themselves, each in a process of its own: `control.own_command` starts it.

A library may crash there, and the memory that it takes is free again afterwards. This module imports little, because
each of these processes reads it anew from the zip, where Python keeps no compiled files.
"""

from __future__ import annotations

import json
from typing import Callable, Mapping

from .__main__ import claim_stdout
from .runners import RunnerError


def _tell_tensorrt() -> None:
    from .engine import describe_tensorrt

    _tell(describe_tensorrt)


def _tell_cuda() -> None:
    from .cuda import describe_cuda

    _tell(describe_cuda)


def _tell_onnxruntime() -> None:
    _tell(_describe_onnxruntime)


LIBRARIES: dict[str, Callable[[], None]] = {
    "tensorrt": _tell_tensorrt,
    "cuda": _tell_cuda,
    "onnxruntime": _tell_onnxruntime,
}


def _tell(describe: Callable[[], Mapping[str, object]]) -> None:
    """Print what `describe` returns, and nothing that a library prints."""
    with claim_stdout() as answer:
        json.dump(describe(), answer)


def _describe_onnxruntime() -> dict[str, object]:
    from .onnx_runtime import import_onnxruntime, installed

    packages = installed()
    try:
        onnxruntime = import_onnxruntime()
    except RunnerError as error:
        return {"found": None, "error": str(error), "packages": packages}
    package = {"version": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}
    return {"found": package, "packages": packages}
