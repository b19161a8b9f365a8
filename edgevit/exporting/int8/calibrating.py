"""Watch the inputs of linear layers on calibration images: magnitudes by channel, moments, and ranges of INT8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from edgevit.errors import ExportError
from edgevit.exporting.graph import PROTOBUF_LIMIT_BYTES
from edgevit.exporting.session import GraphModel

STEPS = 127  # steps of INT8 to each side of zero
BINS = 2048  # bins of the histogram of magnitudes
_COVERED = 0.9999  # share of the values within the range by "percentile"


@dataclass
class Inputs:
    """The inputs [rows, in] of linear layers that share them, over all images."""

    lowest: Tensor  # [in] smallest value of each input
    highest: Tensor  # [in] largest value of each input
    rows: int
    total: Tensor  # [in] sum over the rows, in fp64
    squares: Tensor  # [in] sum of squares over the rows, in fp64
    products: Tensor | None = None  # [in, in] sum over the rows of the products of inputs; None: not collected
    magnitudes: Tensor | None = None  # [BINS] histogram of magnitudes from 0 to the peak; None: not collected

    @property
    def peak(self) -> float:
        return float(torch.maximum(-self.lowest, self.highest).max())

    @property
    def mean(self) -> Tensor:
        return self.total / self.rows

    def rescaled(self, shift: Tensor, scale: Tensor) -> Inputs:
        """The inputs (x - shift) / scale; both [in], `scale` positive."""
        squares = self.squares - 2 * shift * self.total + self.rows * shift.double() ** 2
        return Inputs(
            (self.lowest - shift) / scale,
            (self.highest - shift) / scale,
            self.rows,
            (self.total - self.rows * shift.double()) / scale,
            squares.clamp_min(0) / scale.double() ** 2,
        )


def _watch(model: ir.Model, names: Sequence[str], batches: Iterable[Tensor]) -> Iterator[Mapping[str, Tensor]]:
    """Yield the values of these names [rows, in] of each batch."""
    watched = model.clone()
    values = {value.name: value for node in watched.graph for value in node.outputs}
    watched.graph.outputs.clear()
    watched.graph.outputs.extend(values[name] for name in names)
    run = GraphModel(watched).run
    for images in batches:
        yield {name: out.flatten(0, -2) for name, out in zip(names, run(images), strict=True)}


def watch_inputs(model: ir.Model, names: Sequence[str], batches: Iterable[Tensor]) -> dict[str, Inputs]:
    """The range, mean and energy of each channel of these values.

    Raises:
        ExportError: one is not finite.
    """
    inputs: dict[str, Inputs] = {}
    for values in _watch(model, names, batches):
        for name, rows in values.items():
            lowest, highest = rows.aminmax(dim=0)
            if not (lowest.isfinite().all() and highest.isfinite().all()):
                raise ExportError(f"{name} is NaN or infinite on calibration images; derive or train the model again")
            exact = rows.double()
            batch = Inputs(lowest, highest, len(rows), exact.sum(0), (exact**2).sum(0))
            before = inputs.setdefault(name, batch)
            if before is not batch:
                before.lowest, before.highest = before.lowest.minimum(lowest), before.highest.maximum(highest)
                before.rows += batch.rows
                before.total += batch.total
                before.squares += batch.squares
    return inputs


def add_moments(model: ir.Model, inputs: Mapping[str, Inputs], batches: Iterable[Tensor]) -> None:
    """Sum up the products of these values, and count their magnitudes.

    Raises:
        ExportError: a product is not finite.
    """
    for values in _watch(model, list(inputs), batches):
        for name, rows in values.items():
            of = inputs[name]
            if of.products is None or of.magnitudes is None:
                of.products, of.magnitudes = torch.zeros(rows.shape[1], rows.shape[1]), torch.zeros(BINS)
            of.products.addmm_(rows.mT, rows)
            of.magnitudes += torch.histc(rows.abs(), BINS, 0, of.peak or 1.0)
    for name, of in inputs.items():
        if of.products is not None and not of.products.isfinite().all():
            raise ExportError(
                f"{name} is as large as {of.peak:.3g} on calibration images, and its squares overflow; derive or train "
                "the model again"
            )


def _by_percentile(magnitudes: Tensor) -> int:
    """The bins that hold the share _COVERED of all values."""
    share = magnitudes.cumsum(0) / magnitudes.sum()
    return int((share < _COVERED).sum()) + 1


def _by_entropy(magnitudes: Tensor) -> int:
    """The bins whose values, clipped to them and rounded to STEPS levels, have the least divergence from all.

    After NVIDIA's "8-bit inference with TensorRT", in steps of 8 bins.
    """
    counts, divergences = magnitudes.double(), {}
    for bins in range(STEPS + 1, BINS + 1, 8):
        clipped = counts[:bins].clone()
        clipped[-1] += counts[bins:].sum()
        level = torch.arange(bins) * STEPS // bins
        occupied = counts[:bins] > 0
        summed = torch.zeros(STEPS, dtype=torch.float64).index_add_(0, level, counts[:bins])
        number = torch.zeros(STEPS, dtype=torch.float64).index_add_(0, level, occupied.double())
        rounded = torch.where(occupied, (summed / number.clamp_min(1))[level], 0.0)
        p, q = clipped / clipped.sum(), (rounded / rounded.sum()).clamp_min(1e-12)
        divergences[bins] = float(torch.special.xlogy(p, p / q).sum())
    return min(divergences, key=divergences.__getitem__)


RANGES: dict[str, Callable[[Tensor], int]] = {
    "max": lambda _: BINS, "percentile": _by_percentile, "entropy": _by_entropy,
}  # fmt: skip


def step_of(inputs: Inputs, method: str) -> float:
    """The step of INT8 for these inputs, a number of fp16, so that a file in fp16 has the same."""
    assert inputs.magnitudes is not None
    limit = inputs.peak * RANGES[method](inputs.magnitudes) / BINS
    return float(halves(torch.tensor(limit / STEPS)))


def halves(steps: Tensor) -> Tensor:
    """These numbers, rounded up to fp16, and above zero."""
    rounded = steps.half().float()
    up = torch.nextafter(steps.half(), torch.tensor(math.inf, dtype=torch.float16)).float()
    return torch.where(rounded < steps, up, rounded).clamp_min(float(torch.finfo(torch.float16).smallest_normal))


def fits(model: ir.Model) -> bool:
    """Whether a graph can be sent to ONNX Runtime as one message."""
    weights = (value.const_value for value in model.graph.initializers.values())
    return sum(weight.nbytes for weight in weights if weight is not None) < PROTOBUF_LIMIT_BYTES
