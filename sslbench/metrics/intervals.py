"""95 % intervals of metrics, with groups of samples kept together.

What is resampled is the unit: a sample, or where samples belong to groups (frames of a video, crops of an image) a
whole group. The standard error of a statistic is that of random half-samples of the units (the delete-half jackknife;
Wu 1986, Shao and Wu 1989): the statistic is computed on many halves, drawn without replacement. Unlike a bootstrap, in
which a sample that is drawn twice is a near-duplicate of itself, this neither raises average precision nor hides the
variance of small classes. The halves also show by how much the statistic is too high or too low on fewer samples, and
the interval reaches further on that side.

From value and standard error the interval is made on a scale that fits what the metric can be, see `ends`. The script
tests/metrics/coverage_table.py measures how often the intervals hold the truth; docs/intervals.md has the table.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Statistic = Callable[[FloatArray], FloatArray]
"""From R weightings of the samples, (R, N), to the values of M metrics, (R, M); NaN where there is none."""
Bounds = tuple[float, float]

RATE: Bounds = (0.0, 1.0)
_BLOCK = 4_000_000  # weights held at a time
_CONFIDENCE = 0.975


@dataclasses.dataclass(frozen=True)
class Units:
    """What is resampled: every sample by itself, or whole groups of samples.

    Attributes:
        samples: N.
        number: of the units.
        place: (N,) the unit of each sample, from 0 on; None if every sample is a unit.
    """

    samples: int
    number: int
    place: IntArray | None = None

    @classmethod
    def of(cls, samples: int, groups: IntArray | None) -> "Units":
        """The units of N samples whose groups are numbered in any way; None: no two samples share a group."""
        if groups is None:
            return cls(samples, samples)
        if len(groups) != samples:
            raise ValueError(f"{len(groups)} groups of {samples} samples")
        names, place = np.unique(groups, return_inverse=True)
        return cls(samples, len(names), place.astype(np.int64))

    def weights(self, of_units: FloatArray) -> FloatArray:
        """(R, N) the weights of the samples from those of their units, (R, number)."""
        return of_units if self.place is None else of_units[:, self.place]

    def sums(self, each: FloatArray) -> FloatArray:
        """(number, ...) the sums over the samples of each unit of values (N, ...)."""
        if self.place is None:
            return each
        total = np.zeros((self.number, *each.shape[1:]))
        np.add.at(total, self.place, each)
        return total

    def having(self, rows: IntArray) -> int:
        """How many units have one of these samples."""
        return len(rows) if self.place is None else len(np.unique(self.place[rows]))


def half_samples(units: Units, n: int, seed: int, *, block: int = _BLOCK) -> Iterator[FloatArray]:
    """Blocks (r, N) of weights, 1 for the samples of a random half of the units and 0 for the others; `n` rows in all.

    Of an odd number of units the larger half is kept. At most `block` weights are held at a time; the halves do not
    depend on it.
    """
    generator = np.random.default_rng(seed)
    kept = _kept(units)
    per_block = max(1, block // max(1, units.samples))
    for start in range(0, n, per_block):
        chance = generator.random((min(per_block, n - start), units.number), dtype=np.float32)
        largest = np.partition(chance, kept - 1, axis=1)[:, kept - 1 : kept]
        yield units.weights((chance <= largest).astype(np.float64))


def _kept(units: Units) -> int:
    return units.number - units.number // 2


def on_halves(statistic: Statistic, units: Units, *, n: int, seed: int, block: int = _BLOCK) -> FloatArray:
    """(n, M) values of the statistics on n half-samples; the same halves for every statistic of the same units."""
    return np.concatenate([statistic(weights) for weights in half_samples(units, n, seed, block=block)])


def standard_errors(values: FloatArray, units: Units) -> FloatArray:
    """(M,) standard errors of statistics from their values on half-samples (n, M); NaN where there are too few."""
    errors = np.full(values.shape[1], np.nan)
    known = (~np.isnan(values)).sum(axis=0) > 1
    if units.number > 1 and known.any():
        kept = _kept(units)
        errors[known] = np.nanstd(values[:, known], axis=0) * math.sqrt(kept / (units.number - kept))
    return errors


def biases(value: FloatArray, values: FloatArray, units: Units, decay: FloatArray) -> FloatArray:
    """(M,) by how much statistics are too high, from their values on all samples (M,) and on half-samples (n, M).

    Args:
        value: on all samples.
        values: on half-samples.
        units: of the samples.
        decay: (M,) the power of the number of samples with which the bias falls: 1 for smooth statistics.
    """
    shift = np.zeros(len(value))
    known = (~np.isnan(values)).any(axis=0) & ~np.isnan(value)
    if units.number > 1 and known.any():
        growth = (units.number / _kept(units)) ** decay[known] - 1
        shift[known] = (np.nanmean(values[:, known], axis=0) - value[known]) / growth
    return shift


def mean_errors(each: FloatArray, units: Units) -> FloatArray:
    """(M,) standard errors of the means over the samples of values (N, M), in closed form.

    That of a ratio of sums over the units, which need not have equally many samples.
    """
    number = units.number
    if number < 2:
        return np.full(each.shape[1], np.nan)
    total = units.sums(each - each.mean(axis=0))
    return np.asarray(np.sqrt(np.sum(total**2, axis=0) * number / (number - 1)) / len(each))


def ends(
    value: float, error: float, *, size: float, bounds: Bounds = RATE, bias: float = 0.0, quantile: float | None = None
) -> tuple[float, float]:
    """The ends of the 95 % interval of a metric.

    Between two bounds: Wilson's score interval (1927) for a share, of as many samples as give a share that standard
    error (the effective sample size; Korn and Graubard 1998). It stays within the bounds, and has a width where nothing
    varies: three of three right are 29 to 100 %. With one bound: value and standard error of the logarithm of the
    distance from it. Without: value -+ quantile x error.

    Args:
        value: on all samples.
        error: its standard error; NaN or 0 where nothing varies.
        size: how many units a share that never varies is known from.
        bounds: of what the metric can be; infinite where there is none.
        bias: the value is too high by so much. The interval reaches from the lower of the two ends that it has for the
            value as it is and for the value less its bias to the higher one: it is meant for very many samples and for
            other test sets of the same size.
        quantile: of the error; that of Student's t with size - 1 degrees of freedom when None.

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
    return min(both), max(both)


def wilson(share: float, n: float, quantile: float) -> tuple[float, float]:
    """Wilson's score interval of a share of n.

    >>> [round(end, 4) for end in wilson(1.0, 3, 1.96)]
    [0.4385, 1.0]
    """
    square = quantile**2
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = quantile / (1 + square / n) * math.sqrt(max(0.0, share * (1 - share) / n + square / (4 * n * n)))
    return max(0.0, middle - half), min(1.0, middle + half)


@functools.cache
def student(freedom: float) -> float:
    """The 97.5 % point of Student's t; of less than one degree of freedom that of one."""
    from scipy.special import stdtrit

    return float(stdtrit(max(1.0, freedom), _CONFIDENCE))


def student_half_width(values: Sequence[float]) -> float:
    """Half the width of Student's 95 % interval of a mean; NaN for less than two values, NaN values left out."""
    known = np.array([value for value in values if not math.isnan(value)])
    if len(known) < 2:
        return math.nan
    return student(len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))


def resample_counts(units: Units, resamples: int, seed: int, *, block: int = _BLOCK) -> Iterator[FloatArray]:
    """Blocks (r, N) of how often each sample's unit was drawn with replacement, `resamples` rows in all: a bootstrap.

    At most `block` counts are held at a time; the counts do not depend on it.
    """
    generator, number = np.random.default_rng(seed), units.number
    per_block = max(1, block // max(1, units.samples))
    for start in range(0, resamples, per_block):
        rows = min(per_block, resamples - start)
        drawn = generator.integers(0, number, size=(rows, number))
        flat = (drawn + np.arange(rows)[:, None] * number).ravel()
        yield units.weights(np.bincount(flat, minlength=rows * number).reshape(rows, number).astype(np.float64))


def bootstrap(statistic: Statistic, units: Units, *, n: int = 1000, seed: int) -> tuple[FloatArray, FloatArray]:
    """The 2.5 and 97.5 % points of statistics on bootstrap resamples (Efron 1979), each (M,); NaN where there is none.

    Args:
        statistic: see `Statistic`.
        units: of the samples.
        n: how many resamples are drawn.
        seed: of the draws.
    """
    values = np.concatenate([statistic(counts) for counts in resample_counts(units, n, seed)])
    low, high = np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    some = ~np.all(np.isnan(values), axis=0)
    if some.any():
        low[some], high[some] = np.nanquantile(values[:, some], [1 - _CONFIDENCE, _CONFIDENCE], axis=0)
    return low, high
