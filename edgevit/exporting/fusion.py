"""Count the attentions that NVIDIA's compiler fuses, without a GPU: TensorRT-RTX builds an engine on any machine.

It targets SM 8.6, the same Ampere generation as Orin's SM 8.7, and is another release than JetPack's TensorRT: the
count is a proxy, and recorded as such. It is read from the function list of the engine, which is not documented;
therefore the `rtx` extra pins the version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from edgevit.errors import ExportError
from edgevit.records.export import Fusion

FUSED_KERNEL = re.compile(rb"function=\{ name=_gemm_mha")
_TARGET = "SM 8.6"
_PROXY = "a proxy for Orin (SM 8.7): the same GPU generation, another release of the compiler"
_LARGEST_DYNAMIC_BATCH = 8


def compiler_installed() -> bool:
    try:
        import tensorrt_rtx  # noqa: F401
    except ImportError:
        return False
    return True


def _logger(trt: Any, errors: list[str]) -> Any:
    class Errors(trt.ILogger):  # type: ignore[misc]
        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                errors.append(message)

    return Errors()


def build_plan(path: Path, *, imported: bool = False) -> Any:
    """Build an engine for SM 8.6 from a strongly typed network and return its bytes as a buffer.

    Errors suggest another operator set unless the file was `imported`.

    Raises:
        ExportError: NVIDIA's parser or compiler refuses the file.
    """
    import tensorrt_rtx as trt

    errors: list[str] = []
    builder = trt.Builder(_logger(trt, errors))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, _logger(trt, errors))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    plan = None
    if parser.parse_from_file(str(path)):
        images = network.get_input(0)
        if images.shape[0] == -1:
            profile, size = builder.create_optimization_profile(), tuple(images.shape[1:])
            profile.set_shape(images.name, (1, *size), (1, *size), (_LARGEST_DYNAMIC_BATCH, *size))
            config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
    elif parser.num_errors and (operator := parser.get_error(0).node_operator()):
        node = parser.get_error(0).node_name()
        raise ExportError(
            f"TensorRT-RTX {trt.__version__} cannot read {path.name}: it does not support {operator} ({node}); export "
            "the model without that, or leave fp16 out with --no-fp16"
        )
    if plan is None:
        reason = errors[0].strip().splitlines()[0][:200] if errors else "no reason given"
        hint = "export the original model with another opset" if imported else "try --opset 20"
        raise ExportError(
            f"TensorRT-RTX {trt.__version__} cannot build {path.name}: {reason}; {hint}, or leave fp16 out with "
            "--no-fp16"
        )
    return plan


def count_fused(path: Path, *, blocks: int, expected: int, imported: bool = False) -> Fusion:
    """Count the fused attention kernels of an fp16 file.

    Raises:
        ExportError: NVIDIA's parser or compiler refuses the file.
    """
    import tensorrt_rtx as trt

    fused = len(FUSED_KERNEL.findall(memoryview(build_plan(path, imported=imported))))
    return Fusion(fused, blocks, expected, "TensorRT-RTX", str(trt.__version__), _TARGET, _PROXY)


def fusion_remark(fusion: Fusion, *, imported: bool = False) -> str | None:
    """Describe attentions that do not fuse; None: all do. Heads of an imported file cannot be changed."""
    if fusion.fused >= fusion.blocks:  # more, if an imported file has attention outside its blocks
        return None
    by = f"{fusion.compiler} {fusion.version} fuses {fusion.fused} of {fusion.blocks} attention blocks"
    if fusion.fused < fusion.expected:
        return f"{by}, where {fusion.expected} have dimensions that should fuse; the rest may be slow on the board"
    slow = f"{by}; the rest may be slow on the board"
    return slow if imported else f"{slow}: derive with --shape fused, or export with --pad-heads"
