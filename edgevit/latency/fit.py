"""Fit the costs of each size to the runs of stacks.

A figure for each stack comes first: in logarithms, a run is the effect of its stack plus the effect of its session, or
of its process if stacks alternated in it. Both are found by median polish, so that one disturbed run has no effect.
Then all stacks form one system of linear equations, solved by weighted least squares,

    count * (attention[heads, width] + ffn[neurons] + together) + fixed = figure,

with each term only if the stack has it; in a network of stages each has its own, and all have one `fixed`. Sizes that
no stack has, such as a number of heads at a width that others have, are drawn weakly to the line between their
neighbours. Isotonic regression then makes costs rise with every size.

At a narrower embedding, and with fewer tokens, products shrink and kernels stay, so a site costs nearly

    start + slope * (its cost at the base's own embedding, with all tokens),

with one start and one slope for attentions and one each for FFNs. A few stacks at each width and each number of tokens
are enough to fit these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log10

import numpy as np
from numpy.typing import NDArray

from edgevit.derivation.allocate.prices import DECIMALS, MOST_SAVED
from edgevit.latency.stacks import Stack

_Floats = NDArray[np.float64]

_LEAST_ERROR = 0.002  # smallest relative error of a figure: repeated runs do not show how builds and sessions differ
# Relative error of the base's figure, whose ratio to itself is exact: models are judged by their ratio to it.
_BASE_ERROR = 0.0002
_WEAK = 0.3  # assumed deviation of an unmeasured cost from its neighbours' line, as a share of a block's median cost
_TO_DEVIATION = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
_MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean
_POLISHES = 30  # iterations of the median polish
_REGRESSIONS = 50  # iterations over the two axes of a grid, at most
_FREE = 0.05  # share of a whole block's cost: a smaller difference from one size to the next is negligible
_LEAST = 1e-6  # smallest cost of a site, which is above 0
_DIGITS = 5  # significant digits of a cost


@dataclass(frozen=True)
class StackFigure:
    """The measured cost of a stack, in ms or mJ."""

    value: float
    error: float  # relative standard error of the value


@dataclass(frozen=True)
class StackSample:
    """The cost of a stack in one run, in ms or mJ."""

    stack: Stack
    session: str
    value: float


def stack_figures(
    samples: Sequence[StackSample], anchor: Stack, level: float | None = None
) -> dict[Stack, StackFigure]:
    """Return a figure for each stack: its ratio to the anchor, times `level` or the median of the anchor's samples."""
    stacks = list(dict.fromkeys(sample.stack for sample in samples))
    sessions = list(dict.fromkeys(sample.session for sample in samples))
    cells: dict[tuple[int, int], list[float]] = {}
    for sample in samples:
        at = stacks.index(sample.stack), sessions.index(sample.session)
        cells.setdefault(at, []).append(np.log(sample.value))
    table = np.full((len(stacks), len(sessions)), np.nan)
    for at, logarithms in cells.items():
        table[at] = np.median(logarithms)
    base = stacks.index(anchor)
    rows, columns = _polished(table, base)
    residuals = np.abs(table - rows[:, None] - columns[None])[np.isfinite(table)]
    free = np.sort(residuals)[sum(table.shape) - 1 :]  # medians go through as many points as there are effects
    deviation = _TO_DEVIATION * float(np.median(free)) if free.size else 0.0
    base_level = float(np.nanmedian(table[base])) if level is None else np.log(level)
    errors = np.maximum(_MEDIAN_ERROR * deviation / np.sqrt(np.isfinite(table).sum(1)), _LEAST_ERROR)
    errors[base] = _BASE_ERROR
    return {
        s: StackFigure(float(np.exp(rows[i] - rows[base] + base_level)), float(errors[i])) for i, s in enumerate(stacks)
    }


def _polished(table: _Floats, base: int) -> tuple[_Floats, _Floats]:
    """Return the effects of rows and columns by Tukey's median polish; NaN is not measured.

    Columns start from the row `base`: if the other rows have one value each, only that row determines them.
    """
    rows, columns = np.zeros(table.shape[0]), np.where(np.isfinite(table[base]), table[base], np.nanmedian(table[base]))
    for _ in range(_POLISHES):
        rows = np.nanmedian(table - columns[None], axis=1)
        columns = np.nanmedian(table - rows[:, None], axis=0)
        columns -= np.median(columns)
    return rows, columns


@dataclass(frozen=True)
class SizeStep:
    """The difference in cost between two neighbouring sizes."""

    text: str
    is_significant: bool  # whether the difference exceeds its standard error
    error: float  # standard error of the difference, as a share of the cost of a whole block

    @property
    def is_hidden(self) -> bool:
        """Whether noise hides the difference, and the noise is large enough to matter."""
        return not self.is_significant and self.error > _FREE

    @property
    def is_free(self) -> bool:
        """Whether the difference is certainly negligible."""
        return not self.is_significant and not self.is_hidden


@dataclass(frozen=True)
class FittedCosts:
    """Fitted costs of one stage at one embedding, in ms or mJ."""

    fixed: float  # cost of everything outside the blocks of all stages
    together: float  # cost of a block with both sites beyond the sum of its sites
    attention: dict[tuple[int, int], float]  # cost of an attention by heads and width, a full grid
    ffn: dict[int, float]  # cost of an FFN by neurons
    noise: float  # median of the figures' relative standard errors
    steps: tuple[SizeStep, ...] = ()  # differences between neighbouring sizes

    def has(self, stack: Stack) -> bool:
        """Whether the sizes of a stack are fitted."""
        attention, ffn = (stack.heads, stack.width), stack.neurons
        return (not stack.heads or attention in self.attention) and (not ffn or ffn in self.ffn)

    def of_blocks(self, row: Stack) -> float:
        """Return the cost of equal blocks of fitted sizes."""
        attention = self.attention[row.heads, row.width] if row.heads else 0.0
        ffn = self.ffn[row.neurons] if row.neurons else 0.0
        both = self.together if row.heads and row.neurons else 0.0
        return row.count * (attention + ffn + both)


def predicted_cost(costs: Mapping[int, FittedCosts], stack: Stack) -> float:
    """Return the cost of a stack of fitted sizes by the costs of each stage."""
    return costs[stack.stage].fixed + sum(costs[row.stage].of_blocks(row) for row in stack.rows)


@dataclass(frozen=True)
class _Columns:
    """The columns of the unknowns of a stage: together, the grid of attentions, the FFNs. Column 0 is fixed."""

    heads: list[int]
    widths: list[int]
    neurons: list[int]
    first: int

    @classmethod
    def of(cls, rows: Collection[Stack], first: int) -> _Columns:
        heads, widths, neurons = (
            sorted({getattr(row, name) for row in rows if getattr(row, name)}) for name in ("heads", "width", "neurons")
        )
        return cls(heads, widths, neurons, first)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.heads), len(self.widths)

    @property
    def end(self) -> int:
        """The first column after these."""
        return self.ffn(len(self.neurons))

    def attention(self, i: int, j: int) -> int:
        return self.first + 1 + i * len(self.widths) + j

    def ffn(self, i: int) -> int:
        return self.first + 1 + len(self.heads) * len(self.widths) + i

    def add(self, row: Stack, equation: _Floats) -> None:
        """Add equal blocks to the equation of a stack."""
        if row.heads:
            equation[self.attention(self.heads.index(row.heads), self.widths.index(row.width))] = row.count
        if row.neurons:
            equation[self.ffn(self.neurons.index(row.neurons))] = row.count
        equation[self.first] = row.count if row.heads and row.neurons else 0

    def lines(self) -> Iterator[tuple[list[int], list[int], str]]:
        """Yield every line of the grid: the sizes along it, the columns of their costs, and the name of the axis."""
        h, w = self.shape
        for i, heads in enumerate(self.heads):
            yield self.widths, [self.attention(i, j) for j in range(w)], f"width of {heads} heads"
        for j, width in enumerate(self.widths):
            yield self.heads, [self.attention(i, j) for i in range(h)], f"heads of width {width}"
        yield self.neurons, [self.ffn(i) for i in range(len(self.neurons))], "neurons"

    def straight(self, count: int) -> Iterator[_Floats]:
        """Yield the equations, of so many unknowns, that an attention lies on the line between its neighbours."""
        for sizes, at, axis in self.lines():
            for (a, b, c), (i, j, k) in zip(_threes(sizes), _threes(at), strict=True):
                if axis != "neurons":  # every FFN is measured
                    row = np.zeros(count)
                    row[i], row[j], row[k] = (b - a) / (c - a) - 1, 1, (a - b) / (c - a)
                    yield row


def _threes(values: list[int]) -> Iterator[tuple[int, int, int]]:
    return zip(values, values[1:], values[2:], strict=False)


def fit_costs(figures: Mapping[Stack, StackFigure]) -> dict[int, FittedCosts]:
    """Fit the costs of each stage at the base's own embedding, with all tokens."""
    rows = [row for stack in figures for row in stack.rows]
    columns, count = dict[int, _Columns](), 1
    for stage in sorted({row.stage for row in rows}):
        columns[stage] = _Columns.of([row for row in rows if row.stage == stage], count)
        count = columns[stage].end
    equations = list[tuple[_Floats, float, float]]()
    for stack, figure in figures.items():
        equation = np.zeros(count)
        equation[0] = 1
        for row in stack.rows:
            columns[row.stage].add(row, equation)
        equations.append((equation, figure.value, figure.value * figure.error))
    for stage, of_stage in columns.items():
        usual = _per_block(
            {stack: figure for stack, figure in figures.items() if {r.stage for r in stack.rows} == {stage}}
        )
        equations += [(row, 0.0, _WEAK * usual) for row in of_stage.straight(count)]
    solution, covariance = _solved(equations, [0])
    noise = rounded(_noise(figures), 2)
    costs = dict[int, FittedCosts]()
    for stage, of_stage in columns.items():
        stage_text = f" in stage {stage}" if len(columns) > 1 else ""
        steps = tuple(_steps(of_stage, solution, covariance, stage_text))
        costs[stage] = replace(_costs_of(of_stage, solution), noise=noise, steps=steps)
    return costs


def _costs_of(columns: _Columns, solution: _Floats) -> FittedCosts:
    """Return the costs of a stage that a solution means, made to rise."""
    grid: _Floats = _risen(solution[columns.first + 1 : columns.ffn(0)].reshape(columns.shape))
    ffn = _risen(solution[columns.ffn(0) : columns.end][None])[0]
    sizes = [(h, w) for h in columns.heads for w in columns.widths]
    return FittedCosts(
        rounded(solution[0]),
        rounded(max(solution[columns.first], -MOST_SAVED * float(grid.min()))),
        {size: rounded(cost) for size, cost in zip(sizes, grid.ravel(), strict=True)},
        {neurons: rounded(cost) for neurons, cost in zip(columns.neurons, ffn, strict=True)},
        noise=0.0,
    )


def _per_block(figures: Mapping[Stack, StackFigure]) -> float:
    return float(np.median([figure.value / stack.count for stack, figure in figures.items()]))


def _noise(figures: Mapping[Stack, StackFigure]) -> float:
    return float(np.median([figure.error for figure in figures.values()]))


def _solved(equations: Sequence[tuple[_Floats, float, float]], positive: Iterable[int]) -> tuple[_Floats, _Floats]:
    """Solve equations of row, target and standard error by least squares; return the solution and its covariance.

    The unknowns of the columns `positive` are kept at 0 or above.
    """
    rows = np.array([row / error for row, _, error in equations])
    targets = np.array([target / error for _, target, error in equations])
    solution = np.linalg.lstsq(rows, targets, rcond=None)[0]
    while below := [i for i in positive if solution[i] < 0]:
        rows[:, below] = 0  # lstsq returns the smallest of all solutions, which is 0 in a column of zeros
        solution = np.linalg.lstsq(rows, targets, rcond=None)[0]
        solution[below] = 0
    covariance: _Floats = np.asarray(np.linalg.pinv(rows.T @ rows), np.float64)
    return np.asarray(solution, np.float64), covariance


def _steps(columns: _Columns, solution: _Floats, covariance: _Floats, stage_text: str) -> Iterator[SizeStep]:
    """Yield the steps between neighbouring sizes, relative to a whole block of the largest sizes."""
    h, w = columns.shape
    block = solution[[columns.attention(h - 1, w - 1), columns.end - 1, columns.first]].sum()
    for sizes, at, axis in columns.lines():
        for a, b, i, j in zip(sizes, sizes[1:], at, at[1:], strict=False):
            error = float(np.sqrt(max(covariance[i, i] + covariance[j, j] - 2 * covariance[i, j], 0.0)))
            share = error / block if block > 0 else np.inf
            yield SizeStep(
                f"{a} to {b} {axis}{stage_text}", bool(abs(solution[j] - solution[i]) >= error), float(share)
            )


def _risen(grid: _Floats) -> _Floats:
    """Return the nearest grid that falls along neither axis, above 0: isotonic regressions in turn (Dykstra)."""
    from sklearn.isotonic import isotonic_regression

    risen: _Floats = grid
    corrections = [np.zeros_like(grid), np.zeros_like(grid)]
    for _ in range(_REGRESSIONS):
        before = risen
        for axis in (0, 1):
            target = risen + corrections[axis]
            risen = np.apply_along_axis(isotonic_regression, axis, target)
            corrections[axis] = target - risen
        if np.allclose(risen, before, rtol=1e-6, atol=0):
            break
    # What still falls is as small as rounding.
    risen = np.maximum(np.maximum.accumulate(np.maximum.accumulate(risen, 0), 1), _LEAST)
    return risen


def rounded(value: float, digits: int = _DIGITS) -> float:
    """Round to so many significant digits."""
    return 0.0 if value == 0 else round(float(value), digits - ceil(log10(abs(value))))


# -- narrower embeddings and fewer tokens ------------------------------------------------------------------------------

# Columns of the unknowns. What is `fixed` at a narrower embedding is the cost of the cut with fewer tokens.
FIXED, TOGETHER, START_ATTENTION, SLOPE_ATTENTION, START_FFN, SLOPE_FFN = range(6)


@dataclass(frozen=True)
class Line:
    """The cost of a site as a line over its cost at the base's own embedding, with all tokens."""

    start: float
    slope: float

    def at(self, cost: float) -> float:
        return self.start + self.slope * cost


@dataclass(frozen=True)
class FewerTokens:
    """Costs of blocks that get fewer tokens."""

    tokens: int
    cut: float  # cost of ranking and gathering tokens in a block that passes on this number of them
    attention: Line
    ffn: Line

    def costs(self, all_tokens: FittedCosts, more_tokens: FittedCosts) -> FittedCosts:
        """Return the costs with these tokens, none above the same cost with more tokens."""
        attention, ffn = all_tokens.attention, all_tokens.ffn
        return replace(
            all_tokens,
            attention={s: _decimal(min(c, self.attention.at(attention[s]))) for s, c in more_tokens.attention.items()},
            ffn={n: _decimal(min(c, self.ffn.at(ffn[n]))) for n, c in more_tokens.ffn.items()},
        )


def _decimal(cost: float) -> float:
    return float(max(round(cost, DECIMALS), 10**-DECIMALS))


@dataclass(frozen=True)
class FittedTable:
    """All costs of a stage, in ms or mJ."""

    base: FittedCosts  # costs at the base's own embedding, with all tokens
    narrower: dict[int, FittedCosts]  # costs with all tokens by width of the embedding, the widest first
    fewer: list[FewerTokens]  # costs at each smaller number of tokens, the most tokens first

    def costs(self) -> Iterator[tuple[int | None, int | None, FittedCosts]]:
        """Yield the costs at each width and number of tokens; None: the base's own."""
        for embed, all_tokens in [(None, self.base), *self.narrower.items()]:
            costs = all_tokens
            yield embed, None, costs
            for fewer in self.fewer:
                costs = fewer.costs(all_tokens, costs)
                yield embed, fewer.tokens, costs


def fit_table(figures: Mapping[Stack, StackFigure]) -> dict[int, FittedTable]:
    """Fit costs at the base's own embedding with all tokens, and from these at narrower ones and with fewer tokens.

    Only a network of one stage has these.
    """
    by_width: dict[int, dict[Stack, StackFigure]] = {}
    by_count: dict[int, dict[Stack, StackFigure]] = {}
    for stack, figure in figures.items():
        if stack.cut is not None:
            by_count.setdefault(stack.cut.tokens, {})[stack] = figure
        elif stack.embed is not None:
            by_width.setdefault(stack.embed, {})[stack] = figure
    whole = fit_costs({stack: figure for stack, figure in figures.items() if stack.embed is None and stack.cut is None})
    return {
        stage: FittedTable(costs, fit_narrower(costs, by_width), fit_fewer(costs, by_count))
        for stage, costs in whole.items()
    }


def fit_narrower(base: FittedCosts, figures: Mapping[int, Mapping[Stack, StackFigure]]) -> dict[int, FittedCosts]:
    """Fit the costs at each of these widths of the embedding, the widest first; none exceeds that of a wider one.

    Stacks of sizes that the base's costs do not have are ignored.
    """
    fitted = {embed: _fit_embedding(base, of_width) for embed, of_width in sorted(figures.items())}
    risen = _risen_with_width([*fitted.values(), base]) if fitted else []
    return dict(reversed([*zip(fitted, risen, strict=True)]))


def _fit_embedding(base: FittedCosts, figures: Mapping[Stack, StackFigure]) -> FittedCosts:
    figures = {stack: figure for stack, figure in figures.items() if base.has(stack)}
    equations = [(_line_row(base, s), figure.value, figure.value * figure.error) for s, figure in figures.items()]
    near_base = np.eye(6)[TOGETHER], base.together, _WEAK * _per_block(figures)  # unless stacks say otherwise
    solution, _ = _solved([*equations, near_base], [FIXED, SLOPE_ATTENTION, SLOPE_FFN])
    attention, ffn = Line(*solution[[START_ATTENTION, SLOPE_ATTENTION]]), Line(*solution[[START_FFN, SLOPE_FFN]])
    return FittedCosts(
        float(solution[FIXED]),
        float(solution[TOGETHER]),
        {size: max(attention.at(cost), _LEAST) for size, cost in base.attention.items()},
        {neurons: max(ffn.at(cost), _LEAST) for neurons, cost in base.ffn.items()},
        _noise(figures),
    )


def fit_fewer(base: FittedCosts, figures: Mapping[int, Mapping[Stack, StackFigure]]) -> list[FewerTokens]:
    """Fit the costs with each of these numbers of tokens, the most first; no start, slope or cut is below 0."""
    return [_fit_tokens(base, tokens, of_count) for tokens, of_count in sorted(figures.items(), reverse=True)]


def _fit_tokens(base: FittedCosts, tokens: int, figures: Mapping[Stack, StackFigure]) -> FewerTokens:
    equations = []
    for stack, figure in figures.items():
        assert stack.cut is not None
        before = base.fixed + base.attention[stack.cut.heads, stack.cut.width]
        equations.append((_line_row(base, stack), figure.value - before, figure.value * figure.error))
    solution, _ = _solved(equations, range(6))
    attention = Line(rounded(solution[START_ATTENTION]), rounded(max(solution[SLOPE_ATTENTION], _LEAST)))
    ffn = Line(rounded(solution[START_FFN]), rounded(max(solution[SLOPE_FFN], _LEAST)))
    return FewerTokens(tokens, rounded(solution[FIXED]), attention, ffn)


def _line_row(base: FittedCosts, stack: Stack) -> _Floats:
    """Return the equation of a stack."""
    row = np.zeros(6)
    row[FIXED] = 1
    if stack.count and stack.heads:
        row[[START_ATTENTION, SLOPE_ATTENTION]] = stack.count, stack.count * base.attention[stack.heads, stack.width]
    if stack.count and stack.neurons:
        row[[START_FFN, SLOPE_FFN]] = stack.count, stack.count * base.ffn[stack.neurons]
    row[TOGETHER] = stack.count if stack.heads and stack.neurons else 0
    return row


def _risen_with_width(costs: Sequence[FittedCosts]) -> list[FittedCosts]:
    """Make costs rise with the embedding's width up to the base's own costs, which are the last and not returned."""
    fixed = _risen_to_last([fitted.fixed for fitted in costs])
    attention = {size: _risen_to_last([fitted.attention[size] for fitted in costs]) for size in costs[-1].attention}
    ffn = {neurons: _risen_to_last([fitted.ffn[neurons] for fitted in costs]) for neurons in costs[-1].ffn}
    risen = []
    for i, fitted in enumerate(costs[:-1]):
        sites = {size: rounded(rising[i]) for size, rising in attention.items()}
        together = rounded(max(fitted.together, -MOST_SAVED * min(sites.values())))
        ffns = {neurons: rounded(rising[i]) for neurons, rising in ffn.items()}
        risen.append(FittedCosts(rounded(fixed[i]), together, sites, ffns, rounded(fitted.noise, 2)))
    return risen


def _risen_to_last(costs: Sequence[float]) -> list[float]:
    """Return the nearest costs that do not fall, none above the last, which stays.

    Isotonic regression keeps the order of its input, so costs still rise with size.
    """
    from sklearn.isotonic import isotonic_regression

    *narrower, last = costs
    return [*np.minimum(isotonic_regression(np.array(narrower)), last).tolist(), last]
