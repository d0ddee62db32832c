"""Concordance of predicted risks with times to an event, of which some are censored."""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

C_INDEX = Metric(
    "c_index", "Harrell's concordance index", "%", 1, RATE, needs="scores", labels=("time",), chance=0.5
)  # fmt: skip
_PAIRS = 2**22  # pairs of samples in memory at a time


def concordance(times: npt.ArrayLike, risks: npt.ArrayLike) -> float:
    """Return Harrell's concordance index, 0 to 1 (Harrell et al. 1996, Statistics in Medicine 15, section 5.5).

    A pair counts where one sample has an event before the time of the other; at equal times, where the other is
    censored. It is right where the risk of the first is larger, half right where the two are equal.

    `times`: (N, 2), time and 1 for an event, 0 for a censored time; `risks`: (N,) or (N, 1), larger for earlier events;
    NaN without a pair.

    >>> concordance([[1, 1], [2, 0], [3, 1], [4, 1]], [0.9, 0.8, 0.1, 0.2])
    0.75
    """
    found = Concordance(np.asarray(times, np.float64), np.asarray(risks, np.float64))
    return float(found.statistic(np.ones((1, len(found.times))))[0, 0])


class Concordance:
    """Concordance index of weighted samples."""

    def __init__(self, times: FloatArray, risks: FloatArray) -> None:
        """Keep times (N, 2) and risks (N,) or (N, 1)."""
        self.times, self._risks = times, risks.reshape(len(times))

    def statistic(self, weights: FloatArray) -> FloatArray:
        """Return the index (R, 1) for R weightings (R, N); blocks of pairs are compared one after the other."""
        time, event = self.times.T
        right, counted = np.zeros((2, len(weights)))
        first = np.flatnonzero(event)
        step = max(1, _PAIRS // max(1, len(time)))
        for start in range(0, len(first), step):
            rows = first[start : start + step]
            own = time[rows, None]
            comparable = (own < time) | ((own == time) & (event == 0))
            risk = self._risks[rows, None]
            halves = comparable * (1.0 * (risk > self._risks) + 0.5 * (risk == self._risks))
            right += np.sum(weights @ halves.T * weights[:, rows], axis=1)
            counted += np.sum(weights @ comparable.T.astype(np.float64) * weights[:, rows], axis=1)
        return np.asarray(np.divide(right, counted, out=np.full(len(weights), np.nan), where=counted > 0)[:, None])


def time_measures(values: FloatArray, scores: npt.NDArray[np.floating]) -> list[Measure]:
    """Return the concordance index as a function of the weights of the samples."""
    return [Measure((C_INDEX,), Concordance(np.asarray(values), np.asarray(scores, np.float64)).statistic)]
