"""Top-k accuracy, recall per class, balanced accuracy and F1, for one or several labels per sample; calibration.

Ties count as in `answers`. Rates are fractions, 0 to 1.
"""

import dataclasses
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.answers import Confidences, top_k_correct
from sslbench.metrics.metric import LOSS, RATE, Chance, ClassFrequencies, Metric

MACRO_F1 = Metric("macro_f1", "F1, mean over classes", "%", 1, RATE, needs="scores", labels=("single", "multi"))
MICRO_F1 = dataclasses.replace(MACRO_F1, name="micro_f1", title="F1 over all labels at once", labels=("multi",))
BINS = 15
# The error is a mean of absolute values, so that its bias falls with the square root of the number of samples.
ECE = Metric(
    "ece", "Expected calibration error", "%", -1, RATE, needs="probabilities", labels=("single",), bias_decay=1 / 2
)
ECE_ADAPTIVE = dataclasses.replace(ECE, name="ece_adaptive", title="Expected calibration error, equally filled bins")
NLL = Metric("nll", "Log loss", "nats", -1, LOSS, needs="probabilities", labels=("single",))
BRIER = Metric("brier", "Brier score", "Brier score, 0 to 2", -1, (0.0, 2.0), needs="probabilities", labels=("single",))


def _one_of(k: int) -> Chance:
    """Return the chance that k of C classes, drawn at random, hold the true one."""

    def chance(frequencies: ClassFrequencies) -> Fraction | None:
        classes = len(frequencies.positives)
        return Fraction(k, classes) if classes >= k else None

    return chance


TOP1 = Metric("top1", "Top-1 accuracy", "%", 1, RATE, needs="scores", labels=("single",), chance=_one_of(1), floor=True)
TOP5 = dataclasses.replace(TOP1, name="top5", title="Top-5 accuracy", chance=_one_of(5))
# Guesses that do not depend on the sample find the same share of every class, and the shares sum to 1.
BALANCED_ACCURACY = dataclasses.replace(
    TOP1, name="balanced_accuracy", title="Balanced accuracy", labels=("single", "imbalanced")
)


def top_k_accuracy(classes: IntArray, scores: npt.NDArray[np.floating], k: int = 1) -> float:
    """Return the share of samples whose class is among the k best scored ones; NaN for fewer than k classes.

    `classes`: (N,), the true class of each sample; `scores`: (N, C), higher means more likely.

    >>> top_k_accuracy(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]))
    0.5
    """
    if k > scores.shape[1]:
        return float("nan")
    return float(np.mean(top_k_correct(classes, scores, k)))


class ClassCounts:
    """Numbers per class of samples, of predictions and of right predictions, for weighted samples.

    Balanced accuracy and macro F1 are functions of these three alone. A sample without a prediction has -1.
    """

    def __init__(self, classes: IntArray, predicted: IntArray, n_classes: int) -> None:
        self._truth = _Grouped(classes, n_classes)
        self._predicted_rows = np.flatnonzero(predicted >= 0)
        self._predicted = _Grouped(predicted[self._predicted_rows], n_classes)
        right = np.flatnonzero(classes == predicted)
        self._right = _Grouped(classes[right], n_classes)
        self._right_rows = right

    def recall(self, weights: FloatArray) -> FloatArray:
        """Return the recalls (R, C) for R weightings (R, N) of the samples; NaN for a class without weight."""
        truth, right = self._truth.sum(weights), self._right.sum(weights[:, self._right_rows])
        return np.divide(right, truth, out=np.full_like(truth, np.nan), where=truth > 0)

    def balanced_accuracy(self, weights: FloatArray) -> FloatArray:
        """Return the mean recall (R,) of the classes that have samples (scikit-learn's `balanced_accuracy_score`)."""
        recall = self.recall(weights)
        present = ~np.isnan(recall)
        return np.asarray(np.nansum(recall, axis=1) / present.sum(axis=1))

    def macro_f1(self, weights: FloatArray) -> FloatArray:
        """Return the mean F1 (R,) of the classes that have samples or were predicted (scikit-learn's macro F1)."""
        right = self._right.sum(weights[:, self._right_rows])
        total = self._truth.sum(weights) + self._predicted.sum(weights[:, self._predicted_rows])
        f1 = np.divide(2 * right, total, out=np.zeros_like(total), where=total > 0)
        return np.asarray(f1.sum(axis=1) / (total > 0).sum(axis=1))


class LabelCounts:
    """Numbers per class of positives, of predicted positives and of both, for several labels per sample.

    A class is predicted for the samples that score above the threshold. Labels of -1 are left out, and so is a class
    without a classifier (NaN).
    """

    def __init__(
        self, labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating], threshold: float = 0.0
    ) -> None:
        """Compare labels and predictions.

        `labels`: (N, C), 1 present, 0 absent, -1 ignore; `scores`: (N, C), higher means more likely.
        """
        scored = ~np.isnan(scores).any(axis=0)
        known = (labels >= 0) & scored
        present, predicted = (labels > 0) & known, (scores > threshold) & known
        self._parts = [part.astype(np.float64) for part in (present, predicted, present & predicted)]

    def sums(self, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the weights (R, C) of positives, of predicted positives and of both, for R weightings (R, N)."""
        present, predicted, both = (weights @ part for part in self._parts)
        return present, predicted, both

    def f1(self, weights: FloatArray) -> FloatArray:
        """Return micro F1, over all labels, and macro F1, the mean over classes with a label or prediction (R, 2).

        NaN where there is neither (scikit-learn's with `zero_division=nan`).
        """
        present, predicted, both = self.sums(weights)
        total = present + predicted
        each = np.divide(2 * both, total, out=np.zeros_like(total), where=total > 0)
        some, overall = (total > 0).sum(axis=1), total.sum(axis=1)
        macro = np.divide(each.sum(axis=1), some, out=np.full(len(some), np.nan), where=some > 0)
        micro = np.divide(2 * both.sum(axis=1), overall, out=np.full(len(some), np.nan), where=overall > 0)
        return np.column_stack([micro, macro])


class _Grouped:
    """Sums of sample weights per class, by one sort in place of an N x C matrix."""

    def __init__(self, classes: IntArray, n_classes: int) -> None:
        self._order = np.argsort(classes, kind="stable")
        self._present, self._starts = np.unique(classes[self._order], return_index=True)
        self._n_classes = n_classes

    def sum(self, weights: FloatArray) -> FloatArray:
        """Return the sums (R, C) of the weights (R, N) of the samples of each class."""
        totals = np.zeros((len(weights), self._n_classes))
        if len(self._present):
            totals[:, self._present] = np.add.reduceat(weights[:, self._order], self._starts, axis=1)
        return totals


def per_class_recall(classes: IntArray, predicted: IntArray, n_classes: int) -> FloatArray:
    """Return the share of each class's samples that were predicted as that class (C,); NaN for a class without samples.

    `classes`: (N,), the true class of each sample; `predicted`: (N,), the predicted class of each sample, see
    `predicted_classes`.

    >>> per_class_recall(np.array([0, 0, 1]), np.array([0, 1, 1]), n_classes=2).tolist()
    [0.5, 1.0]
    """
    return np.asarray(ClassCounts(classes, predicted, n_classes).recall(np.ones((1, len(classes))))[0])


# Naeini et al. 2015; Guo et al. 2017, eq. 3: samples are put into bins by the probability of the predicted class, and
# the distance between mean probability and accuracy of each bin is averaged over the samples. Bins are of equal width,
# right-closed, or (adaptive; Nguyen and O'Connor 2015) of equal numbers of samples.
class CalibrationError:
    """Expected calibration error for many weightings of the samples, in the bins of the unweighted samples."""

    def __init__(self, sure: Confidences, *, bins: int = BINS, adaptive: bool = False) -> None:
        """Sort the samples into bins; a sample with several highest probabilities is wrong."""
        confidence = sure.highest
        self._gap = confidence - sure.right
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
        """Excess of the error on these samples over that on very many: chance makes the gap of a bin larger."""
        # Gaps are sums of independent answers, taken as normal; the part of a gap that chance alone gives is left out.
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
