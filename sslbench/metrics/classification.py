"""Top-k accuracy, recall per class, balanced accuracy, F1 (also of several labels). All rates are fractions in 0..1.

Ties: of classes with equal scores the one with the lowest number counts as ranked first, so a result never depends on
the order in which a sort visits them.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def top_k_correct(classes: IntArray, scores: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.bool_]:
    """Whether each sample's class is among its k best scored ones.

    Args:
        classes: (N,), the true class of each sample.
        scores: (N, C), higher means more likely.
        k: how many classes may be named; at most C.

    Returns:
        (N,) booleans.
    """
    return np.asarray(places(classes, scores) < k)


def places(classes: IntArray, scores: npt.NDArray[np.floating]) -> IntArray:
    """(N,) how many classes are ranked before each sample's own: 0 where it is predicted.

    Args:
        classes: (N,), the true class of each sample.
        scores: (N, C), higher means more likely.
    """
    own = np.take_along_axis(scores, classes[:, None], axis=1)
    lower_number = np.arange(scores.shape[1]) < classes[:, None]
    ahead = (scores > own) | ((scores == own) & lower_number)
    return np.asarray(ahead.sum(axis=1, dtype=np.int64))


def top_k_accuracy(classes: IntArray, scores: npt.NDArray[np.floating], k: int = 1) -> float:
    """The share of samples whose class is among the k best scored ones; NaN when there are fewer than k classes.

    Args:
        classes: (N,), the true class of each sample.
        scores: (N, C), higher means more likely.
        k: how many classes may be named.
    """
    if k > scores.shape[1]:
        return float("nan")
    return float(np.mean(top_k_correct(classes, scores, k)))


class ClassCounts:
    """Per class: how many samples it has, how often it was predicted, how often rightly; for weighted samples too.

    Balanced accuracy and macro F1 are functions of these three alone, which is what lets intervals resample counts
    instead of samples.
    """

    def __init__(self, classes: IntArray, predicted: IntArray, n_classes: int) -> None:
        self._truth = _Grouped(classes, n_classes)
        self._predicted = _Grouped(predicted, n_classes)
        right = np.flatnonzero(classes == predicted)
        self._right = _Grouped(classes[right], n_classes)
        self._right_rows = right

    def recall(self, weights: FloatArray) -> FloatArray:
        """(R, C) recalls for R weightings (R, N) of the samples; NaN for a class without weight."""
        truth, right = self._truth.sum(weights), self._right.sum(weights[:, self._right_rows])
        return np.divide(right, truth, out=np.full_like(truth, np.nan), where=truth > 0)

    def balanced_accuracy(self, weights: FloatArray) -> FloatArray:
        """(R,) means of the recalls of the classes that have samples (scikit-learn's `balanced_accuracy_score`)."""
        recall = self.recall(weights)
        present = ~np.isnan(recall)
        return np.asarray(np.nansum(recall, axis=1) / present.sum(axis=1))

    def macro_f1(self, weights: FloatArray) -> FloatArray:
        """(R,) means of F1 over the classes that have samples or were predicted (scikit-learn's macro F1)."""
        right = self._right.sum(weights[:, self._right_rows])
        total = self._truth.sum(weights) + self._predicted.sum(weights)
        f1 = np.divide(2 * right, total, out=np.zeros_like(total), where=total > 0)
        return np.asarray(f1.sum(axis=1) / (total > 0).sum(axis=1))


class LabelCounts:
    """Of several labels per sample, per class: how many samples have it, how many are given it, how many rightly.

    A class is given to the samples that score above the threshold. What is marked -1 is left out, and so is a class
    without a classifier (NaN).
    """

    def __init__(
        self, labels: npt.NDArray[np.integer], scores: npt.NDArray[np.floating], threshold: float = 0.0
    ) -> None:
        """Compare.

        Args:
            labels: (N, C), 1 present, 0 absent, -1 ignore.
            scores: (N, C), higher means more likely.
            threshold: what a score must exceed: 0 for decision values, 0.5 for probabilities.
        """
        scored = ~np.isnan(scores).any(axis=0)
        known = (labels >= 0) & scored
        present, given = (labels > 0) & known, (scores > threshold) & known
        self._parts = [part.astype(np.float64) for part in (present, given, present & given)]

    def sums(self, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(R, C) weights of the samples that have a class, are given it, and both, for R weightings (R, N)."""
        present, given, both = (weights @ part for part in self._parts)
        return present, given, both

    def f1(self, weights: FloatArray) -> FloatArray:
        """(R, 2): micro F1, over all labels at once; macro F1, the mean of the classes that anything has or is given.

        NaN where nothing has or is given any class (scikit-learn's with `zero_division=nan`).
        """
        present, given, both = self.sums(weights)
        total = present + given
        each = np.divide(2 * both, total, out=np.zeros_like(total), where=total > 0)
        some, overall = (total > 0).sum(axis=1), total.sum(axis=1)
        macro = np.divide(each.sum(axis=1), some, out=np.full(len(some), np.nan), where=some > 0)
        micro = np.divide(2 * both.sum(axis=1), overall, out=np.full(len(some), np.nan), where=overall > 0)
        return np.column_stack([micro, macro])


class _Grouped:
    """Sums of sample weights per class, by one sort instead of an N x C matrix."""

    def __init__(self, classes: IntArray, n_classes: int) -> None:
        self._order = np.argsort(classes, kind="stable")
        self._present, self._starts = np.unique(classes[self._order], return_index=True)
        self._n_classes = n_classes

    def sum(self, weights: FloatArray) -> FloatArray:
        """(R, C) sums of the weights (R, N) of the samples of each class."""
        totals = np.zeros((len(weights), self._n_classes))
        if len(self._present):
            totals[:, self._present] = np.add.reduceat(weights[:, self._order], self._starts, axis=1)
        return totals


def per_class_recall(classes: IntArray, predicted: IntArray, n_classes: int) -> FloatArray:
    """(C,) share of each class's samples that were predicted as that class; NaN for a class without samples."""
    return np.asarray(ClassCounts(classes, predicted, n_classes).recall(np.ones((1, len(classes))))[0])


def balanced_accuracy(classes: IntArray, predicted: IntArray, n_classes: int) -> float:
    """The mean of the recalls of the classes that have samples."""
    return float(ClassCounts(classes, predicted, n_classes).balanced_accuracy(np.ones((1, len(classes))))[0])


def macro_f1(classes: IntArray, predicted: IntArray, n_classes: int) -> float:
    """The mean of F1 over the classes that have samples or were predicted; a class never found counts 0."""
    return float(ClassCounts(classes, predicted, n_classes).macro_f1(np.ones((1, len(classes))))[0])
