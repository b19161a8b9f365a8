"""How sure the ratio of two measurements is: 95 % intervals, from the spread that the measurements themselves show.

One run on each side. Inferences in a row are alike, as heat, clocks and other programs change more slowly: 1000 of
them say less than 1000 independent ones. So whole blocks are resampled (circular block bootstrap). The length of a
block follows from the samples (Politis and White 2004, corrected by Patton, Politis and White 2009). The interval
does not include the difference between processes.

Several runs on a side. The difference between processes is often the larger one, and more inferences do not show it. A
run is then one observation, and runs are resampled. As there are few, their relative deviations from the mean of their
side are pooled over both sides. (Resampling runs within each side, and blocks within runs, covers the truth 66, 79 and
85 times of 100 with 2, 3 and 5 runs on each side.)

Runs in turns. The runs of one round of one session were measured under equal load and heat. A round's ratio is then one
observation, and the ratio is the median of the rounds. The interval's ends are interpolated between two neighbouring
order statistics: one gives too narrow an interval, the other too wide a one (Hettmansperger and Sheather 1986). For six
distributions from uniform to heavy-tailed it covers the truth 94 to 96 times of 100 with 6 to 30 rounds; resampling
rounds covers it 86 to 95 times. Where models alternated in one process, a round's ratio of p50s is the median of the
ratios of neighbouring visits: if the machine was slow for half of the round, the p50 of a whole round may be anywhere
between slow and fast.

In the first two cases the spread is estimated from few independent pieces. So the deviations are divided by the root of
a drawn chi-square over its degrees of freedom, one less than the pieces, which turns a normal distribution into
Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from edgevit.agent.doubts import P99_SAMPLES
from edgevit.agent.records import Run

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[Any]

_CONFIDENCE = 0.95
_RESAMPLES = 1000
LEAST_ROUNDS = 6  # the median lies outside the least and the greatest of 6 less than 5 times of 100
_CHUNK = 1_000_000  # values resampled at once
# Blocks that give a variance of least error are short for an interval: of 200 to 1000 samples of an AR(1) series at
# 0.8 to 0.95 they cover the truth 89 to 96 times of 100, and blocks of twice the length 92 to 97 times.
_LONGER = 2
_LEAST_SAMPLES = 20  # fewer show too little of how they depend on each other

# Figures that are compared, all above 0.
_FIGURES: dict[str, Callable[[Run], float | None]] = {
    "p50": lambda run: run.latency_ms,
    "p99": lambda run: run.p99_ns() / 1e6,
    "mean": lambda run: run.mean_ns() / 1e6,
    "throughput": Run.images_per_second,
    "energy": Run.energy_per_image_mj,
}


# Runs in turns are also compared by processor time, which does not grow while an inference waits for other programs. It
# is no latency, but on one thread of a processor the ratio of two models is the same.
_IN_TURNS = {**_FIGURES, "processor": Run.processor_ms}


@dataclass(frozen=True)
class Ratio:
    """One figure of `after` over that of `before`; of several runs, the geometric mean; of rounds, the median."""

    figure: str  # key of _IN_TURNS
    before: float
    after: float
    ratio: float  # the ratio; of rounds, the median of their ratios, which need not be the ratio of the medians
    low: float | None  # lower end of the 95 % interval; None: too few samples or rounds for one
    high: float | None
    # Number of successive inferences resampled together, before and after; None: no interval, or runs were resampled.
    blocks: tuple[int, int] | None = None
    rounds: int | None = None  # number of rounds in which both were measured; None: not measured in turns


@dataclass(frozen=True)
class Side:
    """The runs of one model with their figures, computed once for all comparisons of the model."""

    runs: Sequence[Run]

    @cached_property
    def figures(self) -> dict[str, Floats]:
        """Each of _IN_TURNS of every run: [runs]; 0 where a run lacks it."""
        import numpy as np

        return {name: np.array([read(run) or 0 for run in self.runs], dtype=float) for name, read in _IN_TURNS.items()}

    @cached_property
    def rounds(self) -> dict[tuple[str, int], int]:
        """The index of the last run of each round of each session; empty if any run belongs to no round."""
        if any(run.session is None or run.round is None for run in self.runs):
            return {}
        return {(str(run.session), run.round or 0): i for i, run in enumerate(self.runs)}


def ratios(before: Side, after: Side) -> list[Ratio]:
    """Compare each figure that all runs have. The same runs give the same intervals."""
    import numpy as np

    if len(rounds := _common_rounds(before, after)) > 1:
        return _ratios_in_turns(before, after, rounds)
    random = np.random.default_rng(0)
    single = len(before.runs) == len(after.runs) == 1
    within = [_spread_within(side.runs[0], random) for side in (before, after)] if single else []
    ratios = []
    for figure in _FIGURES:
        sides = [side.figures[figure] for side in (before, after)]
        if any(values.min() <= 0 for values in sides):
            continue
        old, new = [np.log(values) for values in sides]
        deviations: Floats | None = None
        if not single:
            deviations = _spread_between(old, new, random)
        elif all(figure in spread.figures for spread in within):
            deviations = within[1].figures[figure] - within[0].figures[figure]
        low, high = _interval(float(new.mean() - old.mean()), deviations)
        blocks = (within[0].block, within[1].block) if single and low is not None else None
        first, second = math.exp(old.mean()), math.exp(new.mean())
        ratios.append(Ratio(figure, first, second, second / first, low, high, blocks))
    return ratios


def _common_rounds(before: Side, after: Side) -> list[tuple[int, int]]:
    """The indices of the runs of each common round of a session; none if any run belongs to no round."""
    if not before.rounds or not after.rounds:
        return []
    keys = ((str(run.session), run.round or 0) for run in after.runs)
    return [(before.rounds[key], i) for i, key in enumerate(keys) if key in before.rounds]


def _ratios_in_turns(before: Side, after: Side, rounds: Sequence[tuple[int, int]]) -> list[Ratio]:
    import numpy as np

    places = np.array(rounds)  # [rounds, 2]
    ratios = []
    for figure in _IN_TURNS:
        pairs = np.stack([side.figures[figure][places[:, i]] for i, side in enumerate((before, after))], axis=1)
        if pairs.min() <= 0:
            continue
        apart = np.log(pairs[:, 1] / pairs[:, 0])
        if figure == "p50":
            runs = ((before.runs[i], after.runs[j]) for i, j in rounds)
            apart = np.array([_by_visits(*pair, whole) for pair, whole in zip(runs, apart, strict=True)])
        low, middle, high = _median(apart)
        old, new = np.median(pairs, axis=0)
        ratios.append(Ratio(figure, float(old), float(new), math.exp(middle), low, high, rounds=len(rounds)))
    return ratios


def _median(apart: Floats) -> tuple[float | None, float, float | None]:
    """Low end of the ratio's interval, median of the logarithms of ratios, high end; no ends for too few ratios.

    The median lies between the k-th smallest and the k-th largest of n values with probability
    c_k = 1 - 2 P[Binomial(n, 1/2) < k]. An end is interpolated between those of the last k with c_k >= 95 % and of
    k + 1, by the weight of Hettmansperger and Sheather (1986, equation 2).
    """
    import numpy as np

    ordered, count, middle = np.sort(apart), len(apart), float(np.median(apart))
    if count < LEAST_ROUNDS:
        return None, middle, None
    k, cover, next_cover = _last_enough(count)
    share = (cover - _CONFIDENCE) / (cover - next_cover)
    weight = (count - k) * share / (k + (count - 2 * k) * share)
    low, high = ((1 - weight) * side[k - 1] + weight * side[k] for side in (ordered, ordered[::-1]))
    return math.exp(low), middle, math.exp(high)


@lru_cache
def _last_enough(count: int) -> tuple[int, float, float]:
    """The last k with c_k >= 95 % (see `_median`); c_k and c_(k + 1)."""
    # Numbers of subsets of the rounds: all, those of k rounds, those of fewer than k.
    subsets, of_k, smaller = 2**count, 1, 0
    k, cover = 0, 1.0
    while True:
        smaller += of_k
        next_cover = 1 - 2 * smaller / subsets
        if next_cover < _CONFIDENCE:
            return k, cover, next_cover
        k, cover, of_k = k + 1, next_cover, of_k * (count - k) // (k + 1)


def _by_visits(before: Run, after: Run, whole: float) -> float:
    """The median logarithm of the ratios of visits; `whole`, that of the p50s, where there are none."""
    import numpy as np

    visits = [run.visit_p50s_ns() for run in (before, after)]
    return float(np.median(np.diff(np.log(visits), axis=0))) if all(visits) else whole


def block_length(samples: Sequence[float]) -> int:
    """Return how many samples a block has: the longest of the lengths for their mean, median and p99."""
    import numpy as np

    values = np.asarray(samples, dtype=float)
    below = [values <= np.quantile(values, share, method="inverted_cdf") for share in (0.5, 0.99)]
    longest = max(_best_length(series.astype(float)) for series in (values, *below))
    return max(1, min(_LONGER * longest, len(values) // 3))


def resample(samples: Sequence[float], statistics: Callable[[Floats], Floats], block: int, random: Generator) -> Floats:
    """Return how far the logarithms of `statistics` deviate when blocks of samples are drawn again: [_RESAMPLES, S].

    `statistics` maps [R, N], R rows of samples, to [R, S]; `block` is the length of a block.
    """
    import numpy as np

    values = np.asarray(samples, dtype=float)
    count = len(values)
    pieces = count / block
    # Every block, [N, block], as views: copying whole blocks is quicker than finding the place of each sample.
    blocks = np.lib.stride_tricks.sliding_window_view(np.concatenate([values, values[: block - 1]]), block)
    drawn = []
    for rows in _chunks(_RESAMPLES, max(1, _CHUNK // count)):
        starts = random.integers(0, count, (rows, math.ceil(pieces), 1))[..., 0]
        drawn.append(statistics(blocks[starts].reshape(rows, -1)[:, :count]))
    deviations = np.log(np.concatenate(drawn)) - np.log(statistics(values[None]))
    freedom = max(pieces - 1, 1)
    wider: Floats = np.sqrt((freedom + 1) / random.chisquare(freedom, (_RESAMPLES, 1)))
    return np.asarray(deviations * wider)


@dataclass(frozen=True)
class _Spread:
    block: int
    # By figure, deviations of its logarithm, one per resample; figures with too few samples are missing.
    figures: dict[str, Floats]


def _spread_within(run: Run, random: Generator) -> _Spread:
    count = len(run.latencies_ns)
    if count < _LEAST_SAMPLES:
        return _Spread(1, {})
    block = block_length(run.latencies_ns)
    p50, p99, mean = resample(run.latencies_ns, latency_statistics, block, random).T
    # The window is made of the latencies, also where several streams share it.
    figures = {"p50": p50, "mean": mean, "throughput": -mean}
    if count >= P99_SAMPLES:
        figures["p99"] = p99
    watts = _power_readings(run)
    if len(watts) >= _LEAST_SAMPLES and min(watts) > 0:
        figures["energy"] = mean + resample(watts, _means, block_length(watts), random)[:, 0]
    return _Spread(block, figures)


def _spread_between(before: Floats, after: Floats, random: Generator) -> Floats:
    """Return the deviations of the difference of two means, from the spread of runs around the mean of their side."""
    import numpy as np

    sides = [side for side in (before, after) if len(side) > 1]
    freedom = sum(len(side) - 1 for side in sides)
    # A mean of few lies nearer to them than the truth does.
    apart = np.concatenate([(side - side.mean()) * math.sqrt(len(side) / (len(side) - 1)) for side in sides])
    old, new = [
        np.concatenate([
            random.choice(apart, (rows, len(side))).mean(axis=1)
            for rows in _chunks(_RESAMPLES, max(1, _CHUNK // len(side)))
        ])
        for side in (before, after)
    ]  # fmt: skip
    return np.asarray((new - old) * np.sqrt(freedom / random.chisquare(freedom, _RESAMPLES)))


def _interval(difference: float, deviations: Floats | None) -> tuple[float | None, float | None]:
    """Turn a difference of logarithms into the ends of an interval of the ratio."""
    import numpy as np

    if deviations is None:
        return None, None
    low, high = np.quantile(deviations, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return math.exp(difference + low), math.exp(difference + high)


def latency_statistics(rows: Floats) -> Floats:
    """p50, p99 by nearest rank, as a run has them, and mean: [R, N] to [R, 3]."""
    import numpy as np

    p50, p99 = (math.ceil(percentile * rows.shape[1] / 100) - 1 for percentile in (50, 99))
    ordered = np.partition(rows, (p50, p99), axis=1)
    return np.stack([ordered[:, p50], ordered[:, p99], rows.mean(axis=1)], axis=1)


def _means(rows: Floats) -> Floats:
    means: Floats = rows.mean(axis=1, keepdims=True)
    return means


def _power_readings(run: Run) -> list[float]:
    """The module's power during the window."""
    power = run.power
    readings = power.total_mw() if power else None
    if power is None or readings is None:
        return []
    start, end = power.window_started_ns, power.window_ended_ns
    return [mw for time, mw in zip(power.times_ns, readings, strict=True) if start <= time <= end]


def _best_length(series: Floats) -> int:
    """The block length of least error for the mean of `series`: Patton, Politis and White (2009), circular blocks."""
    import numpy as np

    count = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / count
    if variance == 0:
        return 1
    quiet = max(5, math.ceil(math.sqrt(math.log10(count))))  # lags in a row without correlation that end the search
    lags = min(math.ceil(math.sqrt(count)) + quiet, count - 1)
    correlation = np.array([centred[: count - lag] @ centred[lag:] for lag in range(lags + 1)]) / count / variance
    loud = np.flatnonzero(np.abs(correlation[1:]) >= 2 * math.sqrt(math.log10(count) / count)) + 1
    last = 0  # lag that matters
    for lag in loud:
        if lag - last > quiet:
            break
        last = int(lag)
    width = min(2 * max(last, 1), lags)
    steps = np.arange(1, width + 1)
    window = np.minimum(1.0, 2 * (1 - steps / width)) * correlation[1 : width + 1]  # flat to the half, then to 0
    moment = 2 * float(window @ steps)
    spectrum = 1 + 2 * float(window.sum())
    best = (1.5 * (moment / spectrum) ** 2) ** (1 / 3) * count ** (1 / 3) if spectrum else math.inf
    return math.ceil(max(1.0, min(best, 3 * math.sqrt(count))))


def _chunks(total: int, most: int) -> list[int]:
    return [min(most, total - done) for done in range(0, total, most)]
