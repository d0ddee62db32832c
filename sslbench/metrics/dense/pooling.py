"""Sums of counts over images, quotients of the sums, and means of the quotients over classes."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray

Absent = Literal["omit", "zero"]
"""Treatment of a class that is neither labelled nor predicted: left out of the mean over classes, or counted as 0."""


def pooled(counts: npt.NDArray[np.number], weights: FloatArray) -> FloatArray:
    """Return the sums (R, ...) over N images of counts (N, ...) for R weightings (R, N)."""
    flat = counts.reshape(len(counts), -1).astype(np.float64)
    return np.asarray((weights @ flat).reshape(len(weights), *counts.shape[1:]))


def quotient(numerator: FloatArray, denominator: npt.NDArray[np.number]) -> FloatArray:
    """Return the quotients; NaN where the denominator is 0."""
    some = denominator > 0
    return np.asarray(np.divide(numerator, denominator, out=np.full(some.shape, np.nan), where=some))


def mean_over_classes(values: FloatArray, *, absent: Absent = "omit") -> FloatArray:
    """Return the means over the classes of values (..., C), NaN for absent classes; NaN if all are absent.

    `absent`: treatment of NaN; 'zero' is the rule of Hummingbird's and many clustering codes.

    >>> values = np.array([0.5, np.nan])
    >>> float(mean_over_classes(values)), float(mean_over_classes(values, absent="zero"))
    (0.5, 0.25)
    """
    present = ~np.isnan(values)
    some = present.any(axis=-1)
    number = present.sum(axis=-1) if absent == "omit" else np.full(some.shape, values.shape[-1])
    return np.where(some, quotient(np.where(present, values, 0.0).sum(axis=-1), number), np.nan)


def means(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted means (R, M) of values (N, M) for R weightings (R, N); NaN values are left out.

    >>> means(np.array([[1.0], [np.nan], [3.0]]), np.ones((1, 3))).tolist()
    [[2.0]]
    """
    known = ~np.isnan(values)
    return quotient(weights @ np.where(known, values, 0.0), weights @ known)


def counts_of_rows(scores: npt.NDArray[np.floating]) -> IntArray:
    """Return counts (N, 3, C) of each class from rows (N, 3 * C) of scores."""
    return np.asarray(scores.reshape(len(scores), 3, -1), dtype=np.int64)
