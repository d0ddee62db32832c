"""Predicted signals of pixels, such as the strength of edges: correlation and errors, means over images."""

import dataclasses

import numpy as np

from sslbench.arrays import FloatArray, Matrix
from sslbench.metrics.dense.pooling import means
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import CORRELATION, LOSS, Metric

SIGNAL_CORRELATION = Metric(
    name="signal_correlation",
    title="Correlation of predicted and true signal, mean over images",
    unit="correlation",
    direction=1,
    bounds=CORRELATION,
    needs="signals",
    labels=("signal",),
    chance=0.0,
)
SIGNAL_RMSE = Metric(
    name="signal_rmse",
    title="Root mean square error of the signal, mean over images",
    unit="units of the signal",
    direction=-1,
    bounds=LOSS,
    needs="signals",
    labels=("signal",),
    label_units=True,
)
SIGNAL_MAE = dataclasses.replace(
    SIGNAL_RMSE, name="signal_mae", title="Mean absolute error of the signal, mean over images"
)
SIGNALS = (SIGNAL_CORRELATION, SIGNAL_RMSE, SIGNAL_MAE)
COLUMNS = ("correlation", "root mean square error", "mean absolute error")
"""Values of an image, see `signal_row`."""


def signal_row(predicted: Matrix, target: Matrix) -> FloatArray:
    """Return correlation (Pearson), root mean square error and mean absolute error of one image, (3,).

    A constant prediction knows nothing of the places: its correlation is 0. So is that with a constant target. Without
    a known pixel all three are NaN.

    >>> signal_row(np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]])).round(3).tolist()
    [1.0, 1.581, 1.5]

    Args:
        predicted: (H, W).
        target: (H, W); pixels with NaN do not count.
    """
    known = ~np.isnan(target)
    if not known.any():
        return np.full(3, np.nan)
    x, y = predicted[known].astype(np.float64), target[known].astype(np.float64)
    error = x - y
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    # The sums of squares of a constant are not exactly 0.
    least = 1e-12 * known.sum() * max(1.0, float(np.abs(y).max()) ** 2)
    correlation = float(np.clip(x @ y / scale, -1, 1)) if min(x @ x, y @ y) > least else 0.0
    return np.array([correlation, np.sqrt(np.mean(error**2)), np.abs(error).mean()])


def signal_measures(rows: FloatArray) -> list[Measure]:
    """Return the metrics `SIGNALS` of N images as functions of their weights; images with NaN are left out.

    >>> (measure,) = signal_measures(np.array([[0.5, 1, 1], [1, 2, 3]]))
    >>> measure.statistic(np.ones((1, 2)))[0].tolist()
    [0.75, 1.5, 2.0]

    Args:
        rows: (N, 3), see `signal_row`.
    """
    complete = not np.isnan(rows).any()
    return [Measure(SIGNALS, lambda weights: means(rows, weights), per_sample=rows if complete else None)]
