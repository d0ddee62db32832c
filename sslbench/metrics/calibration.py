"""Calibration of a classifier's probabilities: expected calibration error, log loss, Brier score.

Expected calibration error (Naeini et al. 2015; Guo et al. 2017, eq. 3): samples are put into bins by the probability of
the predicted class, and the distance between mean probability and accuracy of each bin is averaged over the samples.
Bins are of equal width, right-closed, or (adaptive; Nguyen and O'Connor 2015) of equal numbers of samples.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.classification import predicted_classes
from sslbench.metrics.metric import LOSS, RATE, Metric

BINS = 15

# The error is a mean of absolute values, so that its bias falls with the square root of the number of samples.
ECE = Metric(
    name="ece",
    title="Expected calibration error",
    unit="%",
    direction=-1,
    bounds=RATE,
    needs="probabilities",
    labels=("single",),
    bias_decay=1 / 2,
)
ECE_ADAPTIVE = dataclasses.replace(ECE, name="ece_adaptive", title="Expected calibration error, equally filled bins")
NLL = Metric(
    name="nll",
    title="Log loss",
    unit="nats",
    direction=-1,
    bounds=LOSS,
    needs="probabilities",
    labels=("single",),
)
BRIER = Metric(
    name="brier",
    title="Brier score",
    unit="Brier score, 0 to 2",
    direction=-1,
    bounds=(0.0, 2.0),
    needs="probabilities",
    labels=("single",),
)


def softmax(scores: npt.NDArray[np.floating]) -> FloatArray:
    """Return the softmax of logits (N, C): probabilities (N, C).

    >>> softmax(np.array([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """
    shifted = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def log_losses(classes: IntArray, probabilities: FloatArray) -> FloatArray:
    """Return the negative log probability of each sample's class, in nats (N,); their mean is the log loss.

    A probability of 0 counts as 2.2e-16 (a loss of 36), as in scikit-learn's `log_loss`.

    Args:
        classes: (N,), the true class of each sample.
        probabilities: (N, C), each row summing to 1.

    >>> log_losses(np.array([0, 1]), np.array([[1.0, 0.0], [0.5, 0.5]])).round(3).tolist()
    [0.0, 0.693]
    """
    smallest = np.finfo(np.float64).eps
    own = np.take_along_axis(probabilities, classes[:, None], axis=1)[:, 0]
    return np.asarray(-np.log(np.clip(own, smallest, 1 - smallest)))


def brier_scores(classes: IntArray, probabilities: FloatArray) -> FloatArray:
    """Return the squared distance of each sample's probabilities from its class, 0 to 2 (N,); their mean is the score.

    The sum over all classes of (probability - truth)^2, as Brier defined it (1950, eq. 2).

    Args:
        classes: (N,), the true class of each sample.
        probabilities: (N, C), each row summing to 1.

    >>> brier_scores(np.array([0, 1]), np.array([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [0.0, 2.0]
    """
    own = np.take_along_axis(probabilities, classes[:, None], axis=1)[:, 0]
    return np.asarray(np.sum(probabilities**2, axis=1) - own**2 + (1 - own) ** 2)


class CalibrationError:
    """Expected calibration error for many weightings of the samples, in the bins of the unweighted samples."""

    def __init__(
        self, classes: IntArray, probabilities: FloatArray, *, bins: int = BINS, adaptive: bool = False
    ) -> None:
        """Sort the samples into bins.

        Args:
            classes: (N,), the true class of each sample.
            probabilities: (N, C), each row summing to 1; a sample with several highest ones is wrong.
            bins: number of bins.
            adaptive: bins of equal numbers of samples (equal probabilities share a bin), not of equal width.
        """
        confidence = probabilities.max(axis=1)
        right = predicted_classes(probabilities) == classes
        self._gap = confidence - right
        if adaptive:
            ordered = np.sort(confidence)
            below = np.searchsorted(ordered, confidence, side="left")
            above = np.searchsorted(ordered, confidence, side="right")
            place = (below + above - 1) // 2 * bins // len(confidence)
        else:
            place = np.searchsorted(np.arange(1, bins) / bins, confidence, side="left")
        order = np.argsort(place, kind="stable")
        self._order = order
        self._starts = np.unique(place[order], return_index=True)[1]
        self._variance = confidence * (1 - confidence)

    @property
    def bias(self) -> float:
        """Excess of the error on these samples over that on very many: chance makes the gap of a bin larger.

        Gaps are sums of independent answers, taken as normal; the part of a gap that chance alone gives is left out.
        """
        from scipy.special import erf

        gap, variance = (np.add.reduceat(part[self._order], self._starts) for part in (self._gap, self._variance))
        spread, true = np.sqrt(np.maximum(variance, 1e-12)), np.sqrt(np.maximum(gap**2 - variance, 0))
        ratio = true / spread
        mean = spread * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + true * erf(ratio / np.sqrt(2))
        return float((mean - true).sum() / len(self._gap))

    def value(self, weights: FloatArray) -> FloatArray:
        """Return the errors (R,) for R weightings (R, N): 0 is perfect, 1 is worst."""
        gaps = np.add.reduceat((weights * self._gap)[:, self._order], self._starts, axis=1)
        return np.asarray(np.abs(gaps).sum(axis=1) / weights.sum(axis=1))


def expected_calibration_error(
    classes: IntArray, probabilities: FloatArray, *, bins: int = BINS, adaptive: bool = False
) -> float:
    """Return the expected calibration error of samples that all count once, 0 to 1 (Guo et al. 2017, eq. 3).

    Args:
        classes: (N,), the true class of each sample.
        probabilities: (N, C), each row summing to 1.
        bins: number of bins.
        adaptive: see `CalibrationError`.

    >>> expected_calibration_error(np.array([0, 1]), np.array([[0.75, 0.25], [0.75, 0.25]]))
    0.25
    """
    error = CalibrationError(classes, probabilities, bins=bins, adaptive=adaptive)
    return float(error.value(np.ones((1, len(classes))))[0])
