"""95 % intervals by the percentile bootstrap over test samples (Efron 1979), and the paired difference of two models.

A resample is a count per sample (how often it was drawn), so a statistic is computed for many resamples at once.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Statistic = Callable[[FloatArray], FloatArray]

_BLOCK = 4_000_000  # counts held at a time


def resample_counts(n_samples: int, resamples: int, seed: int) -> Iterator[FloatArray]:
    """Blocks (r, n_samples) of how often each sample was drawn, `resamples` rows in all; each row sums to n_samples."""
    generator = np.random.default_rng(seed)
    per_block = max(1, _BLOCK // max(1, n_samples))
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
    values = np.concatenate([statistic(counts) for counts in resample_counts(n_samples, n, seed)])
    low, high = np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    some = ~np.all(np.isnan(values), axis=0)
    if some.any():
        low[some], high[some] = np.nanquantile(values[:, some], [0.025, 0.975], axis=0)
    return low, high


def paired_difference(
    a: npt.NDArray[np.floating] | npt.NDArray[np.bool_],
    b: npt.NDArray[np.floating] | npt.NDArray[np.bool_],
    *,
    n: int = 1000,
    seed: int,
) -> tuple[float, float, float]:
    """How much better a is than b on the same test samples: mean difference and its 95 % interval.

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
    drawn = np.random.default_rng(seed).multinomial(len(a), frequency / len(a), size=n)
    low, high = np.quantile(drawn @ values / len(a), [0.025, 0.975])
    return float(difference.mean()), float(low), float(high)
