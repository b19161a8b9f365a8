"""ONNX Runtime comes as two packages, one for the CPU and one with CUDA, of which one may be installed.

Both write into the same folder: side by side, the last one installed has overwritten the other, and removing either
takes files of both.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

from .runners import RunnerError

CPU, GPU = "onnxruntime", "onnxruntime-gpu"
# ONNX Runtime 1.23, but not 1.31, fails in this optimisation on an fp16 file with a decomposed LayerNorm in fp32.
BROKEN_FUSION = "SimplifiedLayerNormFusion"
_EITHER = f"{CPU} (as edgevit[cpu] does), or {GPU} (edgevit[gpu]) for an NVIDIA GPU"


def installed() -> dict[str, str]:
    """The version of each of the two packages that this Python has."""
    versions = {}
    for name in (CPU, GPU):
        try:
            versions[name] = str(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return versions


def describe_installed() -> str:
    """A sentence's end: which of the two there is, and what that leaves to be desired."""
    versions = installed()
    named = " and ".join(f"{name} {version}" for name, version in versions.items())
    if len(versions) > 1:
        return f"{named} are installed side by side and overwrite one another"
    return f"{named} is installed" if versions else f"neither {CPU} nor {GPU} is installed"


def install_hint() -> str:
    """What to do where ONNX Runtime cannot be imported, or is not whole."""
    versions, pip = installed(), f"{sys.executable} -m pip"
    if len(versions) > 1:
        return f"`{pip} uninstall -y {CPU} {GPU}`, then install {_EITHER}"
    if versions:
        return f"`{pip} install --force-reinstall {next(iter(versions))}`"
    return f"install {_EITHER}"


def import_onnxruntime() -> Any:
    """Raises: RunnerError."""
    try:
        import onnxruntime
    except ImportError as error:
        reason = str(error).strip().splitlines()[0]
        raise RunnerError(
            f"{sys.executable} cannot import onnxruntime ({reason}): {describe_installed()}; {install_hint()}"
        ) from error
    if not hasattr(onnxruntime, "get_available_providers"):  # what is left of two when one of them was removed
        raise RunnerError(f"onnxruntime is not whole in {sys.executable}: {describe_installed()}; {install_hint()}")
    return onnxruntime
