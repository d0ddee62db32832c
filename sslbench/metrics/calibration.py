"""How far a classifier's probabilities can be believed: calibration error, log loss, Brier score.

Expected calibration error (Naeini et al. 2015; Guo et al. 2017, eq. 3): samples are put into bins by the probability of
the predicted class, and the distance between mean probability and accuracy of each bin is averaged over the samples.
Bins are of equal width, right-closed, or (adaptive; Nguyen and O'Connor 2015) of equal numbers of samples.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BINS = 15


def softmax(scores: npt.NDArray[np.floating]) -> FloatArray:
    """(N, C) probabilities from logits (N, C)."""
    shifted = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def log_losses(classes: IntArray, probabilities: FloatArray) -> FloatArray:
    """(N,) negative log probabilities of the true classes, in nats.

    A probability of 0 counts as 2.2e-16 (a loss of 36), which is scikit-learn's rule in `log_loss`.
    """
    smallest = np.finfo(np.float64).eps
    own = np.take_along_axis(probabilities, classes[:, None], axis=1)[:, 0]
    return np.asarray(-np.log(np.clip(own, smallest, 1 - smallest)))


def brier_scores(classes: IntArray, probabilities: FloatArray) -> FloatArray:
    """(N,) squared distances between probabilities and truth, summed over all classes: 0 to 2 (Brier 1950)."""
    own = np.take_along_axis(probabilities, classes[:, None], axis=1)[:, 0]
    return np.asarray(np.sum(probabilities**2, axis=1) - own**2 + (1 - own) ** 2)


class CalibrationError:
    """Expected calibration error for many weightings of the samples; the bins are those of the unweighted samples."""

    def __init__(
        self, classes: IntArray, probabilities: FloatArray, *, bins: int = BINS, adaptive: bool = False
    ) -> None:
        """Put the samples into bins.

        Args:
            classes: (N,), the true class of each sample.
            probabilities: (N, C), each row summing to 1; of equal ones the lowest class is the predicted one.
            bins: how many.
            adaptive: bins hold equal numbers of samples (equal probabilities share a bin), not equal widths.
        """
        confidence = probabilities.max(axis=1)
        right = probabilities.argmax(axis=1) == classes
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

    def value(self, weights: FloatArray) -> FloatArray:
        """(R,) errors for R weightings (R, N); 0 is perfect, 1 is worst."""
        gaps = np.add.reduceat((weights * self._gap)[:, self._order], self._starts, axis=1)
        return np.asarray(np.abs(gaps).sum(axis=1) / weights.sum(axis=1))


def expected_calibration_error(
    classes: IntArray, probabilities: FloatArray, *, bins: int = BINS, adaptive: bool = False
) -> float:
    """The same for samples that all count once; see `CalibrationError`."""
    error = CalibrationError(classes, probabilities, bins=bins, adaptive=adaptive)
    return float(error.value(np.ones((1, len(classes))))[0])
