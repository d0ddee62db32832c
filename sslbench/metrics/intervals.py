"""95 % intervals of metrics, with groups of samples kept together.

The unit of resampling is a sample, or where samples belong to groups (frames of a video, crops of an image) a whole
group. The standard error of a statistic is that of random half-samples of the units (the delete-half jackknife;
Wu 1986, Shao and Wu 1989): the statistic is computed on many halves, drawn without replacement. Unlike a bootstrap, in
which a sample that is drawn twice is a near-duplicate of itself, this neither raises average precision nor hides the
variance of small classes. The halves also show the bias of the statistic on fewer samples, and the interval reaches
further on that side.

Everything that has an interval gets it here. `ends` makes it from value and standard error, on a scale that fits the
bounds of the metric; `means` of one value per sample, `bootstrapped` of average precision; `paired_difference` and
`shrunk` of the difference of two models; `over_trainings` and `over_other_trainings` cover other trainings, too.

Of a difference, two pseudo-units are added to the units, one in favour of either model (Agresti and Min 2005; Bonett
and Price 2012), and the interval uses Student's t: its verdict is then close to that of McNemar's exact test, and three
or four samples that only one model has right are no significant difference.

The script
tests/metrics/coverage_table.py measures the coverage of the intervals; docs/intervals.md has the table.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.metric import RATE, Bounds, Metric

Statistic = Callable[[FloatArray], FloatArray]
"""Function from R weightings of the samples (R, N) to the values of M metrics (R, M); NaN where there is none."""
Interval = tuple[float, float, float]
"""Value, low and high end of its 95 % interval; NaN where not computable."""
Values = dict[str, Interval]

_BLOCK = 4_000_000  # number of weights in memory at a time
_CONFIDENCE = 0.975
_ROUNDING = 1e-9  # spread of resamples that show no variance


@dataclasses.dataclass(frozen=True)
class Units:
    """Units of resampling: single samples, or whole groups of samples.

    Attributes:
        place: (N,) the unit of each sample, from 0 on; None if every sample is a unit.
    """

    samples: int
    number: int
    place: IntArray | None = None

    @classmethod
    def of(cls, samples: int, groups: IntArray | None) -> "Units":
        """Return the units of N samples from any numbering of their groups (N,); None: every sample is a unit."""
        if groups is None:
            return cls(samples, samples)
        if len(groups) != samples:
            raise ValueError(f"{len(groups)} groups of {samples} samples")
        names, place = np.unique(groups, return_inverse=True)
        return cls(samples, len(names), place.astype(np.int64))

    def weights(self, of_units: FloatArray) -> FloatArray:
        """Return the weights of the samples (R, N) from those of their units (R, number)."""
        return of_units if self.place is None else of_units[:, self.place]

    def sums(self, each: FloatArray) -> FloatArray:
        """Return the sums (number, ...) of values (N, ...) over the samples of each unit."""
        if self.place is None:
            return each
        total = np.zeros((self.number, *each.shape[1:]))
        np.add.at(total, self.place, each)
        return total

    def having(self, rows: IntArray) -> int:
        """Return the number of units that have at least one of these samples."""
        return len(rows) if self.place is None else len(np.unique(self.place[rows]))

    def having_each(self, table: npt.NDArray[Any]) -> tuple[int, ...]:
        """Return the number of units with a nonzero value, for each column of (N, C) that has one."""
        return tuple(self.having(rows) for column in table.T if len(rows := np.flatnonzero(column)))


def half_samples(units: Units, n: int, seed: int, *, block: int = _BLOCK) -> Iterator[FloatArray]:
    """Yield blocks (r, N) of weights, 1 for the samples of a random half of the units, else 0; `n` rows in all.

    Of an odd number of units the larger half is kept. A block has at most `block` weights; the halves do not depend
    on it.
    """
    generator = np.random.default_rng(seed)
    kept = _half(units)
    per_block = max(1, block // max(1, units.samples))
    for start in range(0, n, per_block):
        chance = generator.random((min(per_block, n - start), units.number), dtype=np.float32)
        largest = np.partition(chance, kept - 1, axis=1)[:, kept - 1 : kept]
        yield units.weights((chance <= largest).astype(np.float64))


def _half(units: Units) -> int:
    return units.number - units.number // 2


def on_halves(statistic: Statistic, units: Units, *, n: int, seed: int, block: int = _BLOCK) -> FloatArray:
    """Return the statistics on n half-samples (n, M); the same halves for every statistic of the same units."""
    return np.concatenate([statistic(weights) for weights in half_samples(units, n, seed, block=block)])


def standard_errors(values: FloatArray, units: Units) -> FloatArray:
    """Return the standard errors (M,) of statistics from half-samples (n, M); NaN where there are too few."""
    errors = np.full(values.shape[1], np.nan)
    known = (~np.isnan(values)).sum(axis=0) > 1
    if units.number > 1 and known.any():
        kept = _half(units)
        errors[known] = np.nanstd(values[:, known], axis=0) * math.sqrt(kept / (units.number - kept))
    return errors


def biases(value: FloatArray, values: FloatArray, units: Units, decay: FloatArray) -> FloatArray:
    """Return the biases (M,) of statistics, positive where they are too high.

    `value`: (M,), on all samples; `values`: (n, M), on half-samples; `decay`: (M,), power of the number of samples with
    which the bias falls: 1 for smooth statistics.
    """
    shift = np.zeros(len(value))
    known = (~np.isnan(values)).any(axis=0) & ~np.isnan(value)
    if units.number > 1 and known.any():
        growth = (units.number / _half(units)) ** decay[known] - 1
        shift[known] = (np.nanmean(values[:, known], axis=0) - value[known]) / growth
    return shift


def mean_errors(each: FloatArray, units: Units) -> FloatArray:
    """Return the standard errors (M,) of the means over the samples of values (N, M), in closed form."""
    # The error of a ratio of sums over the units, which need not have equally many samples.
    number = units.number
    if number < 2:
        return np.full(each.shape[1], np.nan)
    total = units.sums(each - each.mean(axis=0))
    return np.asarray(np.sqrt(np.sum(total**2, axis=0) * number / (number - 1)) / len(each))


def ends(
    value: float, error: float, *, size: float, bounds: Bounds = RATE, bias: float = 0.0, quantile: float | None = None
) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a metric.

    Between two bounds: Wilson's score interval (1927) for a share, of as many samples as give a share that standard
    error (the effective sample size; Korn and Graubard 1998). It stays within the bounds, and has a width where nothing
    varies: three of three right are 29 to 100 %. With one bound: value and standard error of the logarithm of the
    distance from it. Without: value -+ quantile x error.

    `error`: its standard error; NaN or 0 where nothing varies; `quantile`: factor of the error; that of Student's t
    with size - 1 degrees of freedom when None.

    >>> [round(end, 3) for end in ends(0.9, 0.03, size=100, quantile=1.96)]
    [0.826, 0.945]
    """
    low, high = bounds
    if math.isnan(value):
        return math.nan, math.nan
    factor = student(size - 1) if quantile is None else quantile
    varies = error > 0
    if math.isfinite(low) and math.isfinite(high):
        share, width = (value - low) / (high - low), high - low
        number = share * (1 - share) * (width / error) ** 2 if varies and 0 < share < 1 else size
        moved = min(1.0, max(0.0, share - bias / width))
        both = [low + width * end for middle in (share, moved) for end in wilson(middle, number, factor)]
    elif math.isnan(error):
        return math.nan, math.nan
    elif math.isfinite(low) or math.isfinite(high):
        bound, sign = (low, 1.0) if math.isfinite(low) else (high, -1.0)
        distance = abs(value - bound)
        ratio = math.exp(min(700.0, factor * error / distance)) if distance else 1.0
        moved = max(distance - sign * bias, distance / 2)
        both = [bound + sign * middle * by for middle in (distance, moved) for by in (1 / ratio, ratio)]
    else:
        both = [middle + sign * factor * error for middle in (value, value - bias) for sign in (-1.0, 1.0)]
    return min(value, *both), max(value, *both)  # rounding may leave an end beyond the value


def wilson(share: float, n: float, quantile: float) -> tuple[float, float]:
    """Return Wilson's score interval (1927) of a share of n.

    >>> [round(end, 4) for end in wilson(1.0, 3, 1.96)]
    [0.4385, 1.0]
    """
    square = quantile**2
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = quantile / (1 + square / n) * math.sqrt(max(0.0, share * (1 - share) / n + square / (4 * n * n)))
    return max(0.0, middle - half), min(1.0, middle + half)


@functools.cache
def student(freedom: float) -> float:
    """Return the 97.5 % point of Student's t; for less than one degree of freedom that of one."""
    from scipy.special import stdtrit

    return float(stdtrit(max(1.0, freedom), _CONFIDENCE))


def student_half_width(values: Sequence[float]) -> float:
    """Return half the width of Student's 95 % interval of a mean; NaN for less than two values, NaN values left out."""
    known = np.array([value for value in values if not math.isnan(value)])
    if len(known) < 2:
        return math.nan
    return student(len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))


def over_trainings(values: Sequence[Interval], bounds: Bounds = RATE) -> Interval:
    """Return the mean of R trainings with its 95 % interval over other trainings and other test sets, within bounds.

    The two half widths are added as squares (Howe 1974, of a sum of two independent estimates; Zou and Donner 2008):
    Student's of the trainings, t(0.975, R - 1) s / sqrt(R) with the standard deviation s between them, and that of the
    test set, the mean of the half widths of the single trainings. The latter is never too small: a mean does not vary
    more than its parts do on average. With one training the former is unknown and left out.

    >>> [round(end, 3) for end in over_trainings([(0.8, 0.7, 0.9), (0.8, 0.7, 0.9), (0.83, 0.73, 0.93)])]
    [0.81, 0.701, 0.919]
    """
    means = [value for value, _, _ in values]
    below, above = known_mean([value - low for value, low, _ in values]), known_mean([h - v for v, _, h in values])
    between = student_half_width(means)
    mean, low, high = _widened(known_mean(means), below, above, 0.0 if math.isnan(between) else between)
    return mean, low if math.isnan(low) else max(low, bounds[0]), high if math.isnan(high) else min(high, bounds[1])


def over_other_trainings(difference: Interval, a: Mapping[str, float], b: Mapping[str, float]) -> Interval:
    """Return a difference of two models with its interval over other trainings, too.

    Student's t interval of the paired differences where both have the same trainings, else of two samples of one
    variance; the half widths are added as in `over_trainings`. With one training of either it is left out.
    """
    value, low, high = difference
    if len(a) == len(b) == 1:
        between = 0.0
    elif a.keys() == b.keys():
        between = student_half_width([a[name] - b[name] for name in a])
    else:
        freedom = len(a) + len(b) - 2
        squares = sum(float(np.sum((np.array(list(m.values())) - np.mean(list(m.values()))) ** 2)) for m in (a, b))
        between = student(freedom) * math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))
    return _widened(value, value - low, high - value, between)


def over_other_networks(difference: Interval, values: Sequence[float]) -> Interval:
    """Return a difference from the mean of R untrained networks that allows for the spread of their values.

    It reaches at least as far as Student's prediction interval for one more network, t(0.975, R - 1) s sqrt(1 + 1/R)
    with the standard deviation s of the R values. So of further untrained networks 2.5 % at most are above the mean by
    the whole interval. With one network the spread is unknown and left out.

    >>> over_other_networks((0.1, 0.05, 0.15), [0.4])
    (0.1, 0.05, 0.15)
    >>> [round(end, 3) for end in over_other_networks((0.1, 0.05, 0.15), [0.36, 0.4, 0.44])]
    [0.1, -0.099, 0.299]
    """
    value, low, high = difference
    if len(values) < 2:
        return difference
    spread = student(len(values) - 1) * float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values))
    return value, min(low, value - spread), max(high, value + spread)


def _widened(value: float, below: float, above: float, between: float) -> Interval:
    return value, value - math.hypot(below, between), value + math.hypot(above, between)


def known_mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN without one."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def resample_counts(units: Units, resamples: int, seed: int) -> Iterator[FloatArray]:
    """Yield blocks (r, N) of bootstrap counts: how often each sample's unit was drawn, `resamples` rows in all."""
    generator, number = np.random.default_rng(seed), units.number
    per_block = max(1, _BLOCK // max(1, units.samples))
    for start in range(0, resamples, per_block):
        rows = min(per_block, resamples - start)
        drawn = generator.integers(0, number, size=(rows, number))
        flat = (drawn + np.arange(rows)[:, None] * number).ravel()
        yield units.weights(np.bincount(flat, minlength=rows * number).reshape(rows, number).astype(np.float64))


@dataclasses.dataclass(frozen=True)
class BootstrapResult:
    """2.5 and 97.5 % points and standard deviations of M statistics on resamples, (M,); NaN where there is no value."""

    low: FloatArray
    high: FloatArray
    errors: FloatArray


def bootstrap(statistic: Statistic, units: Units, *, n: int = 1000, seed: int) -> BootstrapResult:
    """Return the points and the standard errors of statistics from bootstrap resamples (Efron 1979)."""
    values = np.concatenate([statistic(counts) for counts in resample_counts(units, n, seed)])
    low, high, errors = (np.full(values.shape[1], np.nan) for _ in range(3))
    some = ~np.all(np.isnan(values), axis=0)
    if some.any():
        low[some], high[some] = np.nanquantile(values[:, some], [1 - _CONFIDENCE, _CONFIDENCE], axis=0)
        errors[some] = np.nanstd(values[:, some], axis=0)
    return BootstrapResult(low, high, errors)


def bootstrapped(
    names: Sequence[str], values: Sequence[float], statistic: Statistic, units: Units, seed: int, resamples: int
) -> Values:
    """Return shares with their 95 % intervals by the bootstrap, reflected at the value; NaN ends without resamples.

    Where nothing varies, see `ends`.
    """
    if not resamples:
        return {name: (value, math.nan, math.nan) for name, value in zip(names, values, strict=True)}
    found, points = bootstrap(statistic, units, n=resamples, seed=seed), {}
    for name, value, low, high, error in zip(names, values, found.low, found.high, found.errors, strict=True):
        both = float(np.clip(2 * value - high, 0.0, value)), float(np.clip(2 * value - low, value, 1.0))
        points[name] = (value, *(ends(value, 0.0, size=units.number) if error < _ROUNDING else both))
    return points


def means(values: Mapping[Metric, FloatArray], units: Units) -> dict[str, Interval]:
    """Return metrics that are means of one value (N,) per sample, with their 95 % intervals.

    >>> from sslbench.metrics.classification import TOP1
    >>> found = means({TOP1: np.array([0.0, 0.5, 1.0])}, Units.of(3, None))
    >>> [round(value, 2) for value in found["top1"]]
    [0.5, 0.04, 0.96]
    """
    columns = np.stack([np.asarray(each, dtype=np.float64) for each in values.values()], axis=1)
    errors = mean_errors(columns, units)
    found = {}
    for metric, mean, error in zip(values, columns.mean(axis=0).tolist(), errors.tolist(), strict=True):
        found[metric.name] = (mean, *ends(mean, error, size=units.number, bounds=metric.bounds))
    return found


def mean_of_rows(
    metric: Metric, values: FloatArray, rows: Sequence[int] | IntArray, groups: IntArray | None
) -> Interval:
    """Return a metric that is a mean over samples, of some of them only, with its 95 % interval.

    `values`: (N,), one per sample; `groups`: (N,) group of each sample, which the interval keeps together; None: every
    sample stands for itself.
    """
    chosen = np.asarray(rows, dtype=np.int64)
    units = Units.of(len(chosen), None if groups is None else groups[chosen])
    return means({metric: values[chosen]}, units)[metric.name]


def paired_difference(
    a: npt.NDArray[np.floating] | npt.NDArray[np.bool_],
    b: npt.NDArray[np.floating] | npt.NDArray[np.bool_],
    units: Units | None = None,
) -> Interval:
    """Return the mean difference of two models' values on the same samples, and its 95 % interval.

    `a`: (N,), one value per sample (for top-1: 1 where right, 0 where wrong); `b`: (N,), the same of the other model,
    in the same order; `units`: units of the samples; every sample by itself when None; returns difference, low and high
    end. The two are tied when the interval covers 0. NaN ends if there is one unit only.

    >>> paired_difference(np.array([1, 1, 1]), np.array([0, 0, 0]))[1] < 0
    True
    """
    # Two pseudo-units are added to the sums of the differences over each unit: as large as the units that differ are on
    # average, one in favour of either model. Two models that agree on every sample differ by 0.
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"paired values must be two lists of the same samples, not {a.shape} and {b.shape}")
    each = a.astype(np.float64) - b.astype(np.float64)
    value = float(each.mean())
    if not each.any():
        return 0.0, 0.0, 0.0
    units = units or Units.of(len(each), None)
    number, size = units.number, len(each) / units.number
    if number < 2:
        return value, math.nan, math.nan
    sums, sizes = units.sums(each), units.sums(np.ones(len(each)))
    added = size * math.sqrt(float(np.mean((sums / sizes)[sums != 0] ** 2))) if sums.any() else 0.0
    middle = float(sums.sum()) / (len(each) + 2 * size)
    left = np.append(sums - middle * sizes, [added - middle * size, -added - middle * size])
    half = student(number - 1) * math.sqrt(float(np.sum(left**2))) / (len(each) + 2 * size)
    return value, min(value, middle - half), max(value, middle + half)


def shrunk(value: float, error: float, size: float, *, most: float = math.inf) -> Interval:
    """Return a difference with the interval of `paired_difference`, from its standard error."""
    if math.isnan(value) or math.isnan(error):
        return value, math.nan, math.nan
    if value == 0 and error == 0:
        return 0.0, 0.0, 0.0
    square = (size - 1) * error**2 + value**2
    middle = value * size / (size + 2)
    half = student(size - 1) * math.sqrt(max(0.0, square / (size + 2) - middle**2 / (size + 2)))
    return value, max(-most, min(value, middle - half)), min(most, max(value, middle + half))
