"""Paired comparison of two models on the same test samples, with groups kept together; intervals of `intervals`."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.answers import ClassScores, places
from sslbench.metrics.classification import TOP1, TOP5
from sslbench.metrics.intervals import (
    Interval,
    Units,
    on_halves,
    over_other_networks,
    over_other_trainings,
    paired_difference,
    shrunk,
    standard_errors,
)
from sslbench.metrics.measure import Kind, Measure, Probabilities
from sslbench.metrics.summary import one_measure

TOP_K = {TOP1.name: 1, TOP5.name: 5}
"""Metrics that are means over the samples, whose differences need no half-samples: name -> k."""


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions of a model for N test samples, from one or several trainings of its classifier (draws, seeds).

    Attributes:
        trainings: names of the R trainings; two models' trainings on the same samples have the same name, and so do
            those of several untrained networks.
        scores: (N, C) of each training; empty where only `places` are known.
        places: (R, N), number of classes ranked before the true one in each training; None with several labels.
    """

    trainings: tuple[str, ...]
    scores: tuple[ClassScores, ...] = ()
    places: npt.NDArray[np.integer] | None = None
    probabilities: Probabilities | None = None

    @classmethod
    def of(
        cls,
        seed: int,
        scores: ClassScores,
        draws: Sequence[ClassScores] = (),
        places: npt.NDArray[np.integer] | None = None,
        probabilities: Probabilities | None = None,
        *,
        seeds: int = 1,
    ) -> "Predictions":
        """Return the predictions of one record.

        `scores`: (N, C), of the first draw; `draws`: (N, C) of every draw, if there are several and they were kept.
        """
        kept = tuple(draws) or ((scores,) if places is None or len(places) == 1 else ())
        number = len(kept) or len(places if places is not None else ())
        drawn = [(seed + i, 0) for i in range(number)] if seeds > 1 else [(seed, i) for i in range(number)]
        return cls(tuple(f"seed {own}, draw {i}" for own, i in drawn), kept, places, probabilities)

    @classmethod
    def together(cls, parts: "Sequence[Predictions]") -> "Predictions":
        """Return the predictions of several records of one model, such as one per seed."""
        if len(parts) == 1:
            return parts[0]
        ranked = [part.places for part in parts if part.places is not None]
        return cls(
            tuple(name for part in parts for name in part.trainings),
            tuple(scores for part in parts for scores in part.scores) if all(part.scores for part in parts) else (),
            np.concatenate(ranked) if len(ranked) == len(parts) else None,
            parts[0].probabilities,
        )

    def right(self, labels: npt.NDArray[np.integer], k: int) -> FloatArray:
        """Return 1 where a training has the true class among its first k, else 0, (R, N)."""
        ranked = self.places
        if ranked is None:
            ranked = np.stack([places(labels.astype(np.int64), scores) for scores in self.scores])
        return (ranked < k).astype(np.float64)


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """Difference of a metric between two models with its 95 % interval; the values are means over the trainings.

    Attributes:
        low: low end of the interval of the difference; NaN where it cannot be computed.
        p: p value of the exact sign-flip test, see `sign_flip`; None for other metrics than top-1, and for several
            trainings, whose variance it leaves out.
    """

    value_a: float
    value_b: float
    difference: float
    low: float
    high: float
    p: float | None = None


def difference(
    metric: str,
    kind: Kind,
    labels: npt.NDArray[np.integer],
    a: Predictions,
    b: Predictions,
    *,
    groups: IntArray | None = None,
    seed: int = 0,
    resamples: int = 1000,
) -> PairedDifference:
    """Compare two models by a metric.

    `groups`: (N,) the group of each sample; None: each stands for itself.

    >>> from sslbench.targets.classes import Classes
    >>> right, wrong = np.array([[1.0, 0.0]] * 20), np.array([[0.0, 1.0]] * 20)
    >>> a, b = Predictions.of(0, right), Predictions.of(0, wrong)
    >>> found = difference("top1", Classes, np.zeros(20, np.int64), a, b)
    >>> found.difference, found.low > 0, found.p is not None and found.p < 0.001
    (1.0, True, True)
    """
    # With several trainings the interval also covers the variance between trainings: the half widths of the two are
    # added as squares. Trainings on the same samples (draws with the same seed) are compared pair by pair.
    units = Units.of(len(labels), groups)
    if metric in TOP_K and kind.of_one_class:
        right = [answers.right(labels, TOP_K[metric]) for answers in (a, b)]
        each = [tuple(row.mean(axis=1).tolist()) for row in right]
        means = [row.mean(axis=0) for row in right]
        found = paired_difference(means[0], means[1], units)
        one_training = len(right[0]) == len(right[1]) == 1
        p = sign_flip(units.sums(means[0] - means[1])) if metric == TOP1.name and one_training else None
    else:
        each, found = _resampled(metric, kind, labels, a, b, units, seed, resamples)
        p = None
    named = [list(zip(m.trainings, values, strict=True)) for m, values in zip((a, b), each, strict=True)]
    found = _over_trainings(found, *named)
    return PairedDifference(float(np.mean(each[0])), float(np.mean(each[1])), *found, p)


def difference_of_means(
    a: Sequence[tuple[str, FloatArray]], b: Sequence[tuple[str, FloatArray]], *, groups: IntArray | None = None
) -> PairedDifference:
    """Compare two models by a metric that is a mean over the samples; several trainings as in `difference`.

    `a`: name of each training of one model, value (N,) of each sample; `groups`: (N,) the group of each sample; None:
    each stands for itself.

    >>> errors, fewer = np.ones(20), np.zeros(20)
    >>> found = difference_of_means([("seed 0", errors)], [("seed 0", fewer)])
    >>> found.difference, found.low > 0
    (1.0, True)
    """
    each = [[(name, float(values.mean())) for name, values in model] for model in (a, b)]
    first, second = (np.mean([values for _, values in model], axis=0) for model in (a, b))
    found = _over_trainings(paired_difference(first, second, Units.of(len(first), groups)), *each)
    return PairedDifference(float(first.mean()), float(second.mean()), *found)


def _over_trainings(found: Interval, a: Sequence[tuple[str, float]], b: Sequence[tuple[str, float]]) -> Interval:
    """Return a difference with its interval over other trainings, and over other networks where a model is several.

    `a`, `b`: name and value of each training of a model; several of one name are those of several untrained networks.
    """
    means = []
    for model in (a, b):
        of_name: dict[str, list[float]] = defaultdict(list)
        for name, value in model:
            of_name[name].append(value)
        means.append({name: float(np.mean(values)) for name, values in of_name.items()})
        networks = [float(np.mean(values)) for values in zip(*of_name.values(), strict=False)]
        found = over_other_networks(found, networks)
    return over_other_trainings(found, *means)


def _resampled(
    metric: str,
    kind: Kind,
    labels: npt.NDArray[np.integer],
    a: Predictions,
    b: Predictions,
    units: Units,
    seed: int,
    resamples: int,
) -> tuple[list[tuple[float, ...]], Interval]:
    """Return the metric for each training of both models, and the difference with its interval over samples."""
    if not (a.scores and b.scores):
        raise KeyError(metric)
    measures: list[list[Measure]] = [
        [one_measure(metric, kind, labels, s, units, m.probabilities) for s in m.scores] for m in (a, b)
    ]
    column = measures[0][0].names.index(metric)

    def both(weights: FloatArray) -> FloatArray:
        parts = [[measure.statistic(weights)[:, column] for measure in of_model] for of_model in measures]
        return np.stack([np.mean(part, axis=0) for part in parts], axis=1)

    once = np.ones((1, units.samples))
    each = [tuple(float(m.statistic(once)[0, column]) for m in of_model) for of_model in measures]
    first = measures[0][0]
    halves = on_halves(both, units, n=resamples, seed=seed, block=first.block)
    error = float(standard_errors(halves[:, :1] - halves[:, 1:], units)[0]) * first.missing_variance
    values, size, bounds = [float(np.mean(part)) for part in each], first.size(units), first.metrics[column].bounds
    if math.isnan(first.missing_variance) and units.number > 1:
        # Every class has one unit, so that none shows its variance: that of two shares is assumed.
        error = math.sqrt(sum(share * (1 - share) for share in values) / size)
    return each, shrunk(values[0] - values[1], error, size, most=bounds[1] - bounds[0])


def sign_flip(sums: FloatArray) -> float:
    """Return the two-sided p value of the exact sign-flip test (Fisher 1935, section 21); 1 where no unit differs.

    >>> sign_flip(np.array([1.0, 1.0, 1.0]))
    0.25
    """
    # If two models are equally good, the difference of a unit has either sign with equal chance. For single samples
    # that are right or wrong this is McNemar's exact test (McNemar 1947).
    sizes, counts = np.unique(np.abs(np.rint(sums[np.rint(sums) != 0])).astype(np.int64), return_counts=True)
    observed = abs(int(np.rint(sums).sum()))
    if not len(sizes) or observed == 0:
        return 1.0
    # Sums of one size are binomial; those of several sizes are independent.
    chances = np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        own = np.zeros(2 * size * count + 1)
        own[:: 2 * size] = _chances_of_signs(count)
        length = len(chances) + len(own) - 1
        product = np.fft.rfft(chances, length) * np.fft.rfft(own, length)
        chances = own if len(chances) == 1 else np.maximum(np.fft.irfft(product, length), 0.0)
    middle = len(chances) // 2
    nearer = float(chances[middle - observed + 1 : middle + observed].sum())
    return 1 - nearer if nearer < 0.5 else float(2 * chances[middle + observed :].sum())


def _chances_of_signs(number: int) -> FloatArray:
    """Return the chance of 0 to `number` positive signs, (number + 1,): binomial with one half."""
    # From the middle outwards by the ratio of neighbours; scipy.stats would take half a second to import.
    middle = number // 2
    beyond = np.arange(middle, number)
    right = np.cumprod(np.concatenate([[1.0], (number - beyond) / (beyond + 1)]))
    chances = np.concatenate([right[: number % 2 : -1], right])
    return np.asarray(chances / chances.sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for the number of tests (Holm 1979).

    >>> holm([0.01, 0.04])
    [0.02, 0.04]
    """
    # Any is below 5 % by chance in at most 5 % of cases. NaN stays, and does not count as a test.
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = largest
    return adjusted
