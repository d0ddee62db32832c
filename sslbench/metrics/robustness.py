"""Robustness of a classifier: corruptions, stability over frames, several right labels, unknown classes, confidence.

Shapes: N samples, C classes, V videos of T frames. Errors and accuracies are shares from 0 to 1.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def corruption_error(errors: Sequence[float], reference: Sequence[float]) -> float:
    """Return CE: the sum of the errors over severities, as a share of the reference's (ImageNet-C: AlexNet's).

    Hendrycks and Dietterich, ICLR 2019, eq. in section 4. The mean over the 15 corruptions is mCE.

    Args:
        errors: of the classifier, one per severity.
        reference: of the reference, of the same severities.

    >>> corruption_error([0.2, 0.3], [0.4, 0.6])
    0.5
    """
    return float(np.sum(errors) / np.sum(reference))


def relative_corruption_error(
    errors: Sequence[float], clean: float, reference: Sequence[float], reference_clean: float
) -> float:
    """Return relative CE: the growth of the error over the clean error, as a share of the reference's growth.

    >>> relative_corruption_error([0.2, 0.3], 0.1, [0.5, 0.7], 0.3)
    0.5
    """
    growth = np.sum(np.asarray(errors) - clean)
    return float(growth / np.sum(np.asarray(reference) - reference_clean))


def flip_probability(predictions: IntArray, *, noise: bool, step: int = 1) -> float:
    """Return the probability that the predicted class changes from frame to frame (ImageNet-P), mean over videos.

    Args:
        predictions: (V, T) predicted class of every frame.
        noise: every frame is compared with the first one: frames of noise sequences do not follow one another.
        step: distance of the frames compared, where they do.

    >>> flip_probability(np.array([[1, 1, 2, 2]]), noise=False)
    0.3333333333333333
    """
    before, after = _compared(predictions, noise=noise, step=step)
    return float((before != after).mean())


def ranking_distances(logits: npt.NDArray[np.floating], *, noise: bool, step: int = 1) -> tuple[float, float]:
    """Return the top-5 and Zipf distances between rankings of the classes from frame to frame, means over videos.

    Hendrycks and Dietterich, ICLR 2019, section 4.2 and appendix F. Top-5: how far the five first classes fall below
    the fifth place, in places counted up to 5; Zipf: changes of 1 / rank, weighted by 1 / rank.

    Args:
        logits: (V, T, C).
        noise: every frame is compared with the first one.
        step: distance of the frames compared, where they follow one another.
    """
    order = np.argsort(-logits, axis=2, kind="stable")
    ranks = np.argsort(order, axis=2, kind="stable")  # (V, T, C), 0 is first
    before, _ = _compared(order, noise=noise, step=step)
    _, ranks_after = _compared(ranks, noise=noise, step=step)
    moved = np.take_along_axis(ranks_after, before, axis=-1)  # rank now of the class that was i-th
    places = np.arange(moved.shape[-1])
    top5 = np.abs(np.minimum(moved[..., :5], 5) - places[:5]).sum(axis=-1)
    zipf = (np.abs(1 / (places + 1) - 1 / (moved + 1)) / (places + 1)).sum(axis=-1)
    return float(top5.mean()), float(zipf.mean())


def _compared(values: IntArray, *, noise: bool, step: int) -> tuple[IntArray, IntArray]:
    """Return the frames compared, earlier and later, (V, pairs, ...)."""
    if noise:
        return np.broadcast_to(values[:, :1], values[:, 1:].shape), values[:, 1:]
    return values[:, :-step], values[:, step:]


def in_label_sets(predictions: IntArray, labels: Sequence[IntArray]) -> BoolArray:
    """Return whether each prediction is one of the sample's labels, of the samples that have labels (ReaL).

    Beyer et al., "Are we done with ImageNet?", 2020, section 3.2.

    Args:
        predictions: (N,) or (N, k): right if any of the k is a label.
        labels: N arrays of the classes that are right; samples without one are left out.

    >>> in_label_sets(np.array([1, 2, 3]), [np.array([1, 4]), np.array([]), np.array([4])]).tolist()
    [True, False]
    """
    rows = predictions.reshape(len(predictions), -1)
    return np.array([bool(np.isin(row, own).any()) for row, own in zip(rows, labels, strict=True) if len(own)])


def unknown_detection(known: npt.NDArray[np.floating], unknown: npt.NDArray[np.floating]) -> tuple[float, float, float]:
    """Return AUROC, AUPR and FPR at 95 % recall of telling samples of unknown classes from known ones.

    The unknown are the positives. FPR95 is taken at the lowest threshold whose recall is nearest to 0.95, as in the
    code of Hendrycks and Gimpel (ICLR 2017): of equal recalls the largest false-positive rate.

    Args:
        known: (N,) novelty of samples of known classes, higher is less familiar.
        unknown: (M,) of samples of other classes.

    >>> unknown_detection(np.array([0.1, 0.2]), np.array([0.7, 0.9]))
    (1.0, 1.0, 0.0)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    truth = np.r_[np.ones(len(unknown), int), np.zeros(len(known), int)]
    scores = np.r_[unknown, known].astype(np.float64)
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.r_[np.flatnonzero(np.diff(scores[order])), len(scores) - 1]
    hits = np.cumsum(truth[order])[last_of_tie]
    recalls, false = hits / len(unknown), (last_of_tie + 1 - hits) / len(known)
    nearest = len(recalls) - 1 - int(np.argmin(np.abs(recalls - 0.95)[::-1]))
    return float(roc_auc_score(truth, scores)), float(average_precision_score(truth, scores)), float(false[nearest])


@dataclasses.dataclass(frozen=True)
class ConfidenceBins:
    """Samples by rising confidence, in bins of equal numbers.

    Attributes:
        share: (B,) of all samples in the bin.
        gap: (B,) distance of mean confidence and accuracy of the bin.
    """

    share: FloatArray
    gap: FloatArray

    @property
    def rms(self) -> float:
        """RMS calibration error (Hendrycks et al., ICLR 2019, "Deep anomaly detection with outlier exposure")."""
        return float(np.sqrt((self.share * self.gap**2).sum()))

    @property
    def mad(self) -> float:
        """Mean absolute calibration error."""
        return float((self.share * self.gap).sum())

    @property
    def largest(self) -> float:
        """Largest gap of a bin."""
        return float(self.gap.max())


def confidence_bins(confidence: FloatArray, correct: BoolArray, size: int = 100) -> ConfidenceBins:
    """Return bins of `size` samples by rising confidence; what is left over joins the last one.

    The code published with ImageNet-A and -R leaves the last bin, the most confident one, out of the sums; here all
    count.
    """
    order = np.argsort(confidence, kind="stable")
    starts = np.arange(0, max(len(order) // size, 1)) * size
    counts = np.diff(np.r_[starts, len(order)])
    means = [np.add.reduceat(v[order].astype(np.float64), starts) / counts for v in (confidence, correct)]
    return ConfidenceBins(counts / len(order), np.abs(means[0] - means[1]))


def response_rate_accuracy(confidence: FloatArray, correct: BoolArray) -> float:
    """Return AURRA: the mean over n of the accuracy of the n most confident samples (ImageNet-A, Hendrycks 2021).

    >>> response_rate_accuracy(np.array([0.9, 0.1]), np.array([True, False]))
    0.75
    """
    order = np.argsort(confidence, kind="stable")[::-1]
    return float((np.cumsum(correct[order]) / np.arange(1, len(order) + 1)).mean())


def effective_robustness(accuracy: float, standard: float, line: tuple[float, float]) -> float:
    """Return the accuracy beyond what a line through other models predicts from the standard accuracy.

    Taori et al., "Measuring robustness to natural distribution shifts in image classification", NeurIPS 2020, eq. 1;
    the line is fitted on logits of accuracies.

    Args:
        accuracy: on the shifted set.
        standard: on the standard set.
        line: slope and intercept.

    >>> round(effective_robustness(0.5, 0.5, (1.0, 0.0)), 6)
    0.0
    """
    predicted = line[0] * np.log(standard / (1 - standard)) + line[1]
    return float(accuracy - 1 / (1 + np.exp(-predicted)))


def fit_line(standard: Sequence[float], shifted: Sequence[float]) -> tuple[float, float]:
    """Return slope and intercept of logit(shifted accuracy) on logit(standard accuracy), by least squares."""
    x, y = (np.log(np.asarray(v) / (1 - np.asarray(v))) for v in (standard, shifted))
    slope, intercept = np.polyfit(x, y, 1)
    return float(slope), float(intercept)


def challenge_predictions(logits: npt.NDArray[np.floating], mapping: Mapping[int, int], k: int) -> IntArray:
    """Return ObjectNet classes of the k highest ImageNet logits, (N, k); -1 for classes that ObjectNet lacks.

    The protocol of ObjectNet's challenge (Barbu et al., NeurIPS 2019).

    Args:
        logits: (N, 1000) of the ImageNet classes in the order of their synsets.
        mapping: ImageNet class -> ObjectNet class.
        k: how many.
    """
    table = np.full(logits.shape[1], -1)
    table[list(mapping)] = list(mapping.values())
    return np.asarray(table[np.argsort(-logits, axis=1, kind="stable")[:, :k]])


def overlap_predictions(logits: npt.NDArray[np.floating], mapping: Mapping[int, int], k: int) -> IntArray:
    """Return ObjectNet classes of the k highest logits among the ImageNet classes that occur in ObjectNet, (N, k).

    The protocol of most papers: only the 113 shared classes compete, and only their images are scored.

    Args:
        logits: (N, 1000) of the ImageNet classes in the order of their synsets.
        mapping: ImageNet class -> ObjectNet class.
        k: how many.
    """
    own = np.array(sorted(mapping))
    best = np.argsort(-logits[:, own], axis=1, kind="stable")[:, :k]
    found: IntArray = np.vectorize(mapping.__getitem__)(own[best])
    return found
