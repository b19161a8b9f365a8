"""From runs of stacks to what a site of each size takes.

Two steps. First a figure for each stack: in logarithms, a run is what its stack takes plus how slow the machine was in
that session, or in that process if stacks alternated in it; both are found by medians in turn, so that a run that
something disturbed does not count for more than one. Then one system of linear equations for all stacks at once, in
least squares,

    count * (attention[heads, width] + ffn[neurons] + both) + fixed = figure,

each term where the stack has it, weighted by how sure the figure is. What no stack has, such as a number of heads at a
width that others have, is drawn weakly to the line between its neighbours. At last costs are made to rise with size by
isotonic regression: more of something takes no less, but for noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10

import numpy as np
from numpy.typing import NDArray

from edgevit.derivation.allocate.prices import MOST_SAVED
from edgevit.latency.stacks import Stack

Floats = NDArray[np.float64]

LEAST_ERROR = 0.002  # of a figure: how builds and sessions differ does not show in repeated runs
OF_ITSELF = 0.0002  # of the base's, whose ratio to itself is exact: models are judged by what a table says of it
WEAK = 0.3  # of a usual cost: how far what was not measured may be from the line between its neighbours
TO_DEVIATION = 1.4826  # of a normal distribution, times the median of the absolute deviations
MEDIAN = 1.2533  # standard error of a median over that of a mean
TURNS = 50  # iterations over the two axes, at the most
FREE = 0.05  # of what a whole block takes: less from one size to the next is next to nothing
LEAST = 1e-6  # of a cost, which is above 0
DIGITS = 5  # of what is written


@dataclass(frozen=True)
class StackFigure:
    """What a stack takes, in ms or mJ."""

    value: float
    error: float  # relative standard error


@dataclass(frozen=True)
class StackSample:
    """What one run of a stack took, in ms or mJ."""

    stack: Stack
    session: str
    value: float


def stack_figures(
    samples: Sequence[StackSample], anchor: Stack, level: float | None = None
) -> dict[Stack, StackFigure]:
    """A figure for each stack: its ratio to the anchor, times `level` or, left out, the median of the anchor's own."""
    stacks = list(dict.fromkeys(sample.stack for sample in samples))
    sessions = list(dict.fromkeys(sample.session for sample in samples))
    cells: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        at = stacks.index(sample.stack), sessions.index(sample.session)
        cells.setdefault(at, []).append(np.log(sample.value))
    table = np.full((len(stacks), len(sessions)), np.nan)
    for at, seen in cells.items():
        table[at] = np.median(seen)
    base = stacks.index(anchor)
    rows, columns = _polished(table, base)
    left = np.abs(table - rows[:, None] - columns[None])[np.isfinite(table)]
    free = np.sort(left)[sum(table.shape) - 1 :]  # medians go through as many points as there are effects to find
    deviation = TO_DEVIATION * float(np.median(free)) if free.size else 0.0
    own = float(np.nanmedian(table[base])) if level is None else np.log(level)
    errors = np.maximum(MEDIAN * deviation / np.sqrt(np.isfinite(table).sum(1)), LEAST_ERROR)
    errors[base] = OF_ITSELF
    return {s: StackFigure(float(np.exp(rows[i] - rows[base] + own)), float(errors[i])) for i, s in enumerate(stacks)}


def _polished(table: Floats, base: int) -> tuple[Floats, Floats]:
    """Effects of rows and columns by Tukey's median polish; NaN is what was not measured.

    It begins with what the row `base` says of the columns: where the others have one value each, nothing else does.
    """
    rows, columns = np.zeros(table.shape[0]), np.where(np.isfinite(table[base]), table[base], np.nanmedian(table[base]))
    for _ in range(30):
        rows = np.nanmedian(table - columns[None], axis=1)
        columns = np.nanmedian(table - rows[:, None], axis=0)
        columns -= np.median(columns)
    return rows, columns


@dataclass(frozen=True)
class SizeStep:
    """From one size to the next."""

    told: str
    is_seen: bool  # it takes more than its standard error
    error: float  # that error, as a share of what a whole block takes

    @property
    def is_hidden(self) -> bool:
        """Whether noise hides what it takes; if it takes nothing that counts, whatever noise there is, it does not."""
        return not self.is_seen and self.error > FREE

    @property
    def is_free(self) -> bool:
        """Whether it is certain that it takes next to nothing."""
        return not self.is_seen and not self.is_hidden


@dataclass(frozen=True)
class FittedCosts:
    """The costs that a fit found, in ms or mJ."""

    fixed: float
    together: float  # of a block with both sites, beyond their sum
    attention: dict[tuple[int, int], float]  # by heads and width: a full grid
    ffn: dict[int, float]  # by neurons
    noise: float  # median of the figures' relative standard errors
    steps: tuple[SizeStep, ...]  # from each size to the next

    def predicted(self, stack: Stack) -> float:
        """What these say of a stack of sizes that are listed."""
        attention = self.attention[stack.heads, stack.width] if stack.heads else 0.0
        ffn = self.ffn[stack.neurons] if stack.neurons else 0.0
        both = self.together if stack.heads and stack.neurons else 0.0
        return self.fixed + stack.count * (attention + ffn + both)


@dataclass(frozen=True)
class _Columns:
    """Which unknown is where: fixed, together, the grid of attentions, the FFNs."""

    heads: list[int]
    widths: list[int]
    neurons: list[int]

    @classmethod
    def of(cls, stacks: Iterable[Stack]) -> _Columns:
        names = ("heads", "width", "neurons")
        return cls(*(sorted({getattr(s, name) for s in stacks if getattr(s, name)}) for name in names))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.heads), len(self.widths)

    @property
    def count(self) -> int:
        return 2 + len(self.heads) * len(self.widths) + len(self.neurons)

    def attention(self, i: int, j: int) -> int:
        return 2 + i * len(self.widths) + j

    def ffn(self, i: int) -> int:
        return 2 + len(self.heads) * len(self.widths) + i

    def row(self, stack: Stack) -> Floats:
        """The equation of a stack."""
        row = np.zeros(self.count)
        row[0] = 1
        if stack.heads:
            row[self.attention(self.heads.index(stack.heads), self.widths.index(stack.width))] = stack.count
        if stack.neurons:
            row[self.ffn(self.neurons.index(stack.neurons))] = stack.count
        row[1] = stack.count if stack.heads and stack.neurons else 0
        return row

    def lines(self) -> Iterator[tuple[list[int], list[int], str]]:
        """Every line of the grid: the sizes along it, the columns of their costs, and the name of the axis."""
        h, w = self.shape
        for i, heads in enumerate(self.heads):
            yield self.widths, [self.attention(i, j) for j in range(w)], f"width of {heads} heads"
        for j, width in enumerate(self.widths):
            yield self.heads, [self.attention(i, j) for i in range(h)], f"heads of width {width}"
        yield self.neurons, [self.ffn(i) for i in range(len(self.neurons))], "neurons"

    def straight(self) -> Iterator[Floats]:
        """The equations that an attention lies on the line between its neighbours."""
        for sizes, at, what in self.lines():
            for (a, b, c), (i, j, k) in zip(_threes(sizes), _threes(at), strict=True):
                if what != "neurons":  # of which every one is measured
                    row = np.zeros(self.count)
                    row[i], row[j], row[k] = (b - a) / (c - a) - 1, 1, (a - b) / (c - a)
                    yield row


def _threes(values: list[int]) -> Iterator[tuple[int, int, int]]:
    return zip(values, values[1:], values[2:], strict=False)


def fit_costs(seen: Mapping[Stack, StackFigure]) -> FittedCosts:
    """Solve for what each site takes."""
    columns = _Columns.of(seen)
    usual = float(np.median([figure.value / stack.count for stack, figure in seen.items()]))
    sure = [(columns.row(stack), figure.value, figure.value * figure.error) for stack, figure in seen.items()]
    weak = [(row, 0.0, WEAK * usual) for row in columns.straight()]
    rows = np.array([row / error for row, _, error in (*sure, *weak)])
    found, covariance = solved(rows, np.array([value / error for _, value, error in (*sure, *weak)]), [0])
    grid: Floats = _risen(found[2 : columns.ffn(0)].reshape(columns.shape))
    ffn = _risen(found[columns.ffn(0) :][None])[0]
    sizes = [(h, w) for h in columns.heads for w in columns.widths]
    return FittedCosts(
        rounded(found[0]),
        rounded(max(found[1], -MOST_SAVED * float(grid.min()))),
        {size: rounded(cost) for size, cost in zip(sizes, grid.ravel(), strict=True)},
        {neurons: rounded(cost) for neurons, cost in zip(columns.neurons, ffn, strict=True)},
        rounded(float(np.median([figure.error for figure in seen.values()])), 2),
        tuple(_steps(columns, found, covariance)),
    )


def solved(rows: Floats, targets: Floats, positive: Sequence[int]) -> tuple[Floats, Floats]:
    """Solve by least squares, with covariance; the unknowns of the columns `positive` are kept at 0 or above."""
    rows = rows.copy()
    found = np.linalg.lstsq(rows, targets, rcond=None)[0]
    while below := [i for i in positive if found[i] < 0]:
        rows[:, below] = 0  # lstsq gives the smallest of all solutions, which is 0 in a column of zeros
        found = np.linalg.lstsq(rows, targets, rcond=None)[0]
        found[below] = 0
    covariance: Floats = np.asarray(np.linalg.pinv(rows.T @ rows), np.float64)
    return np.asarray(found, np.float64), covariance


def _steps(columns: _Columns, found: Floats, covariance: Floats) -> Iterator[SizeStep]:
    """Every step from one size to the next; a whole block is one of the largest sizes."""
    h, w = columns.shape
    block = found[columns.attention(h - 1, w - 1)] + found[-1] + found[1]
    for sizes, at, what in columns.lines():
        for a, b, i, j in zip(sizes, sizes[1:], at, at[1:], strict=False):
            error = float(np.sqrt(max(covariance[i, i] + covariance[j, j] - 2 * covariance[i, j], 0.0)))
            share = error / block if block > 0 else np.inf
            yield SizeStep(f"{a} to {b} {what}", bool(abs(found[j] - found[i]) >= error), float(share))


def _risen(grid: Floats) -> Floats:
    """The nearest grid that falls along neither axis, by isotonic regressions in turn (Dykstra); above 0."""
    from sklearn.isotonic import isotonic_regression

    found: Floats = grid
    owed = [np.zeros_like(grid), np.zeros_like(grid)]
    for _ in range(TURNS):
        before = found
        for axis in (0, 1):
            asked = found + owed[axis]
            found = np.apply_along_axis(isotonic_regression, axis, asked)
            owed[axis] = asked - found
        if np.allclose(found, before, rtol=1e-6, atol=0):
            break
    # What still falls is as small as rounding.
    risen: Floats = np.maximum(np.maximum.accumulate(np.maximum.accumulate(found, 0), 1), LEAST)
    return risen


def rounded(value: float, digits: int = DIGITS) -> float:
    """Round to so many significant digits."""
    return 0.0 if value == 0 else round(float(value), digits - ceil(log10(abs(value))))
