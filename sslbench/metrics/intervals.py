"""95 % intervals by the bootstrap over test samples (Efron 1979), and tests of the difference between two models.

A resample is a count per sample (how often it was drawn), so a statistic is computed for many resamples at once.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Statistic = Callable[[FloatArray], FloatArray]

_BLOCK = 4_000_000  # counts held at a time
_NORMAL = 1.959963984540054  # the 97.5 % point of the normal distribution
_PSEUDO = 0.5


def resample_counts(n_samples: int, resamples: int, seed: int, *, block: int = _BLOCK) -> Iterator[FloatArray]:
    """Blocks (r, n_samples) of how often each sample was drawn, `resamples` rows in all; each row sums to n_samples.

    At most `block` counts are held at a time; the counts do not depend on it.
    """
    generator = np.random.default_rng(seed)
    per_block = max(1, block // max(1, n_samples))
    for start in range(0, resamples, per_block):
        rows = min(per_block, resamples - start)
        drawn = generator.integers(0, n_samples, size=(rows, n_samples))
        flat = (drawn + np.arange(rows)[:, None] * n_samples).ravel()
        yield np.bincount(flat, minlength=rows * n_samples).reshape(rows, n_samples).astype(np.float64)


def bootstrap(statistic: Statistic, n_samples: int, *, n: int = 1000, seed: int) -> tuple[FloatArray, FloatArray]:
    """95 % percentile intervals of one or more statistics.

    Args:
        statistic: from counts (r, n_samples) to values (r, M), NaN where a resample has no value.
        n_samples: how many samples there are.
        n: how many resamples are drawn.
        seed: of the draws.

    Returns:
        Low and high ends, each (M,); NaN for a statistic that no resample has a value for.
    """
    return percentile_ends(resampled(statistic, n_samples, n=n, seed=seed))


def percentile_ends(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The 2.5 and 97.5 % points of resampled values (n, M), each (M,)."""
    low, high = np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    some = ~np.all(np.isnan(values), axis=0)
    if some.any():
        low[some], high[some] = np.nanquantile(values[:, some], [0.025, 0.975], axis=0)
    return low, high


def normal_ends(value: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The values (M,) -+ 1.96 times the standard deviation of the resampled ones (n, M).

    For statistics that are systematically higher or lower on resamples than on samples: calibration error, and the mean
    over many classes of average precision or F1, to which it matters whether a sample of a small class is drawn twice.
    Of 1,000 classes with 10 samples each, the percentiles of macro F1 do not even hold the value.
    """
    half = np.full(len(value), np.nan)
    some = ~np.all(np.isnan(values), axis=0)
    if some.any():
        half[some] = _NORMAL * np.nanstd(values[:, some], axis=0)
    return value - half, value + half


def resampled(statistic: Statistic, n_samples: int, *, n: int, seed: int, block: int = _BLOCK) -> FloatArray:
    """(n, M) values of the statistics on n resamples; the same resamples for every statistic of as many samples."""
    return np.concatenate([statistic(counts) for counts in resample_counts(n_samples, n, seed, block=block)])


def paired_difference(
    a: npt.NDArray[np.floating] | npt.NDArray[np.bool_],
    b: npt.NDArray[np.floating] | npt.NDArray[np.bool_],
    *,
    n: int = 1000,
    seed: int,
) -> tuple[float, float, float]:
    """How much better a is than b on the same test samples: mean difference and its 95 % interval.

    Where the values are rights and wrongs, half a sample is added for either model before samples are drawn (Agresti
    and Min 2005, for the Wald interval): else four samples that only one model has right would make it the better one,
    which happens by chance once in eight times. Two models that agree on every sample differ by nothing.

    Args:
        a: (N,), one value per sample (for top-1: 1 where right, 0 where wrong).
        b: (N,), the same of the other model, in the same order.
        n: how many resamples are drawn.
        seed: of the draws.

    Returns:
        Difference, low and high end. The two are tied when the interval covers 0.

    Raises:
        ValueError: the two do not have the same length, or there are no samples.
    """
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(f"paired values must be two lists of the same samples, not {a.shape} and {b.shape}")
    difference = a.astype(np.float64) - b.astype(np.float64)
    # How often each distinct value is drawn is multinomial, so that right and wrong (-1, 0, 1) cost three counts.
    values, frequency = np.unique(difference, return_counts=True)
    mean = float(difference.mean())
    if len(values) == 1:
        return mean, mean, mean
    size = len(a)
    if np.isin(values, (-1, 0, 1)).all():
        values = np.array([-1.0, 0.0, 1.0])
        added = np.array([_PSEUDO, 2 * _PSEUDO, _PSEUDO])
        frequency = added + [np.sum(difference == value) for value in values]
        size += round(4 * _PSEUDO)
    drawn = np.random.default_rng(seed).multinomial(size, frequency / frequency.sum(), size=n)
    low, high = np.quantile(drawn @ values / size, [0.025, 0.975])
    return mean, float(low), float(high)


def paired_statistics(
    a: Statistic, b: Statistic, n_samples: int, *, n: int = 1000, seed: int
) -> tuple[float, float, float]:
    """The same for a metric that is no mean over samples: both models are scored on the same resamples.

    Args:
        a: from counts (r, n_samples) to values (r, 1), of one model.
        b: the same of the other model, its samples in the same order.
        n_samples: how many samples there are.
        n: how many resamples are drawn.
        seed: of the draws.

    Returns:
        Difference, low and high end; NaN where there is none.
    """

    def difference(counts: FloatArray) -> FloatArray:
        return a(counts) - b(counts)

    low, high = bootstrap(difference, n_samples, n=n, seed=seed)
    return float(difference(np.ones((1, n_samples)))[0, 0]), float(low[0]), float(high[0])


def mcnemar(a: npt.NDArray[np.bool_], b: npt.NDArray[np.bool_]) -> float:
    """The two-sided p value of McNemar's exact test: are two models right equally often on the same samples?

    Of the samples that one model has right and the other wrong, each model should have half (McNemar 1947; a sign
    test). 1 when there are none.

    Args:
        a: (N,), where one model is right.
        b: (N,), where the other one is.
    """
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    if only_a == only_b:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Raise the p values of several tests so that any is below 5 % by chance in at most 5 % of cases (Holm 1979).

    NaN stays, and does not count as a test.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = largest
    return adjusted
