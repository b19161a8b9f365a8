"""The numbers of tokens that blocks may get."""

from __future__ import annotations

from edgevit.network.cost import Geometry

# Pairs of a least number of tokens, and the multiple that a matrix unit takes at once from it on.
_TILES = ((128, 64), (32, 16), (0, 8))


def tile_counts(geometry: Geometry) -> list[int]:
    """List the numbers of tokens below a network's own that fill tiles, rising; at least one patch stays."""
    tile = next(tile for least, tile in _TILES if geometry.tokens >= least)
    return [n for n in range(tile, geometry.tokens, tile) if n > geometry.tokens - geometry.patches]
