"""What forge knows of a block of the base before it knows the budget, and how the cache keeps it for every budget.

Second moments are nearly all of it, [e, e] for e neurons. They are symmetric, so one triangle is kept. It is kept in
fp32, less the product of the means, which are kept in fp64: so rounding stays below that of the fp32 products that were
summed up (`measure.statistics.add_outer`), also where a mean is far larger than what varies about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgevit.derivation.measure.sensitivity import Sensitivity
from edgevit.derivation.measure.statistics import BlockStatistics, from_triangle, triangle
from edgevit.derivation.solve.factorise import Spectrum
from edgevit.derivation.solve.least_squares import Removal, refit
from edgevit.network.anatomy import Ffn


@dataclass(frozen=True)
class BlockCurves:
    """What is known of one block."""

    statistics: BlockStatistics
    qk: Spectrum | None  # the singular directions of queries with keys, for the task's tokens; None: no attention
    vo: Spectrum | None  # the same of values with outputs
    felt: Sensitivity  # its qk and vo have an entry for each of these directions, not for each dimension of the base
    # The order in which neurons go, and how much of the FFN's output is lost with each; None: no FFN.
    removal: Removal | None
    ffn_losses: Tensor  # [e] nats, as each neuron goes, the first to go first
    block_loss: Tensor  # [1] nats without the whole block
    site_losses: Tensor  # [2] nats without its attention, and without its FFN; infinite where not measured

    def refitted(self, ffn: Ffn, width: int, ridge: float) -> Ffn:
        """The block's FFN with the neurons that stay, and output weights for what they are given in the base."""
        hidden = self.statistics.hidden
        assert hidden is not None and self.removal is not None
        return refit(ffn, self.removal.remaining(width), hidden, self.statistics.mean, ridge=ridge)


def moment_of(statistics: BlockStatistics) -> Tensor:
    """The second moment of the block's tokens, which forge takes of every block that has an attention."""
    assert statistics.moment is not None
    return statistics.moment


def blind(tokens: int, embed: int, qk: Spectrum | None, vo: Spectrum | None) -> Sensitivity:
    """For `sensitivity=none`: the share of its module's output that each direction carries; tokens weigh alike."""
    of_qk, of_vo = (
        torch.empty(0, 0, dtype=torch.float64) if s is None else (s.values.square() / s.values.square().sum()).cpu()
        for s in (qk, vo)
    )
    alike, metric = torch.ones(tokens, dtype=torch.float64), torch.eye(embed, dtype=torch.float64)
    return Sensitivity(of_qk, of_vo, of_vo.sum(1), attention=alike, ffn=alike.clone(), metric=metric)


def root(metric: Tensor) -> Tensor:
    """Some R with R^T R = metric [d, d], which may be singular: norms leave the loss blind to some directions."""
    values, vectors = torch.linalg.eigh(metric)
    found: Tensor = values.clamp_min(0).sqrt().unsqueeze(1) * vectors.mT
    return found


# -- in the cache ------------------------------------------------------------------------------------------------------

_PARTS = {"statistics": BlockStatistics, "qk": Spectrum, "vo": Spectrum, "felt": Sensitivity, "removal": Removal}
_LOSSES = ("ffn_losses", "block_loss", "site_losses")
# The symmetric matrices, each with the name of its mean: one that is there, or the last column of a moment of [x 1].
_MATRICES = {
    "statistics.moment": "mean.moment",
    "statistics.query": "mean.query",
    "statistics.hidden": "statistics.mean",
    "felt.metric": None,
}


def packed(curves: Sequence[BlockCurves]) -> dict[str, Tensor]:
    """The tensors of all blocks by name."""
    flat: dict[str, Tensor] = {}
    for i, block in enumerate(curves):
        mine: dict[str, Tensor] = {name: getattr(block, name) for name in _LOSSES}
        for part in _PARTS:
            if (held := getattr(block, part)) is not None:
                mine |= {f"{part}.{name}": t for name, t in vars(held).items() if t is not None}
        for name, mean in _MATRICES.items():
            if (matrix := mine.get(name)) is not None:
                mine[name] = triangle(matrix - _square(mine, mean, matrix))
        flat |= {f"{i}.{name}": tensor for name, tensor in mine.items()}
    return flat


def unpacked(flat: Mapping[str, Tensor]) -> list[BlockCurves]:
    """The curves that were packed."""
    blocks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in flat.items():
        i, _, rest = name.partition(".")
        blocks.setdefault(i, {})[rest] = tensor
    return [_block(blocks[str(i)]) for i in range(len(blocks))]


def _block(mine: dict[str, Tensor]) -> BlockCurves:
    for name, mean in _MATRICES.items():
        if name in mine:
            matrix = from_triangle(mine[name])
            mine[name] = matrix + _square(mine, mean, matrix)
    parts: dict[str, Any] = {}
    for name, kind in _PARTS.items():
        held = {key.partition(".")[2]: t for key, t in mine.items() if key.startswith(f"{name}.")}
        parts[name] = kind(**held) if held else None
    parts |= {name: mine[name] for name in _LOSSES}
    return BlockCurves(**parts)


def _square(mine: dict[str, Tensor], mean: str | None, matrix: Tensor) -> Tensor:
    """m m^T of the mean m of a moment matrix, 0 where it has none; `mine` gets m where it lacks it."""
    if mean is None:
        return matrix.new_zeros(())
    m = mine.setdefault(mean, matrix[:, -1])
    return torch.outer(m, m)
