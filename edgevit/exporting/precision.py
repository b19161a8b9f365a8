"""Check the range of fp16 for weights and activations, and select the modules that stay in fp32."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from timm.layers import RmsNorm
from torch import Tensor, nn

from edgevit.errors import ExportError
from edgevit.records.export import Range

LARGEST = torch.finfo(torch.float16).max  # 65504
_SMALLEST_NORMAL = torch.finfo(torch.float16).smallest_normal  # 6.1e-5; smaller values lose precision
_RMS_NORMS = (nn.RMSNorm, RmsNorm)
WITHOUT = "leave fp16 out with --no-fp16"
_INSTEAD = f"derive the model again, or {WITHOUT}"


def _largest(values: Tensor) -> float:
    """The largest magnitude, or NaN, without a temporary copy."""
    low, high = values.detach().aminmax()
    return float(torch.maximum(-low, high))


def check_weights(weights: Iterable[tuple[str, Tensor]], instead: str = _INSTEAD) -> tuple[float, float, float]:
    """The largest weight, and the shares of weights that are subnormal and that become zero in fp16.

    Raises:
        ExportError: a weight overflows fp16.
    """
    total = subnormal = lost = 0
    largest = 0.0
    for name, weight in weights:
        if (peak := _largest(weight)) > LARGEST:
            raise ExportError(f"{name} overflows fp16: {peak:.4g} seen, {LARGEST:.0f} is the largest; {instead}")
        largest = max(largest, peak)
        small = weight.detach()[weight.abs() < _SMALLEST_NORMAL]
        total += weight.numel()
        subnormal += int(small.count_nonzero())
        lost += int(((small != 0) & (small.half() == 0)).sum())
    return largest, subnormal / max(total, 1), lost / max(total, 1)


@torch.inference_mode()
def _largest_activations(network: nn.Module, images: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """The largest output of each module of the fp32 network, and the largest square of each RMS norm.

    In a file these norms are decomposed, and one node squares their input.
    """
    outputs, squares = dict[str, float](), dict[str, float]()

    def watch(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            if isinstance(output, Tensor) and output.numel():
                outputs[name] = _largest(output)
            if isinstance(module, _RMS_NORMS) and isinstance(inputs[0], Tensor):
                squares[f"{name}/Pow"] = _largest(inputs[0]) ** 2

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in network.named_modules() if name]
    try:
        network(images)
    finally:
        for handle in handles:
            handle.remove()
    return outputs, squares


def check_range(network: nn.Module, images: Tensor) -> Range:
    """Measure in the fp32 network what overflows in fp16, as a CPU runs fp16 files partly in fp32.

    Squares that overflow are listed, as RMS norms can stay in fp32.

    Raises:
        ExportError: a weight or the output of a module overflows fp16.
    """
    largest, subnormal, lost = check_weights(network.named_parameters())
    outputs, squares = _largest_activations(network, images)
    module = max(outputs, key=outputs.__getitem__)
    if not outputs[module] <= LARGEST:
        raise ExportError(
            f"the output of {module} overflows fp16: {outputs[module]:.4g} seen, {LARGEST:.0f} is the largest; "
            f"{_INSTEAD}"
        )
    values = {**outputs, **squares}
    largest_name = max(values, key=values.__getitem__)
    over = tuple(name for name, peak in squares.items() if peak > LARGEST)
    return Range(largest, subnormal, lost, values[largest_name], largest_name, over)


def modules_in_fp32(
    norms: Sequence[str], blocks: Sequence[str], *, all_norms: bool, chosen: Collection[int]
) -> tuple[str, ...]:
    """The modules in fp32 if these blocks, and optionally all normalisations, stay in fp32.

    A block includes its normalisations.
    """
    whole = [name for i, name in enumerate(blocks) if i in chosen]
    inside = tuple(f"{name}." for name in whole)
    return (*[n for n in norms if all_norms and not n.startswith(inside)], *whole)


def needs_fp32(measured: Range, norms: Sequence[str], blocks: Sequence[str]) -> tuple[str, ...]:
    """The modules that overflow fp16: each block with an overflowing node, and then all normalisations.

    Raises:
        ExportError: an overflowing node is in none of them.
    """
    chosen: set[int] = set()
    for node in measured.overflowing:
        module = node.partition("/")[0]
        if module in norms:
            continue
        block = next((i for i, name in enumerate(blocks) if f"{module}.".startswith(f"{name}.")), None)
        if block is None:
            raise ExportError(
                f"{node} overflows fp16 ({measured.activations_largest:.4g} seen, {LARGEST:.0f} is the "
                "largest) outside the blocks that could stay in fp32; try --no-fp16"
            )
        chosen.add(block)
    return modules_in_fp32(norms, blocks, all_norms=bool(measured.overflowing), chosen=chosen)


def format_overflow(measured: Range, modules: Sequence[str]) -> str:
    """The warning about modules that stay in fp32."""
    nodes = measured.overflowing
    node_names = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    listed = ", ".join(modules[:3]) + (", ..." if len(modules) > 3 else "")
    return (
        f"fp16 overflows in {node_names} (up to {measured.activations_largest:.4g}, {LARGEST:.0f} is the largest that "
        f"fits); the fp16 file keeps {len(modules)} modules in fp32: {listed}"
    )


def norm_names(network: nn.Module) -> tuple[str, ...]:
    """The names of the layer normalisations, in which fp16 loses most precision, because they square their input."""
    kinds = (nn.LayerNorm, *_RMS_NORMS)
    return tuple(name for name, module in network.named_modules() if isinstance(module, kinds))
