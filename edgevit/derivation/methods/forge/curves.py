"""The curves of a block: its predicted losses, which serve every budget, and how the cache stores them.

Most of the data are second moments, [e, e] for e neurons. They are symmetric, so one triangle is stored, in fp32 and
less the product of the means. The means are stored in fp64. Rounding then stays below that of the fp32 products in the
sums (`measure.statistics.add_outer`), even if a mean is far larger than the deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.derivation.measure.statistics import BlockStatistics, from_triangle, triangle
from edgevit.derivation.solve.attention import Spectra
from edgevit.derivation.solve.factorise import Spectrum
from edgevit.derivation.solve.least_squares import Removal, refit
from edgevit.network.anatomy import Ffn


@dataclass(frozen=True)
class BlockCurves:
    """The statistics and predicted losses of one block."""

    statistics: BlockStatistics
    qk: Spectrum | None  # singular directions of queries with keys, for the task's tokens; None: no attention
    vo: Spectrum | None  # singular directions of values with outputs, for the task's tokens; None: no attention
    # Sensitivities of the block; qk and vo have an entry per direction of the spectra, not per dimension.
    sensitivity: Sensitivity
    removal: Removal | None  # order in which neurons are removed, with the error of each; None: no FFN
    ffn_losses: Tensor  # [e] predicted loss of removing each neuron, in nats, in the order of removal
    block_loss: Tensor  # [1] loss without the whole block, in nats
    site_losses: Tensor  # [2] losses without its attention and without its FFN, in nats; infinite if not measured
    ridge: Tensor  # [1] ridge of the order of removal and of the refit; it draws the refit to the base's columns

    @property
    def spectra(self) -> Spectra | None:
        return None if self.qk is None or self.vo is None else (self.qk, self.vo)

    def refitted(self, ffn: Ffn, width: int) -> Ffn:
        """Return the FFN with `width` neurons and output weights refitted for the base's inputs."""
        hidden = self.statistics.hidden
        assert hidden is not None and self.removal is not None
        neurons, ridge = self.removal.remaining(width), float(self.ridge)
        return refit(ffn, neurons, hidden, self.statistics.mean, "compensate", ridge)


def moment_of(statistics: BlockStatistics) -> Tensor:
    """Return the second moment of the tokens, which forge takes for every block with attention."""
    assert statistics.moment is not None
    return statistics.moment


def root(metric: Tensor) -> Tensor:
    """Compute R with R^T R = metric [d, d], which is singular where norms make the loss blind to a direction."""
    values, vectors = torch.linalg.eigh(metric)
    factor: Tensor = values.clamp_min(0).sqrt().unsqueeze(1) * vectors.mT
    return factor


# -- in the cache ------------------------------------------------------------------------------------------------------

_PARTS = {"statistics": BlockStatistics, "qk": Spectrum, "vo": Spectrum, "sensitivity": Sensitivity, "removal": Removal}
_LOSSES = ("ffn_losses", "block_loss", "site_losses", "ridge")
# The symmetric matrices, each with the name of its mean: a stored tensor, or the last column of a moment of [x 1].
_MATRICES = {
    "statistics.moment": "mean.moment",
    "statistics.query": "mean.query",
    "statistics.hidden": "statistics.mean",
    "sensitivity.metric": None,
}


def packed(curves: Sequence[BlockCurves]) -> dict[str, Tensor]:
    """Return the tensors of all blocks by name."""
    flat: dict[str, Tensor] = {}
    for i, block in enumerate(curves):
        tensors: dict[str, Tensor] = {name: getattr(block, name) for name in _LOSSES}
        for name in _PARTS:
            if (part := getattr(block, name)) is not None:
                tensors |= {f"{name}.{field}": t for field, t in vars(part).items() if t is not None}
        for name, mean in _MATRICES.items():
            if (matrix := tensors.get(name)) is not None:
                tensors[name] = triangle(matrix - _square(tensors, mean, matrix))
        flat |= {f"{i}.{name}": tensor for name, tensor in tensors.items()}
    return flat


def unpacked(flat: Mapping[str, Tensor]) -> list[BlockCurves]:
    """Return the curves from what `packed` returned."""
    blocks: dict[str, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        i, _, name = key.partition(".")
        blocks.setdefault(i, {})[name] = tensor
    return [_block(blocks[str(i)]) for i in range(len(blocks))]


def _block(tensors: dict[str, Tensor]) -> BlockCurves:
    for name, mean in _MATRICES.items():
        if name in tensors:
            matrix = from_triangle(tensors[name])
            tensors[name] = matrix + _square(tensors, mean, matrix)
    parts: dict[str, Any] = {}
    for name, kind in _PARTS.items():
        fields = {key.partition(".")[2]: t for key, t in tensors.items() if key.startswith(f"{name}.")}
        parts[name] = kind(**fields) if fields else None
    parts |= {name: tensors[name] for name in _LOSSES}
    return BlockCurves(**parts)


def _square(tensors: dict[str, Tensor], mean: str | None, matrix: Tensor) -> Tensor:
    """Return m m^T with m the mean in a moment matrix, or 0 without a mean; add m to `tensors` if it is missing."""
    if mean is None:
        return matrix.new_zeros(())
    m = tensors.setdefault(mean, matrix[:, -1])
    return torch.outer(m, m)
