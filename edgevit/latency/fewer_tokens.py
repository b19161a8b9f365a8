"""From a few runs of blocks that are given fewer tokens to what a site of each size takes there.

A stack behind a block that passes on n tokens takes

    (what the base's costs say of that block alone) + cut + count * (start + slope * (a site's cost with all tokens)),

with one start and one slope for attentions and one each for FFNs, none less than nothing: `allocate.tokens` says why.
These five are found by least squares, weighted by how sure the figures are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgevit.derivation.allocate.tokens import Law, TokenPrices
from edgevit.latency.fit import LEAST, FittedCosts, Floats, StackFigure, rounded, solved
from edgevit.latency.stacks import Stack

CUT, START_ATTENTION, SLOPE_ATTENTION, START_FFN, SLOPE_FFN = range(5)


def fit_fewer(base: FittedCosts, seen: Mapping[int, Mapping[Stack, StackFigure]]) -> list[TokenPrices]:
    """What blocks take that are given each of these numbers of tokens, the most first."""
    return [_fit(base, tokens, figures) for tokens, figures in sorted(seen.items(), reverse=True)]


def _fit(base: FittedCosts, tokens: int, seen: Mapping[Stack, StackFigure]) -> TokenPrices:
    rows, targets = [], []
    for stack, figure in seen.items():
        assert stack.cut is not None
        before = base.fixed + base.attention[stack.cut.heads, stack.cut.width]
        error = figure.value * figure.error
        rows.append(_row(base, stack) / error)
        targets.append((figure.value - before) / error)
    found, _ = solved(np.array(rows), np.array(targets), range(5))
    attention = Law(rounded(found[START_ATTENTION]), rounded(max(found[SLOPE_ATTENTION], LEAST)))
    ffn = Law(rounded(found[START_FFN]), rounded(max(found[SLOPE_FFN], LEAST)))
    return TokenPrices(tokens, rounded(found[CUT]), attention, ffn)


def _row(base: FittedCosts, stack: Stack) -> Floats:
    """The equation of a stack, which has one site or none."""
    row = np.zeros(5)
    row[CUT] = 1
    if stack.count and stack.heads:
        row[[START_ATTENTION, SLOPE_ATTENTION]] = stack.count, stack.count * base.attention[stack.heads, stack.width]
    if stack.count and stack.neurons:
        row[[START_FFN, SLOPE_FFN]] = stack.count, stack.count * base.ffn[stack.neurons]
    return row
