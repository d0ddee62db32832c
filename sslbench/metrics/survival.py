"""Concordance of predicted risks with times to an event, of which some are censored."""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import RATE, Metric

C_INDEX = Metric(
    "c_index", "Harrell's concordance index", "%", 1, RATE, needs="scores", labels=("time",), chance=0.5
)  # fmt: skip
UNO_C_INDEX = Metric(
    "uno_c_index", "Uno's concordance index", "%", 1, RATE, needs="times_of_train", labels=("time",), chance=0.5
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


def censoring_weights(train: FloatArray, times: FloatArray, tau: float | None = None) -> FloatArray:
    """Return the weights (N,) of events in Uno's concordance index: 1 / G(t)^2, and 0 for those that do not count.

    G is the Kaplan-Meier estimate of the probability that a time of train is not censored until t; at equal times
    events come before censored times (Uno et al. 2011, Statistics in Medicine 30, 1105-1117, section 2; as
    `concordance_index_ipcw` of scikit-survival).

    Args:
        train: (M, 2), times and events that G is estimated from.
        times: (N, 2), likewise, of the samples that are scored.
        tau: events at this time or later do not count; None: all count for which G is known and positive.

    >>> censoring_weights(np.array([[1, 1], [2, 0], [3, 1]]), np.array([[1, 1], [3, 1], [9, 1]])).tolist()
    [1.0, 4.0, 0.0]
    """
    places, own = np.unique(train[:, 0], return_inverse=True)
    at_place = np.bincount(own)
    censored = np.bincount(own, weights=train[:, 1] == 0)
    # Those whose event is at this time are no longer at risk of being censored.
    at_risk = at_place[::-1].cumsum()[::-1] - (at_place - censored)
    kept = np.cumprod(1 - np.divide(censored, at_risk, out=np.zeros(len(places)), where=at_risk > 0))
    time, event = times.T
    last = np.searchsorted(places, time, side="right") - 1
    uncensored = np.where(last < 0, 1.0, kept[last])
    counts = (event > 0) & (time <= places[-1]) & (uncensored > 0)
    counts &= True if tau is None else time < tau
    return np.asarray(np.divide(1.0, uncensored**2, out=np.zeros(len(times)), where=counts))


class Concordance:
    """Concordance index of weighted samples."""

    def __init__(self, times: FloatArray, risks: FloatArray, of_events: FloatArray | None = None) -> None:
        """Keep times (N, 2), risks (N,) or (N, 1), and the weights (N,) of pairs whose first event is a sample's."""
        self.times, self._risks = times, risks.reshape(len(times))
        self._of_events = np.asarray(times[:, 1] > 0, np.float64) if of_events is None else of_events

    def statistic(self, weights: FloatArray) -> FloatArray:
        """Return the index (R, 1) for R weightings (R, N); blocks of pairs are compared one after the other."""
        time, event = self.times.T
        right, counted = np.zeros((2, len(weights)))
        first = np.flatnonzero(self._of_events)
        step = max(1, _PAIRS // max(1, len(time)))
        for start in range(0, len(first), step):
            rows = first[start : start + step]
            own = time[rows, None]
            comparable = (own < time) | ((own == time) & (event == 0))
            risk = self._risks[rows, None]
            halves = comparable * (1.0 * (risk > self._risks) + 0.5 * (risk == self._risks))
            of_first = weights[:, rows] * self._of_events[rows]
            right += np.sum(weights @ halves.T * of_first, axis=1)
            counted += np.sum(weights @ comparable.T.astype(np.float64) * of_first, axis=1)
        return np.asarray(np.divide(right, counted, out=np.full(len(weights), np.nan), where=counted > 0)[:, None])


def time_measures(values: FloatArray, scores: npt.NDArray[np.floating]) -> list[Measure]:
    """Return the concordance index as a function of the weights of the samples."""
    return [Measure((C_INDEX,), Concordance(np.asarray(values), np.asarray(scores, np.float64)).statistic)]
