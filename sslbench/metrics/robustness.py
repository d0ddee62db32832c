"""Robustness of a classifier: corruptions, stability over frames, several right labels, unknown classes, confidence.

Shapes: N samples, C classes, V videos of T frames. Errors and accuracies are shares from 0 to 1.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sslbench.metrics.intervals import Interval, Statistic, Units, ends, mean_errors
from sslbench.metrics.measure import Measure, SampleMeans
from sslbench.metrics.metric import ANY, CORRELATION, LOSS, RATE, Metric
from sslbench.metrics.selective import selective_statistic
from sslbench.metrics.summary import with_intervals

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Number = TypeVar("Number", np.int64, np.float64)


CORRUPTION_ERROR = Metric(
    "corruption_error", "mean error over corruptions and severities", "%", -1, RATE, needs="versions"
)
ERROR_INCREASE = Metric(
    "error_increase", "mean error over corruptions and severities, less the error on clean images",
    "%", -1, CORRELATION, needs="versions",
)  # fmt: skip
MCE = Metric("mce", "mean corruption error, relative to a reference classifier", "%", -1, LOSS, needs="versions")
RELATIVE_MCE = Metric(
    "relative_mce", "mean increase of the error by corruption, relative to a reference classifier",
    "%", -1, ANY, needs="versions",
)  # fmt: skip
EFFECTIVE_ROBUSTNESS = Metric(
    "effective_robustness", "accuracy beyond what the accuracy on test predicts", "%", 1, CORRELATION, needs="versions"
)
AURRA = Metric(
    "aurra", "mean accuracy of the most confident samples over all response rates", "%", 1, RATE, needs="confidence"
)
COSINE = Metric(
    "cosine", "cosine similarity of the features of changed and unchanged images",
    "cosine", 0, CORRELATION, needs="versions",
)  # fmt: skip
FLIP_PROBABILITY = Metric(
    "flip_probability", "probability that the predicted class changes between frames of a perturbed image",
    "%", -1, RATE, needs="videos",
)  # fmt: skip
FLIP_RATE = Metric("flip_rate", "flip probability, relative to a reference classifier", "%", -1, LOSS, needs="videos")
TOP5_DISTANCE = Metric(
    "top5_distance", "places by which the five first classes fall below the fifth between frames of a perturbed image",
    "places", -1, (0.0, 15.0), needs="videos",
)  # fmt: skip
UNKNOWN_AUROC = Metric(
    "unknown_auroc", "area under the ROC curve of the detection of unknown classes",
    "%", 1, RATE, needs="novelty", chance=0.5,
)  # fmt: skip
UNKNOWN_AUPR = Metric(
    "unknown_aupr", "average precision of the detection of unknown classes", "%", 1, RATE, needs="novelty"
)
UNKNOWN_FPR95 = Metric(
    "unknown_fpr95", "false-positive rate at 95 % recall of the detection of unknown classes",
    "%", -1, RATE, needs="novelty",
)  # fmt: skip
UNKNOWN = (UNKNOWN_AUROC, UNKNOWN_AUPR, UNKNOWN_FPR95)


def part(metric: Metric, *of: str | int) -> Metric:
    """Return a metric of one part of the data.

    >>> part(CORRUPTION_ERROR, "fog", 3).name
    'corruption_error(fog,3)'
    """
    return dataclasses.replace(metric, name=f"{metric.name}({','.join(map(str, of))})")


def corruption_means(
    wrong: BoolArray,
    clean: BoolArray,
    named: Sequence[str],
    severities: Sequence[int],
    reference: FloatArray | None = None,
    reference_clean: float | None = None,
) -> SampleMeans:
    """Return the metrics of corruptions as means over images: of all, of each corruption, and of each severity.

    The error of a corruption (CE, Hendrycks and Dietterich, ICLR 2019, section 4) is its sum over severities as a share
    of the reference's, AlexNet's on ImageNet-C; mCE is the mean of all.

    `wrong`: (N, C, S), True where an image is misclassified under a corruption and severity; `clean`: (N,), True where
    it is misclassified without; `reference`: (C, S) errors of the reference classifier; None: no mCE;
    `reference_clean`: its error on clean images; None: no relative mCE.

    >>> wrong, clean = np.array([[[True, False]]]), np.array([False])
    >>> found = corruption_means(wrong, clean, ["fog"], [1, 2], np.array([[0.5, 0.5]]))
    >>> {name: found.values(name).tolist() for name in found.metrics[:3]}
    {'corruption_error': [0.5], 'error_increase': [0.5], 'mce': [1.0]}
    >>> found.metrics[3:]
    ('corruption_error(fog)', 'corruption_error(fog,1)', 'corruption_error(fog,2)')
    """
    # mCE is such a mean too: each of its errors is one, and the errors of the reference are constants.
    n, c, s = wrong.shape
    each = np.eye(c * s + 1)[: c * s].reshape(c, s, -1)  # weights of one error; the last outcome is `clean`
    on_clean = np.eye(c * s + 1)[-1]
    weights = {CORRUPTION_ERROR: each.mean(axis=(0, 1))}
    weights[ERROR_INCREASE] = weights[CORRUPTION_ERROR] - on_clean
    if reference is not None:
        weights[MCE] = (each.sum(axis=1) / reference.sum(axis=1)[:, None]).mean(axis=0)
    if reference is not None and reference_clean is not None:
        growth = (each - on_clean).sum(axis=1)
        weights[RELATIVE_MCE] = (growth / (reference - reference_clean).sum(axis=1)[:, None]).mean(axis=0)
    weights |= {part(CORRUPTION_ERROR, name): each[i].mean(axis=0) for i, name in enumerate(named)}
    for i, name in enumerate(named):
        weights |= {part(CORRUPTION_ERROR, name, severity): each[i, j] for j, severity in enumerate(severities)}
    outcomes = np.concatenate([wrong.reshape(n, c * s), clean[:, None]], axis=1)
    return SampleMeans(tuple(metric.name for metric in weights), np.stack(list(weights.values())), outcomes)


def cosine_of_others(unit: FloatArray, units: Units, *, seed: int, resamples: int = 1000) -> Interval:
    """Return the mean cosine similarity of two different images, with its 95 % interval.

    `unit`: (N, D), features of unit length.

    >>> cosine_of_others(np.eye(2), Units.of(2, None), seed=0)[0]
    0.0
    """

    def statistic(weights: FloatArray) -> FloatArray:
        number = weights.sum(axis=1)
        squares = (weights**2 @ (unit**2).sum(axis=1)).ravel()
        total = ((weights @ unit) ** 2).sum(axis=1) - squares
        with np.errstate(invalid="ignore"):
            return np.asarray(total / (number * (number - 1)))[:, None]

    return with_intervals(Measure((COSINE,), statistic), units, seed, resamples)[COSINE.name]


def flip_probability(predictions: IntArray, *, noise: bool, step: int = 1) -> float:
    """Return the probability that the predicted class changes from frame to frame (ImageNet-P), mean over videos.

    `predictions`: (V, T) predicted class of every frame, -1 for none.

    >>> flip_probability(np.array([[1, 1, 2, 2]]), noise=False)
    0.3333333333333333
    """
    before, after = _compared(predictions, noise=noise, step=step)
    return float((before != after).mean())


def ranking_distances(logits: npt.NDArray[np.floating], *, noise: bool, step: int = 1) -> tuple[float, float]:
    """Return the top-5 and Zipf distances between rankings of the classes from frame to frame, means over videos.

    Hendrycks and Dietterich, ICLR 2019, section 4.2 and appendix F. Top-5: how far the five first classes fall below
    the fifth place, in places counted up to 5; Zipf: changes of 1 / rank, weighted by 1 / rank.

    `logits`: (V, T, C).
    """
    from scipy.stats import rankdata

    ranks = rankdata(-logits, axis=2) - 1  # (V, T, C), 0 is first; equal logits share their mean rank
    before, after = _compared(ranks, noise=noise, step=step)
    top5 = np.where(before < 5, np.abs(np.minimum(after, 5) - before), 0).sum(axis=-1)
    zipf = (np.abs(1 / (before + 1) - 1 / (after + 1)) / (before + 1)).sum(axis=-1)
    return float(top5.mean()), float(zipf.mean())


def _compared(
    values: npt.NDArray[Number], *, noise: bool, step: int
) -> tuple[npt.NDArray[Number], npt.NDArray[Number]]:
    """Return the frames compared, earlier and later, (V, pairs, ...)."""
    if noise:
        return np.broadcast_to(values[:, :1], values[:, 1:].shape), values[:, 1:]
    return values[:, :-step], values[:, step:]


def unknown_detection(
    known: npt.NDArray[np.floating],
    unknown: npt.NDArray[np.floating],
    units: Units,
    *,
    seed: int,
    resamples: int = 1000,
) -> dict[str, Interval]:
    """Return the metrics `UNKNOWN` with their 95 % intervals.

    `known`: (N,) novelty of samples of known classes; `unknown`: (M,) of samples of other classes.
    """
    return with_intervals(Measure(UNKNOWN, detection_statistic(known, unknown)), units, seed, resamples)


def detection_statistic(known: npt.NDArray[np.floating], unknown: npt.NDArray[np.floating]) -> Statistic:
    """Return the function from weights (R, N + M) of the samples to AUROC, AUPR and FPR95 (R, 3)."""
    truth = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    scores = np.r_[known, unknown].astype(np.float64)
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.r_[np.flatnonzero(np.diff(scores[order])), len(scores) - 1]
    positive = truth[order]

    def statistic(weights: FloatArray) -> FloatArray:
        ranked = weights[:, order]
        hits = np.cumsum(ranked * positive, axis=1)[:, last_of_tie]
        false = np.cumsum(ranked * (1 - positive), axis=1)[:, last_of_tie]
        with np.errstate(invalid="ignore", divide="ignore"):
            recall, rate = hits / hits[:, -1:], false / false[:, -1:]
            precision = np.where(hits + false > 0, hits / np.maximum(hits + false, 1e-300), 1.0)
        before = np.zeros((len(weights), 1))
        steps, below = np.diff(recall, axis=1, prepend=before), np.concatenate([before, rate[:, :-1]], axis=1)
        heights = np.concatenate([before, recall[:, :-1]], axis=1) + recall
        auroc = ((rate - below) * heights / 2).sum(axis=1)
        # Thresholds below the first one that finds all are not considered.
        needless = np.arange(hits.shape[1]) > np.argmax(hits >= hits[:, -1:], axis=1)[:, None]
        distance = np.where(needless, np.inf, np.abs(recall - 0.95))
        nearest = distance.shape[1] - 1 - np.argmin(distance[:, ::-1], axis=1)
        fpr95 = rate[np.arange(len(weights)), nearest]
        return np.column_stack([auroc, (steps * precision).sum(axis=1), fpr95])

    return statistic


def response_rate_accuracy(
    confidence: FloatArray, correct: BoolArray, units: Units, *, seed: int, resamples: int = 1000
) -> Interval:
    """Return AURRA with its 95 % interval.

    `confidence`: (N,) largest probability of each sample; `correct`: (N,) True where it is right.
    """
    return with_intervals(Measure((AURRA,), response_rate_statistic(confidence, correct)), units, seed, resamples)[
        AURRA.name
    ]


def response_rate_statistic(confidence: FloatArray, correct: BoolArray) -> Statistic:
    """Return the function from weights (R, N) of the samples to AURRA (R, 1): 1 less AURC."""
    statistic = selective_statistic(confidence, correct)
    return lambda weights: 1 - statistic(weights)[:, :1]


def effective_robustness(accuracy: float, standard: float, line: tuple[float, float]) -> float:
    """Return the accuracy beyond what a line through other models predicts from the standard accuracy.

    Taori et al., "Measuring robustness to natural distribution shifts in image classification", NeurIPS 2020, eq. 1;
    the line is fitted on logits of accuracies.

    >>> round(effective_robustness(0.5, 0.5, (1.0, 0.0)), 6)
    0.0
    """
    predicted = line[0] * np.log(standard / (1 - standard)) + line[1]
    return float(accuracy - 1 / (1 + np.exp(-predicted)))


def effective_robustness_with_interval(
    right: BoolArray, units: Units, standard: BoolArray, standard_units: Units, line: tuple[float, float]
) -> Interval:
    """Return effective robustness with its 95 % interval, by the delta method; NaN where an accuracy is 0 or 100 %.

    `right`: (N,) True for the samples of the shifted set that are right; `standard`: (M,) the same of the standard set.
    """
    accuracy, usual = float(right.mean()), float(standard.mean())
    if usual in (0.0, 1.0):
        return (np.nan, np.nan, np.nan)
    value = effective_robustness(accuracy, usual, line)
    predicted = accuracy - value
    slope = line[0] * predicted * (1 - predicted) / (usual * (1 - usual))
    errors = [
        float(mean_errors(each.astype(np.float64)[:, None], own)[0])
        for each, own in ((right, units), (standard, standard_units))
    ]
    error, size = float(np.hypot(errors[0], slope * errors[1])), min(units.number, standard_units.number)
    return (value, *ends(value, error, size=size, bounds=EFFECTIVE_ROBUSTNESS.bounds))
