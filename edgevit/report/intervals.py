"""How sure the ratio of two measurements is: 95 % intervals, from the spread that the measurements themselves show.

One run on each side. Inferences in a row are alike, as heat, clocks and other programs change more slowly than they:
1000 of them tell less than 1000 independent ones. So whole blocks are resampled (circular block bootstrap), of a length
that the samples ask for (Politis and White 2004, in the correction of Patton, Politis and White 2009). How one process
differs from the next is not in such an interval.

Several runs on a side. That difference is often the larger one, and no number of inferences shows it. A run is then one
observation, and runs are resampled. There are few: what they deviate from the mean of their side, relative to it, is
pooled over both sides. (Resampling runs within each side, and blocks within runs, covers the truth 66, 79 and 85 times
of 100 with 2, 3 and 5 runs on each side.)

Runs in turns. Runs of one round of one session have met the same machine, busy or warm as it was. A round's ratio is
then one observation, and the median of the rounds the ratio. The rounds' own order gives the interval, between two
neighbours of which the inner lies too far in and the outer too far out (Hettmansperger and Sheather 1986): of six
distributions from uniform to heavy-tailed it covers the truth 94 to 96 times of 100, whether there are 6 rounds or 30,
and rounds that are resampled 86 to 95 times. Where models alternated in one process, a round's ratio of p50s is the
median over their visits, each beside the visit of the other a moment before or after: if the machine was slow for half
of the round, both p50s lie anywhere between slow and fast.

In the first two ways the spread is known from few independent pieces, and so not well: the deviations are divided by
the root of a drawn chi-square over its degrees of freedom, one less than the pieces, which turns a normal into
Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgevit.agent.doubts import P99_SAMPLES
from edgevit.agent.records import Run

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[Any]

CONFIDENCE = 0.95
RESAMPLES = 1000
LEAST_ROUNDS = 6  # the median lies outside the least and the greatest of 6 less than 5 times of 100
CHUNK = 1_000_000  # values resampled at once
# Blocks that give a variance of least error are short for an interval: of 200 to 1000 samples of an AR(1) series at
# 0.8 to 0.95 they cover the truth 89 to 96 times of 100, and blocks of twice the length 92 to 97 times.
LONGER = 2
LEAST_SAMPLES = 20  # fewer show too little of how they depend on each other

# Figures that are compared, all above 0.
FIGURES: dict[str, Callable[[Run], float | None]] = {
    "p50": lambda run: run.p50_ns() / 1e6,
    "p99": lambda run: run.p99_ns() / 1e6,
    "mean": lambda run: run.mean_ns() / 1e6,
    "throughput": Run.images_per_second,
    "energy": Run.energy_per_image_mj,
}


# Of runs in turns, also this one: other programs make an inference wait, and do not make it compute more. It is no
# latency, but on one thread of a processor the ratio of two models is the same.
IN_TURNS = {**FIGURES, "processor": Run.processor_ms}


@dataclass(frozen=True)
class Ratio:
    """One figure of `after` over that of `before`; of several runs, the geometric mean; of rounds, the median."""

    figure: str  # of IN_TURNS
    before: float
    after: float
    ratio: float  # of rounds, the median of their ratios, which need not be that of the medians
    low: float | None  # of the interval; None: too few samples or rounds for one
    high: float | None
    blocks: tuple[int, int] | None = None  # inferences in each that was resampled; None: no interval, or runs were
    rounds: int | None = None  # in which both were measured; None: they were not measured in turns


def ratios(before: Sequence[Run], after: Sequence[Run]) -> list[Ratio]:
    """Compare each figure that all runs have. The same runs give the same intervals."""
    import numpy as np

    if len(rounds := _common_rounds(before, after)) > 1:
        return _ratios_in_turns(rounds)
    random = np.random.default_rng(0)
    single = len(before) == len(after) == 1
    within = [_spread_within(run, random) for run in (before[0], after[0])] if single else []
    found = []
    for figure, read in FIGURES.items():
        sides = [[value for run in side if (value := read(run) or 0) > 0] for side in (before, after)]
        if [len(values) for values in sides] != [len(before), len(after)]:
            continue
        old, new = [np.log(values) for values in sides]
        deviations: Floats | None = None
        if not single:
            deviations = _spread_between(old, new, random)
        elif all(figure in spread.figures for spread in within):
            deviations = within[1].figures[figure] - within[0].figures[figure]
        low, high = _interval(float(new.mean() - old.mean()), deviations)
        blocks = (within[0].block, within[1].block) if single and low is not None else None
        one, other = math.exp(old.mean()), math.exp(new.mean())
        found.append(Ratio(figure, one, other, other / one, low, high, blocks))
    return found


def _common_rounds(before: Sequence[Run], after: Sequence[Run]) -> list[tuple[Run, Run]]:
    """The pairs of runs that were made in one round of one session; none if any run was made in no round."""
    if any(run.session is None or run.round is None for run in (*before, *after)):
        return []
    made = {(run.session, run.round): run for run in before}
    return [(made[run.session, run.round], run) for run in after if (run.session, run.round) in made]


def _ratios_in_turns(rounds: Sequence[tuple[Run, Run]]) -> list[Ratio]:
    import numpy as np

    found = []
    for figure, read in IN_TURNS.items():
        pairs = np.array([[read(run) or 0 for run in pair] for pair in rounds])  # [rounds, 2]
        if pairs.min() <= 0:
            continue
        apart = np.log(pairs[:, 1] / pairs[:, 0])
        if figure == "p50":
            apart = np.array([_by_visits(*pair, whole) for pair, whole in zip(rounds, apart, strict=True)])
        low, middle, high = _median(apart)
        old, new = np.median(pairs, axis=0)
        found.append(Ratio(figure, float(old), float(new), math.exp(middle), low, high, rounds=len(rounds)))
    return found


def _median(apart: Floats) -> tuple[float | None, float, float | None]:
    """The median of logarithms of ratios, between the ends of an interval of the ratio; of too few, without.

    The k-th value of n from below and from above hold the median between them with probability
    c_k = 1 - 2 P[Binomial(n, 1/2) < k]. The ends lie between the last k of which c_k is enough and the one after it, by
    the weight of Hettmansperger and Sheather (1986, equation 2).
    """
    import numpy as np

    ordered, count, middle = np.sort(apart), len(apart), float(np.median(apart))
    if count < LEAST_ROUNDS:
        return None, middle, None
    covers = [1 - 2 * sum(math.comb(count, i) for i in range(k)) / 2**count for k in range(count // 2 + 2)]
    k = max(k for k, cover in enumerate(covers) if cover >= CONFIDENCE)
    share = (covers[k] - CONFIDENCE) / (covers[k] - covers[k + 1])
    weight = (count - k) * share / (k + (count - 2 * k) * share)
    low, high = ((1 - weight) * side[k - 1] + weight * side[k] for side in (ordered, ordered[::-1]))
    return math.exp(low), middle, math.exp(high)


def _by_visits(before: Run, after: Run, whole: float) -> float:
    """The median logarithm of the ratios of visits; `whole`, that of the p50s, where there are none."""
    import numpy as np

    visits = [run.visit_p50s_ns() for run in (before, after)]
    return float(np.median(np.diff(np.log(visits), axis=0))) if all(visits) else whole


def block_length(samples: Sequence[float]) -> int:
    """Return how many samples in a row belong together: the most that any of their mean, median and p99 asks for."""
    import numpy as np

    values = np.asarray(samples, dtype=float)
    below = [values <= np.quantile(values, share, method="inverted_cdf") for share in (0.5, 0.99)]
    longest = max(_best_length(series.astype(float)) for series in (values, *below))
    return max(1, min(LONGER * longest, len(values) // 3))


def resample(samples: Sequence[float], statistics: Callable[[Floats], Floats], block: int, random: Generator) -> Floats:
    """Return how far the logarithms of `statistics` deviate when blocks of samples are drawn again: [RESAMPLES, S].

    `statistics` maps [R, N], R rows of samples, to [R, S]; `block` is the length of a block.
    """
    import numpy as np

    values = np.asarray(samples, dtype=float)
    count = len(values)
    pieces = count / block
    drawn = []
    for rows in _chunks(RESAMPLES, max(1, CHUNK // count)):
        starts = random.integers(0, count, (rows, math.ceil(pieces), 1))
        places = (starts + np.arange(block)).reshape(rows, -1)[:, :count] % count
        drawn.append(statistics(values[places]))
    deviations = np.log(np.concatenate(drawn)) - np.log(statistics(values[None]))
    freedom = max(pieces - 1, 1)
    wider: Floats = np.sqrt((freedom + 1) / random.chisquare(freedom, (RESAMPLES, 1)))
    return np.asarray(deviations * wider)


@dataclass(frozen=True)
class _Spread:
    block: int
    figures: dict[str, Floats]  # deviations of the logarithm, one per resample; of those that have samples enough


def _spread_within(run: Run, random: Generator) -> _Spread:
    count = len(run.latencies_ns)
    if count < LEAST_SAMPLES:
        return _Spread(1, {})
    block = block_length(run.latencies_ns)
    p50, p99, mean = resample(run.latencies_ns, latency_statistics, block, random).T
    # The window is made of the latencies, also where several streams share it.
    figures = {"p50": p50, "mean": mean, "throughput": -mean}
    if count >= P99_SAMPLES:
        figures["p99"] = p99
    watts = _power_readings(run)
    if len(watts) >= LEAST_SAMPLES and min(watts) > 0:
        figures["energy"] = mean + resample(watts, _means, block_length(watts), random)[:, 0]
    return _Spread(block, figures)


def _spread_between(before: Floats, after: Floats, random: Generator) -> Floats:
    """Return the deviations of the difference of two means, from the spread of runs around the mean of their side."""
    import numpy as np

    sides = [side for side in (before, after) if len(side) > 1]
    freedom = sum(len(side) - 1 for side in sides)
    # A mean of few lies nearer to them than the truth does.
    apart = np.concatenate([(side - side.mean()) * math.sqrt(len(side) / (len(side) - 1)) for side in sides])
    old, new = [random.choice(apart, (RESAMPLES, len(side))).mean(axis=1) for side in (before, after)]
    return np.asarray((new - old) * np.sqrt(freedom / random.chisquare(freedom, RESAMPLES)))


def _interval(difference: float, deviations: Floats | None) -> tuple[float | None, float | None]:
    """Turn a difference of logarithms into the ends of an interval of the ratio."""
    import numpy as np

    if deviations is None:
        return None, None
    low, high = np.quantile(deviations, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
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
