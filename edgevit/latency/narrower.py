"""From a few runs at a narrower embedding to what a site of each size takes there.

The products of a site shrink with the embedding, its kernels stay: at another width a site costs nearly

    a + b * (what it costs at the base's width),     b >= 0,

with one a and one b for attentions and one each for FFNs. These four, what lies outside the blocks and what a block
takes beyond its sites are found by least squares, weighted by how sure the figures are. At last nothing costs more at
a narrower embedding than at a wider one, but for noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from edgevit.derivation.allocate.prices import MOST_SAVED
from edgevit.latency.fit import LEAST, WEAK, FittedCosts, Floats, StackFigure, rounded, solved
from edgevit.latency.stacks import Stack

FIXED, TOGETHER, A_ATTENTION, B_ATTENTION, A_FFN, B_FFN = range(6)


def fit_narrower(base: FittedCosts, seen: Mapping[int, Mapping[Stack, StackFigure]]) -> dict[int, FittedCosts]:
    """What every size of the base's costs takes at each of these widths of the embedding, the widest first.

    Stacks of sizes that the base's costs do not list are passed over.
    """
    found = {embed: _fit(base, _listed(base, figures)) for embed, figures in sorted(seen.items())}
    levelled = _levelled([*found.values(), base]) if found else []
    return dict(reversed([*zip(found, levelled, strict=True)]))


def _listed(base: FittedCosts, figures: Mapping[Stack, StackFigure]) -> dict[Stack, StackFigure]:
    def is_listed(stack: Stack) -> bool:
        return (not stack.heads or (stack.heads, stack.width) in base.attention) and (
            not stack.neurons or stack.neurons in base.ffn
        )

    return {stack: figure for stack, figure in figures.items() if is_listed(stack)}


def _fit(base: FittedCosts, seen: Mapping[Stack, StackFigure]) -> FittedCosts:
    """One width, by itself."""
    usual = float(np.median([figure.value / stack.count for stack, figure in seen.items()]))
    rows, targets = [], []
    for stack, figure in seen.items():
        error = figure.value * figure.error
        rows.append(_row(base, stack) / error)
        targets.append(figure.value / error)
    rows.append(np.eye(6)[TOGETHER] / (WEAK * usual))  # near the base's, where nothing says more of it
    targets.append(base.together / (WEAK * usual))
    found, _ = solved(np.array(rows), np.array(targets), [FIXED, B_ATTENTION, B_FFN])
    attention = {size: max(found[A_ATTENTION] + found[B_ATTENTION] * ms, LEAST) for size, ms in base.attention.items()}
    ffn = {neurons: max(found[A_FFN] + found[B_FFN] * ms, LEAST) for neurons, ms in base.ffn.items()}
    noise = float(np.median([figure.error for figure in seen.values()]))
    return FittedCosts(float(found[FIXED]), float(found[TOGETHER]), attention, ffn, noise, ())


def _row(base: FittedCosts, stack: Stack) -> Floats:
    """The equation of a stack."""
    row = np.zeros(6)
    row[FIXED] = 1
    if stack.heads:
        row[[A_ATTENTION, B_ATTENTION]] = stack.count, stack.count * base.attention[stack.heads, stack.width]
    if stack.neurons:
        row[[A_FFN, B_FFN]] = stack.count, stack.count * base.ffn[stack.neurons]
    row[TOGETHER] = stack.count if stack.heads and stack.neurons else 0
    return row


def _levelled(rungs: Sequence[FittedCosts]) -> list[FittedCosts]:
    """All but the last, which is the base's own: costs that rise with the embedding's width up to the base's."""
    fixed = _risen_to([rung.fixed for rung in rungs])
    attention = {size: _risen_to([rung.attention[size] for rung in rungs]) for size in rungs[-1].attention}
    ffn = {neurons: _risen_to([rung.ffn[neurons] for rung in rungs]) for neurons in rungs[-1].ffn}
    made = []
    for i, rung in enumerate(rungs[:-1]):
        sites = {size: rounded(costs[i]) for size, costs in attention.items()}
        together = rounded(max(rung.together, -MOST_SAVED * min(sites.values())))
        thin = {neurons: rounded(costs[i]) for neurons, costs in ffn.items()}
        made.append(FittedCosts(rounded(fixed[i]), together, sites, thin, rounded(rung.noise, 2), ()))
    return made


def _risen_to(costs: Iterable[float]) -> list[float]:
    """The nearest costs that do not fall, none above the last, which stays.

    As isotonic regression keeps the order of what it is given, costs that rise with size still do.
    """
    from sklearn.isotonic import isotonic_regression

    *narrower, last = costs
    return [*np.minimum(isotonic_regression(np.array(narrower)), last).tolist(), last]
