"""Fewer tokens: how many there may be, and what a site takes that is given so many.

With fewer tokens the products of a site shrink and its kernels stay, so at n tokens it takes nearly

    start + slope * (what it takes with all of them),     start, slope >= 0,

with one start and one slope for attentions and one each for FFNs. In MACs that is exact at one width of the embedding:
projections and FFNs fall with n, scores with its square, and both grow with heads x width alike. Between two numbers of
tokens that are listed costs are interpolated, and nothing takes more than it does with more tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgevit.network.cost import Geometry

Between = Literal["above", "linear"]
TILES = ((128, 64), (32, 16), (0, 8))  # from so many tokens on, the multiple that a matrix unit takes at once


def tile_counts(geometry: Geometry) -> list[int]:
    """The numbers of tokens below a network's own that fill tiles, rising; of those that may leave one stays."""
    tile = next(tile for least, tile in TILES if geometry.tokens >= least)
    return [n for n in range(tile, geometry.tokens, tile) if n > geometry.tokens - geometry.patches]


@dataclass(frozen=True)
class Law:
    """What a site takes that is given fewer tokens, from what it takes with all of them."""

    start: float
    slope: float


@dataclass(frozen=True)
class TokenPrices:
    """What is listed of one number of tokens."""

    tokens: int
    cut: float  # what a block takes more that passes on so many: tokens are ranked and gathered
    attention: Law
    ffn: Law


def of_fewer(
    costs: NDArray[np.float64], laws: Sequence[tuple[int, Law]], whole: int, tokens: int, between: Between
) -> NDArray[np.float64]:
    """What sites take that are given so many tokens, from what each takes with all of them.

    Args:
        costs: with all tokens [n].
        laws: by number of tokens, the most first.
        whole: the number of all tokens.
    """
    levels = [costs]
    for _, law in laws:
        levels.append(np.minimum(levels[-1], law.start + law.slope * costs))
    counts = [whole, *(count for count, _ in laws)]
    below = next((i for i, count in enumerate(counts) if count <= tokens), len(counts) - 1)
    if counts[below] == tokens or below == 0 or tokens < counts[-1]:
        return levels[below]
    if between == "above":
        return levels[below - 1]
    share = (tokens - counts[below]) / (counts[below - 1] - counts[below])
    return np.asarray(levels[below] + share * (levels[below - 1] - levels[below]), np.float64)
