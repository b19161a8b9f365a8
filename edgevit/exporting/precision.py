"""Whether a network survives fp16: weights and activations within its range, and what stays in fp32 where not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from timm.layers import RmsNorm
from torch import Tensor, nn

from edgevit.errors import ExportError
from edgevit.records.export import Range

LARGEST = torch.finfo(torch.float16).max  # 65504
SMALLEST_NORMAL = torch.finfo(torch.float16).smallest_normal  # 6.1e-5; below it precision fades
RMS_NORMS = (nn.RMSNorm, RmsNorm)
WITHOUT = "leave fp16 out with --no-fp16"
INSTEAD = f"derive the model again, or {WITHOUT}"


def _largest(values: Tensor) -> float:
    """The largest magnitude, or NaN; without a temporary as large as the values."""
    low, high = values.detach().aminmax()
    return float(torch.maximum(-low, high))


def check_weights(weights: Iterable[tuple[str, Tensor]], instead: str = INSTEAD) -> tuple[float, float, float]:
    """The largest weight, the share of them that is subnormal in fp16, and the share that becomes zero.

    Raises:
        ExportError: one is larger than fp16 can hold.
    """
    total = subnormal = lost = 0
    largest = 0.0
    for name, weight in weights:
        if (peak := _largest(weight)) > LARGEST:
            raise ExportError(f"{name} overflows fp16: {peak:.4g} seen, {LARGEST:.0f} is the largest; {instead}")
        largest = max(largest, peak)
        small = weight.detach()[weight.abs() < SMALLEST_NORMAL]
        total += weight.numel()
        subnormal += int(small.count_nonzero())
        lost += int(((small != 0) & (small.half() == 0)).sum())
    return largest, subnormal / max(total, 1), lost / max(total, 1)


@torch.inference_mode()
def _largest_activations(network: nn.Module, images: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """The largest magnitude that each module of the fp32 network puts out, and the largest square of each RMS norm.

    A file has no operator for these norms: it squares their input, as one of its nodes.
    """
    outputs, squares = dict[str, float](), dict[str, float]()

    def watch(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            if isinstance(output, Tensor) and output.numel():
                outputs[name] = _largest(output)
            if isinstance(module, RMS_NORMS) and isinstance(inputs[0], Tensor):
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
    """Measure on the fp32 network what fp16 would overflow or lose: a CPU runs fp16 files partly in fp32 and hides it.

    Squares that overflow are named, as RMS norms can stay in fp32.

    Raises:
        ExportError: a weight or the output of a module is larger than fp16 can hold.
    """
    largest, subnormal, lost = check_weights(network.named_parameters())
    outputs, squares = _largest_activations(network, images)
    where = max(outputs, key=outputs.__getitem__)
    if not outputs[where] <= LARGEST:
        raise ExportError(
            f"the output of {where} overflows fp16: {outputs[where]:.4g} seen, {LARGEST:.0f} is the largest; {INSTEAD}"
        )
    everything = {**outputs, **squares}
    where = max(everything, key=everything.__getitem__)
    over = tuple(name for name, peak in squares.items() if peak > LARGEST)
    return Range(largest, subnormal, lost, everything[where], where, over)


def kept_in_fp32(
    norms: Sequence[str], blocks: Sequence[str], *, all_norms: bool, chosen: Collection[int]
) -> tuple[str, ...]:
    """The modules of a file in which the chosen blocks, and all normalisations if asked, stay in fp32.

    A block brings its own normalisations.
    """
    whole = [name for i, name in enumerate(blocks) if i in chosen]
    inside = tuple(f"{name}." for name in whole)
    return (*[n for n in norms if all_norms and not n.startswith(inside)], *whole)


def needs_fp32(seen: Range, norms: Sequence[str], blocks: Sequence[str]) -> tuple[str, ...]:
    """The modules that fp16 cannot hold: each block in which a node overflows, and all normalisations where any does.

    Raises:
        ExportError: a node overflows that lies in none of them.
    """
    chosen: set[int] = set()
    for node in seen.overflowing:
        module = node.partition("/")[0]
        if module in norms:
            continue
        block = next((i for i, name in enumerate(blocks) if f"{module}.".startswith(f"{name}.")), None)
        if block is None:
            raise ExportError(
                f"{node} overflows fp16 ({seen.activations_largest:.4g} is the largest value seen, {LARGEST:.0f} the "
                "largest that fits) and lies in no block that could stay in fp32; try --no-fp16"
            )
        chosen.add(block)
    return kept_in_fp32(norms, blocks, all_norms=bool(seen.overflowing), chosen=chosen)


def overflow_told(seen: Range, kept: Sequence[str]) -> str:
    """What a person is told of a file that fp16 alone cannot hold."""
    nodes = seen.overflowing
    named = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return (
        f"fp16 overflows in {named} (up to {seen.activations_largest:.4g}, {LARGEST:.0f} is the largest that fits); "
        f"the fp16 file keeps {len(kept)} modules in fp32: {', '.join(kept[:3])}{', ...' if len(kept) > 3 else ''}"
    )


def norm_names(network: nn.Module) -> tuple[str, ...]:
    """The normalisations of layers, by module name: where fp16 loses most, because they square what they get."""
    kinds = (nn.LayerNorm, *RMS_NORMS)
    return tuple(name for name, module in network.named_modules() if isinstance(module, kinds))
